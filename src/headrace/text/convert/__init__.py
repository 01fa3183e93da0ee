"""Converters of known datasets: each module has the description `ORIGINAL`, and is a program."""
