"""Prefetch of shards, in the order of their first use."""
