"""Programs that show headrace, for a checkout of it."""
