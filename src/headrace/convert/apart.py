"""An output apart from its source: `exist_ok` empties the output, and a restart lists the source again."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NoReturn, TypeAlias, cast

from headrace.convert.record import PLAN
from headrace.errors import ConfigError
from headrace.sources.source_store import glob_pattern, has_glob, split_glob
from headrace.storage import Store, local_path, split_url
from headrace.storage.stores.local import LocalStore

__all__ = ['Place', 'check_apart', 'check_keeps', 'lies_in', 'places_in']

Place: TypeAlias = str | os.PathLike[str]
_WRITTEN: Final = ('index.json', 'shard.00000.00000.mds', PLAN)
"""Names of files that a conversion writes."""
_ALIASES: Final = {'azure-dl': 'azure', 's3a': 's3', 's3n': 's3'}
"""Schemes of the same store, also those of Spark."""
_LONGEST_PATH: Final = 4096
_MANY: Final = 64
_DEPTH: Final = 4


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
    """Refuse an output within its source, which a restart would list; or around it, which would be emptied.

    Args:
        source: of `convert`. Only a path or URL has a place.
        out: the output.

    Raises:
        ConfigError: they lie in one another, or the source is a glob that chooses files of the output.
    """
    if not isinstance(source, str | os.PathLike):
        return
    place = cast('Place', source)
    if lies_in(place, out) or lies_in(out, place) or _chooses(os.fspath(place), out):
        _refuse(out, f'it and the source {os.fspath(place)!r} lie in one another')


def _chooses(source: str, out: Place) -> bool:
    """Whether a glob chooses files that a conversion to `out` writes."""
    if not has_glob(source):
        return False
    root, glob = split_glob(source)
    if not lies_in(out, root):
        return False
    below = _resolved(out).removeprefix(_resolved(root)).strip('/')
    pattern = glob_pattern(glob)
    return any(pattern.fullmatch(posixpath.join(below, name)) for name in _WRITTEN)


def check_keeps(places: Iterable[Place], store: Store, *, are_files: bool = False) -> None:
    """Refuse an output that holds inputs, which would be deleted, or that lies within one.

    Args:
        places: paths and URLs of the inputs. A text that names no file is none.
        store: the output.
        are_files: whether the inputs were listed as files. Nothing lies within one, so an empty folder needs no look at
            each.

    Raises:
        ConfigError: as said. Nothing has been changed.
    """
    if not isinstance(store, LocalStore):
        for place in places:
            if split_url(place)[0] and _local_path(place) is None:
                _check_url(place, store.url)
        return
    # By identity, since an input may be a link to a file of the output, and the output may hold links.
    held = set(_identities(store))
    if are_files and not held:
        return
    for place in places:
        if held or _is_surely_path(place):
            _check_path(place, store, held)


def _check_url(place: Place, out: str) -> None:
    if lies_in(place, out):
        _refuse_loss(place, out)
    if lies_in(out, place):
        _refuse(out, f'it and the input {os.fspath(place)!r} lie in one another')


def _check_path(place: Place, store: LocalStore, held: set[tuple[int, int]]) -> None:
    path = _local_path(place)
    if not path or len(path) > _LONGEST_PATH:
        return
    try:
        info = os.stat(path)  # noqa: PTH116 - there may be millions
    except (OSError, ValueError):
        return
    if (info.st_dev, info.st_ino) in held or (held and stat.S_ISDIR(info.st_mode) and lies_in(path, store.root)):
        _refuse_loss(place, store.url)
    if stat.S_ISDIR(info.st_mode) and _is_surely_path(place) and lies_in(store.root, path):
        _refuse(store.url, f'it and the input {os.fspath(place)!r} lie in one another')


def _identities(store: LocalStore) -> Iterator[tuple[int, int]]:
    for listed in store.list(''):
        info = os.stat(store.root / listed.key)  # noqa: PTH116
        yield info.st_dev, info.st_ino


def _is_surely_path(place: Place) -> bool:
    """Whether it is no text that names a folder by chance, such as a dot."""
    return not isinstance(place, str) or ('/' in place and bool(place.strip('./')))


def _local_path(place: Place) -> str | None:
    """As `local_path`, also of texts that are no valid URLs."""
    try:
        return local_path(place)
    except ConfigError:
        return None


def places_in(value: object, depth: int = _DEPTH) -> Iterator[Place]:
    """Texts and paths in an input or sample, also within mappings and sequences. Long lists of numbers are left out."""
    if isinstance(value, str | os.PathLike):
        yield cast('Place', value)
        return
    if isinstance(value, Mapping):
        value = list(cast('Mapping[object, object]', value).values())
    if not depth or not isinstance(value, list | tuple | set | frozenset):
        return
    values = cast('list[object]', value)
    if len(values) > _MANY and not any(isinstance(first, str | os.PathLike) for first in islice(values, 1)):
        values = islice(values, _MANY)
    for inner in values:
        yield from places_in(inner, depth - 1)


def _refuse_loss(place: Place, out: str) -> NoReturn:
    _refuse(out, f'it holds the input {os.fspath(place)!r}, which the conversion would delete')


def _refuse(out: Place, reason: str) -> NoReturn:
    raise ConfigError(
        f'`out` of convert lies apart from its source, but is {str(out)!r}: {reason}. Choose another `out`.'
    )
