"""Helpers of several tests; the README lists them."""

from pathlib import Path

__all__ = ['support_file']


def support_file(name: str) -> Path:
    """The path of a helper that runs as a program, such as `trainers/composer_legs.py`."""
    return Path(__file__).parent / name
