"""How many samples an epoch draws from each stream, and how that changes in the course of a run."""
