"""Programs and processes that tests start, stop, kill and wait for."""
