"""Damaged files of every format, at random."""
