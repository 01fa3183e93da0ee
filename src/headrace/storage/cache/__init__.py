"""The shard cache: shards become present on this machine's disk once, verified, within a limit."""
