"""Worker processes of a loader: their start, their batches, their end."""
