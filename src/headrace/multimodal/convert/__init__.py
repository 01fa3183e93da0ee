"""Converters of known datasets of several media. Each module has the description `ORIGINAL`, and is a program."""
