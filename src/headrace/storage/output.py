"""Outputs: the folder, the URL of a store, or the pair of both that a dataset is written to. They are checked first."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from headrace.errors import CacheError, ConfigError, StorageError
from headrace.errors.mapping import mapping_errors
from headrace.storage.cache.locks import hold, release, try_lock_file
from headrace.storage.protocol import ObjectInfo, Store
from headrace.storage.resolve import local_path
from headrace.storage.stores.local import LocalStore, mapped_output_errors

Out: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]]
"""A folder, a URL, or both. A ``file://`` URL is a folder."""


def split_out(out: Out, *, name: str = '`out`') -> tuple[Path | None, str | None]:
    """The folder and the URL of an output; None if it has none. A list of two is a pair, as in YAML."""
    is_pair = isinstance(out, tuple | list)
    places = cast('Sequence[Any]', out if is_pair else (out,))
    if len(places) != (2 if is_pair else 1) or not all(
        isinstance(place, str | os.PathLike) and os.fspath(place) for place in places
    ):
        raise ConfigError(f'{name} must be a folder, a URL, or a pair (folder, URL), but is {out!r}.')
    for place in places:
        check_output(place)
    path = local_path(places[0])
    if not is_pair:
        return (None, os.fspath(places[0])) if path is None else (Path(path), None)
    if path is None:
        raise ConfigError(f'{name} must be a pair of a folder and a URL, in this order, but is {out!r}.')
    return Path(path), os.fspath(places[1])


def check_output(place: str | os.PathLike[str]) -> None:
    """Refuse an output that is a file, or lies below one. URLs of other stores pass."""
    path = local_path(place)
    if path is None:
        return
    with mapped_output_errors(Path(path)):
        there = _first_there(Path(path))
        is_file = there is not None and not there.is_dir()
    if is_file:
        raise ConfigError(
            f'An output is a folder, but is {os.fspath(place)!r}, and {there} is a file. Choose another path, or '
            f'remove the file.'
        )


def make_folder(path: Path) -> None:
    """Make the folder of an output, and those above it, unless it is there."""
    check_output(path)
    with mapped_output_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def list_output(store: Store) -> list[ObjectInfo]:
    """The objects of an output, which may be emptied. Files of other folders, to which links in it lead, are none."""
    infos = list(store.list(''))
    if not isinstance(store, LocalStore):
        return infos
    folders = {parent for info in infos for parent in Path(info.key).parents}
    links = {folder for folder in folders if folder.parts and (store.root / folder).is_symlink()}
    return [info for info in infos if links.isdisjoint(Path(info.key).parents)]


@mapping_errors
def mapped_lock_errors(path: Path) -> Generator[None]:
    """Say of a lock that failed that it is one of an output."""
    try:
        yield
    except CacheError as error:
        raise StorageError(
            f'The folder of an output needs a file system with working file locks (flock), but locking {path} failed: '
            f'{error.__cause__}. Choose an `out` on a local disk, or have the file system mounted with locks.'
        ) from error


def open_lock(path: Path) -> int:
    """Open, or make, a file beside an output that is there to be locked."""
    with mapped_output_errors(path.parent):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def lock_output(path: Path) -> int | None:
    """Open, or make, and lock the file that claims an output; None if another process has it.

    FileNotFoundError: another process has removed it meanwhile.
    """
    handle = open_lock(path)
    hold(handle)
    try:
        with mapped_lock_errors(path):
            is_free = try_lock_file(handle, path)
        if is_free and os.path.samestat(os.fstat(handle), path.stat(follow_symlinks=False)):
            return handle
    except BaseException:
        release(handle)
        raise
    release(handle)
    return None


def _first_there(path: Path) -> Path | None:
    """A path, or the lowest above it, that is there. A link that leads nowhere is there, too."""
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), None)
