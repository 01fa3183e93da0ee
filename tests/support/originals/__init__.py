"""Small originals of known datasets, in the layout of their owners."""
