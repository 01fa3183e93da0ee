"""Random numbers that stay the same for ever."""
