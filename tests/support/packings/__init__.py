"""Streams of documents, and slow models of their packing."""
