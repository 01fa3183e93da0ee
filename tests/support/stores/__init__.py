"""Stores, their environments, and the rows of their contracts."""
