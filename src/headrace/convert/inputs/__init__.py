"""Inputs of conversions: folders of images, other formats, rows, iterables, and functions."""
