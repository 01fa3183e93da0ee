"""The names of objects in a listing."""

from __future__ import annotations

__all__ = ['folder_of', 'is_hidden', 'name_of']


def is_hidden(key: str) -> bool:
    """Whether an object is of another program: its name, or that of a folder, begins with '_' or '.'."""
    return any(part.startswith(('.', '_')) for part in key.split('/'))


def folder_of(key: str) -> str:
    """The folder of an object; '' for the root."""
    return key.rpartition('/')[0]


def name_of(key: str) -> str:
    """The name of an object in its folder."""
    return key.rpartition('/')[2]
