"""Keys that loaders add to a batch beside the columns of the data."""
