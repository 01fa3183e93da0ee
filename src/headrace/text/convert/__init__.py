"""Converters of known datasets of text. Each module has the description `ORIGINAL`, and is a program."""
