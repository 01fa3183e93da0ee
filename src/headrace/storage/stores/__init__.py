"""Backends: one module for each kind of store, imported when a URL first needs it."""
