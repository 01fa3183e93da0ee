"""Streams: their shards, their columns, and their weight in an epoch."""
