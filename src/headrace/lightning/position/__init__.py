"""The position of the data under Lightning: its hooks, counters, checkpoints and files."""
