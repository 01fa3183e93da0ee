"""Writers of datasets, to a folder, to a store, or both."""
