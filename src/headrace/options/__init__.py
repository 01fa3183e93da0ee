"""The options of streams, datasets and orders: declared once, for Python's signatures, the YAML and the docs."""
