"""Indexes, shards and images, small and at random."""
