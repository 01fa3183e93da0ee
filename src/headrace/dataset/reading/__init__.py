"""Samples and batches from mapped shards, in one process."""
