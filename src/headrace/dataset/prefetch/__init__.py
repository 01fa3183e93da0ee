"""Shards are fetched ahead of the reader, in the order of their first use."""
