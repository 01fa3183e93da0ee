"""Converters of known datasets of images. Each module has the description `ORIGINAL`, and is a program."""
