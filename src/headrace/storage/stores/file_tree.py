"""Listings and temporary names of stores whose objects are files in folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from headrace.storage.protocol import ObjectInfo, check_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ['TEMPORARY', 'is_temporary', 'temporary_name', 'walk']

TEMPORARY: Final = '.headrace-put-'
"""Beginning of the names under which objects are written before they appear; never listed."""


def temporary_name() -> str:
    """A name that no other file has, for an object that is being written."""
    return f'{TEMPORARY}{os.urandom(8).hex()}'


def is_temporary(key: str) -> bool:
    """Whether this is an object that is being written, or was when its writer died."""
    return key.rpartition('/')[2].startswith(TEMPORARY)


def walk(prefix: str, children: Callable[[str], Iterable[ObjectInfo | str]]) -> list[ObjectInfo]:
    """All objects whose key begins with ``prefix``, in order of their keys; folders that hold none are not opened.

    Args:
        prefix: Plain text.
        children: Returns the objects and the keys of folders in a folder. It takes the folder's key, '' for the root.
            Nothing if there is no such folder, which may have been deleted meanwhile.
    """
    folder, _, _ = check_prefix(prefix).rpartition('/')
    folders, found = [folder], list[ObjectInfo]()
    while folders:
        for child in children(folders.pop()):
            if isinstance(child, str):
                if f'{child}/'.startswith(prefix) or prefix.startswith(f'{child}/'):
                    folders.append(child)
            elif child.key.startswith(prefix) and not is_temporary(child.key):
                found.append(child)
    return sorted(found, key=lambda info: info.key)
