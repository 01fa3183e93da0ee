"""An output apart from its source: `exist_ok` empties the output, and a restart lists the source again."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable
from typing import Final, NoReturn

from headrace.convert.inputs.records import Place
from headrace.convert.job import PLAN
from headrace.errors import ConfigError
from headrace.sources.source_store import glob_pattern, has_glob, split_glob
from headrace.storage import Store, local_path, split_url
from headrace.storage.stores.local import LocalStore

_WRITTEN: Final = ('index.json', 'shard.00000.00000.mds', PLAN)  # names of files that a conversion writes
_ALIASES: Final = {'azure-dl': 'azure', 's3a': 's3', 's3n': 's3'}  # schemes of the same store, also those of Spark
_LONGEST_PATH: Final = 4096


def lies_in(inner: Place, outer: Place) -> bool:
    """Whether a path or URL is another one or below it. Paths are compared as their symbolic links resolve."""
    return f'{_resolved(inner)}/'.startswith(f'{_resolved(outer)}/')


def _resolved(place: Place) -> str:
    path = local_path(place)
    if path is not None:
        return os.path.realpath(path).rstrip('/')
    scheme, rest = split_url(place)
    return f'{_ALIASES.get(scheme, scheme)}:/{posixpath.normpath("/" + rest.lstrip("/"))}'.rstrip('/')


def check_apart(source: object, out: Place) -> None:
    """Refuse an output within its source, which a restart would list; or around it, which would be emptied."""
    if not isinstance(source, str | os.PathLike):
        return
    place: str = os.fspath(source)  # pyright: ignore[reportUnknownArgumentType] - a path of text
    is_chosen = False
    if has_glob(place):
        root, glob = split_glob(place)
        below = _resolved(out).removeprefix(_resolved(root)).strip('/')
        names = (posixpath.join(below, name) for name in _WRITTEN)
        is_chosen = lies_in(out, root) and any(map(glob_pattern(glob).fullmatch, names))
    if is_chosen or lies_in(place, out) or lies_in(out, place):
        _refuse(out, f'it and the source {place!r} lie in one another')


def check_keeps(places: Iterable[Place], store: Store, *, are_files: bool = False) -> None:
    """Refuse an output that holds inputs, which would be deleted, or lies within one, if not all inputs `are_files`."""
    if not isinstance(store, LocalStore):
        for place in places:
            if split_url(place)[0] and _path(place) is None:
                _check(place, store.url, is_held=lies_in(place, store.url), is_around=True)
        return
    # By identity, since an input may be a link to a file of the output, and the output may hold links.
    infos = (os.stat(store.root / listed.key) for listed in store.list(''))  # noqa: PTH116
    held = {(info.st_dev, info.st_ino) for info in infos}
    if are_files and not held:
        return
    for place in places:
        # A text such as a dot may name a folder by chance.
        is_path = not isinstance(place, str) or ('/' in place and bool(place.strip('./')))
        path = _path(place) if held or is_path else None
        if not path or len(path) > _LONGEST_PATH:
            continue
        try:
            info = os.stat(path)  # noqa: PTH116 - there may be millions
        except (OSError, ValueError):
            continue
        is_folder = stat.S_ISDIR(info.st_mode)
        is_held = (info.st_dev, info.st_ino) in held or (bool(held) and is_folder and lies_in(path, store.root))
        _check(place, str(store.root), is_held=is_held, is_around=is_folder and is_path)


def _path(place: Place) -> str | None:
    try:
        return local_path(place)
    except ConfigError:
        return None


def _check(place: Place, out: str, *, is_held: bool, is_around: bool) -> None:
    if is_held:
        _refuse(out, f'it holds the input {os.fspath(place)!r}, which the conversion would delete')
    if is_around and lies_in(out, place):
        _refuse(out, f'it and the input {os.fspath(place)!r} lie in one another')


def _refuse(out: Place, reason: str) -> NoReturn:
    raise ConfigError(
        f'`out` of convert lies apart from its source, but is {str(out)!r}: {reason}. Choose another `out`.'
    )
