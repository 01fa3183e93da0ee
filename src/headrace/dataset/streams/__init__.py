"""Streams: where their shards are, which columns they have, and how much of them an epoch takes."""
