"""Indexes: one of a dataset whose parts have an index each, and those that were replaced.

A kept index is ``index.00001.json`` and so on, in the order of replacement. `merge_index` and `convert(append=True)`
keep it beside the new one. Its shards stay, so it can come back.

The arguments of `merge_index` are MosaicML Streaming's, with five differences. Parts at any depth get their whole path
below the root. JSONL shards are not taken for indexes. The columns of all parts must fit one another. No data are ever
deleted. Shards of the root itself are a part, too, and the replaced index stays.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace.convert.job import PLAN
from headrace.convert.stored_dataset import INDEX, PATIENT
from headrace.dataset.writing.place import StorePlace
from headrace.dataset.writing.start import ERASURE_PLAN, MARK
from headrace.errors import ArgumentError, ConfigError, ObjectNotFoundError
from headrace.errors.display import count_text
from headrace.errors.redaction import redact, warn
from headrace.format import ShardInfo, dump_index, parse_index
from headrace.format.shards import NAME_MEANINGS, differing_meanings
from headrace.storage import Retry, StoreOptions, local_path, open_store
from headrace.storage.output import Out, split_out

Place: TypeAlias = str | os.PathLike[str]

_SHARD: Final = re.compile(r'(?!\.headrace).*/shard\.\d+\.[^/]*')
_KEPT: Final = re.compile(r'index\.(\d{5,})\.json')
_THREADS: Final = 32  # concurrent requests: most of the time of a small object is a wait for its store


@dataclass(frozen=True, slots=True)
class _Part:
    place: StorePlace
    key: str
    folder: str  # where its shards are, relative to the merged index; '/'-separated, '' for the same folder

    @property
    def name(self) -> str:
        return f'{self.place.shown}/{self.key}'


def merge_index(*args: Any, keep_local: bool = True, download_timeout: float = 60, **kwargs: Any) -> None:
    """Write the index of a dataset whose parts have an index each.

    Call it as ``merge_index(out)`` for all ``index.json`` below a folder or URL, at any depth, in the order of their
    paths. Shards of `out` that its own index lists, and no part, come first. Or name the parts:
    ``merge_index(index_file_urls, out)``, in the order of the list, without repeats.

    The index that is replaced stays beside the new one: `rollback` brings it back.

    Args:
        *args: [index_file_urls, ] out [, keep_local [, download_timeout]].
            `out` is a folder, a URL, or both as ``(folder, URL)``. With both, the URL gives the indexes that the
            folder lacks, and both get the merged index. An element of `index_file_urls` is the path or the URL of an
            ``index.json``, or both as ``(path, URL)``. With both, the URL is read if the path does not exist. A part
            that is not below `out` is listed as if its folder were moved there.
        keep_local: with ``(folder, URL)``, whether the folder gets the merged index, too.
        download_timeout: seconds for one index, with its retries.
        **kwargs: `index_file_urls`, `out` and `store_options` (how to reach the stores) by name.

    Raises:
        ConfigError: an argument breaks a rule. Or parts have columns that do not fit, or the same shards. Or the list
            leaves out shards of `out` itself.
        FileExistsError: a writer or a conversion to `out` has not finished.
        ObjectNotFoundError: an index is not there, or `out` holds none (a FileNotFoundError).
        FormatError: an index is damaged.
        StorageError: a store answered with an error.
    """
    urls, out, keep_local, seconds, options = _arguments(args, keep_local, download_timeout, kwargs)
    folder, url = split_out(out, name='`out` of merge_index')
    if not keep_local and url is None:
        raise ConfigError(
            f'`keep_local=False` of merge_index needs a URL that gets the merged index, but `out` is {str(out)!r}. '
            f'Pass out=(folder, URL), or leave `keep_local` out.'
        )
    retry = Retry(timeout=seconds)
    places = [StorePlace(open_store(place, options), retry) for place in (folder, url) if place is not None]
    written = places if keep_local else places[-1:]
    for place in written:
        check_finished(place)
    keys: dict[str, StorePlace] = {}
    if urls is None:
        # Of two places that have an object, the first counts.
        keys = {info.key: place for place in reversed(places) for info in place.list()}
        parts = _parts_below(keys, places[-1].shown)
    else:
        parts = _named_parts(urls, (folder, url), options, retry)
    with ThreadPoolExecutor(min(_THREADS, len(parts))) as threads:
        tables = list(threads.map(_read, parts))
    unlisted = _own_shards(written, places, parts, tables, keys, is_list=urls is not None)
    if unlisted:
        parts, tables = [_Part(written[0], INDEX, ''), *parts], [unlisted, *tables]
    shards = _join(parts, tables)
    _warn_of_unlisted(keys, shards, out=places[-1].shown)
    merged = dump_index(shards, version_first=True)
    for place in written:
        replace_index(place, merged)


def _arguments(
    args: tuple[Any, ...], keep_local: bool, timeout: float, kwargs: dict[str, Any]
) -> tuple[list[Any] | None, Out, bool, float, StoreOptions]:
    names = ['index_file_urls', 'out', 'keep_local', 'download_timeout']
    if 'index_file_urls' not in kwargs and not (args and isinstance(args[0], list)):
        names = names[1:]
    unknown = sorted(set(kwargs) - {'index_file_urls', 'out', 'store_options'})
    given: dict[str, Any] = dict(zip(names, args, strict=False))
    if len(args) > len(names) or unknown or set(given) & set(kwargs) or ('out' not in given and 'out' not in kwargs):
        raise ArgumentError(
            f'Invalid arguments to merge_index: it takes ([index_file_urls, ] out, keep_local, download_timeout, '
            f'store_options), but got {len(args)} by position and {sorted(kwargs)} by name.'
        )
    given = {'keep_local': keep_local, 'download_timeout': timeout, 'store_options': StoreOptions(), **given, **kwargs}
    urls, out = given.get('index_file_urls'), given['out']
    if urls is not None and not urls:
        raise ConfigError('`index_file_urls` of merge_index names at least one index.json, but is empty.')
    return urls, out, given['keep_local'], given['download_timeout'], given['store_options']


def _warn_of_unlisted(keys: Collection[str], shards: Sequence[ShardInfo], *, out: str) -> None:
    """Say which folders have shards but none of the merged index: their writers have not finished."""
    merged = {shard.name.rpartition('/')[0] for shard in shards}
    left = {key.rpartition('/')[0] for key in keys if _SHARD.match(key)} - merged
    if left:
        warn(
            f'Left out of {out}/{INDEX}: the shards of {count_text(len(left), "folder")} without an '
            f'{INDEX}, such as {min(left)}. Finish their writers, or remove them, and merge again.'
        )


def _parts_below(keys: Mapping[str, StorePlace], root: str) -> list[_Part]:
    part_keys = [
        key
        for key in sorted(keys)
        if key.endswith(f'/{INDEX}') and not any(name.startswith('.headrace') for name in key.split('/'))
    ]
    if not part_keys:
        raise ObjectNotFoundError(
            f'No such file: no {INDEX} is in a folder below {root}, so no index was merged. Pass the folder '
            f'above the parts, or a list of their indexes.'
        )
    return [_Part(keys[key], key, key.removesuffix(f'/{INDEX}')) for key in part_keys]


def _named_parts(
    urls: Sequence[Place | tuple[Place, Place]], roots: Sequence[Place | None], options: StoreOptions, retry: Retry
) -> list[_Part]:
    places: list[tuple[str, str]] = []  # the folder that holds it, its file name
    for url in dict.fromkeys(urls):
        place = _readable(url)
        folder, _, name = place.rpartition('/')
        places.append((folder, name) if name.endswith('.json') else (place, INDEX))
    above = Counter(folder.rpartition('/')[0] for folder, _ in dict.fromkeys(places))
    stores: dict[str, StorePlace] = {}
    parts: list[_Part] = []
    for folder, name in dict.fromkeys(places):
        # Thousands of parts in one folder share a store, and so its connections.
        parent, _, last = folder.rpartition('/')
        is_shared = above[parent] > 1
        root, key = (parent, f'{last}/{name}') if is_shared else (folder, name)
        if root not in stores:
            stores[root] = StorePlace(open_store(root or '/', options), retry)
        parts.append(_Part(stores[root], key, _below(folder, roots)))
    return parts


def _readable(url: Place | tuple[Place, Place]) -> str:
    if not isinstance(url, tuple):
        return _plain(url)
    local = _plain(url[0])
    if Path(local).exists() or not os.fspath(url[1]):
        return local
    return _plain(url[1])


def _plain(place: Place) -> str:
    path = local_path(place)
    return os.fspath(place).strip().rstrip('/') if path is None else os.path.abspath(path.strip())  # noqa: PTH100


def _below(folder: str, roots: Sequence[Place | None]) -> str:
    for root in roots:
        if root is not None and f'{folder}/'.startswith(f'{_plain(root)}/'):
            return folder[len(_plain(root)) + 1 :]
    return folder.rpartition('/')[2]


def _read(part: _Part) -> Sequence[ShardInfo]:
    try:
        data = part.place.read(part.key)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(f'Failed to download {INDEX}: {part.name} does not exist: {error}') from error
    return _parse(data, part.name)


def _parse(data: bytes, source: str) -> Sequence[ShardInfo]:
    # Nothing is read of unsafe columns here: the reader of the merged index is asked for permission again.
    return parse_index(data, source=source, allow_unsafe_types=True, allow_empty=True)


def _own_shards(
    written: Sequence[StorePlace],
    places: Sequence[StorePlace],
    parts: Sequence[_Part],
    tables: Sequence[Sequence[ShardInfo]],
    keys: Collection[str],
    *,
    is_list: bool,
) -> list[ShardInfo]:
    """Shards of an index to be replaced that no part lists and whose files are there.

    Only parts that the caller named may be left out with an index of their own.
    """
    listed = {
        f'{part.folder}/{shard.name}'.lstrip('/') for part, table in zip(parts, tables, strict=True) for shard in table
    }
    by_root: dict[str, list[ShardInfo]] = {}
    for place in written:
        index = place.read_if_there(INDEX)
        if index is not None:
            root = f'{place.shown}/{INDEX}'
            by_root[root] = [shard for shard in _parse(index, root) if shard.name not in listed]
    if not any(by_root.values()):
        return []
    root, unlisted = next(iter(by_root.items()))
    other = next((name for name, shards in by_root.items() if shards != unlisted), None)
    if other is not None:
        raise ConfigError(
            f'A folder and a URL that get one index hold the same shards, but {root} and {other} differ in shards that '
            f'no part lists. Merge one of them alone, or remove the index that is out of date.'
        )
    gone = {shard.name for shard in _missing_shards(places, unlisted, keys)}
    if gone:
        lost = [shard for shard in unlisted if shard.name in gone]
        warn(f'Left out of {root}: {_counted(lost)}, whose files are gone.')
    unlisted = [shard for shard in unlisted if shard.name not in gone]
    if not is_list or not unlisted:
        return unlisted
    alone = [shard for shard in unlisted if '/' not in shard.name]
    if alone:
        raise ConfigError(
            f'A merge makes no dataset smaller, but the list of parts leaves out {_counted(alone)} of {root} itself. '
            f'Name {root} as a part, too, or merge without a list.'
        )
    warn(f'Left out of {root}: {_counted(unlisted)}, since no part of the list has them.')
    return []


def _counted(shards: Sequence[ShardInfo]) -> str:
    samples = sum(shard.samples for shard in shards)
    return f'{count_text(len(shards), "shard")} with {count_text(samples, "sample")}, such as {shards[0].name}'


def _join(parts: Sequence[_Part], tables: Sequence[Sequence[ShardInfo]]) -> list[ShardInfo]:
    """The shards of all parts, in order, without the indexes that an index above them repeats."""
    shards = [
        [shard.moved(part.folder) if part.folder else shard for shard in table]
        for part, table in zip(parts, tables, strict=True)
    ]
    owner: dict[str, _Part] = {}
    kept: set[int] = set()
    # A merged index stands above those that it was merged from, so its folder's name is shorter.
    for number in sorted(range(len(parts)), key=lambda i: len(parts[i].folder)):
        part, names = parts[number], [shard.name for shard in shards[number]]
        repeated = [name for name in names if name in owner]
        above = owner[repeated[0]] if repeated else part
        if repeated and (above.folder == part.folder or len(repeated) < len(names)):
            raise ConfigError(
                f'The parts of a merged index hold different shards, but {part.name} and {above.name} both have '
                f'{repeated[0]!r}. Give their folders different names, or leave one of them out.'
            )
        if not repeated:
            owner.update(dict.fromkeys(names, part))
            kept.add(number)
    _check_columns([(parts[i], shard) for i in sorted(kept) for shard in shards[i][:1]])
    return [shard for i in sorted(kept) for shard in shards[i]]


def _check_columns(firsts: Sequence[tuple[_Part, ShardInfo]]) -> None:
    """Refuse parts whose first shards have columns of other names, kinds or meanings."""
    kinds: Mapping[str, str] | None = None
    for part, shard in firsts:
        part_kinds = shard.schema.kinds()
        kinds = kinds or part_kinds
        if part_kinds != kinds:
            differing = sorted(name for name in {*part_kinds, *kinds} if part_kinds.get(name) != kinds.get(name))[0]
            raise ConfigError(
                f'The parts of a dataset have the same columns, but column {differing!r} is '
                f'{kinds.get(differing, "missing")} in {firsts[0][0].name} and '
                f'{part_kinds.get(differing, "missing")} in {part.name}. Write one of them again, or merge them as two '
                f'streams.'
            )
    differences = differing_meanings(
        (shard.schema.kinds(), shard.schema.meaning_of, part.name) for part, shard in firsts
    )
    for difference in differences.values():
        raise ConfigError(
            f'Columns of a dataset mean the same in all parts, but {difference}. Write one of them again with the type '
            f'of the other.{NAME_MEANINGS}'
        )


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """An index that was replaced."""

    name: str
    """Of its file."""
    shards: int
    samples: int


def kept_indexes(out: str | os.PathLike[str], *, options: StoreOptions | None = None) -> list[KeptIndex]:
    """The indexes of a dataset that were replaced, the oldest first.

    Args:
        out: folder or URL of the dataset.
        options: how to reach the store.

    Raises:
        FormatError: one is damaged.
        StorageError: the store failed.
    """
    place = StorePlace(open_store(out, options), PATIENT)
    return [_counts_of(name, _parse(place.read(name), f'{place.shown}/{name}')) for name in _kept(place)]


def rollback(out: str | os.PathLike[str], to: str, *, options: StoreOptions | None = None) -> KeptIndex:
    """Bring a replaced index back. The one that it replaces is kept in its turn, and no shard is touched.

    Args:
        out: folder or URL of the dataset.
        to: name of the kept index.
        options: how to reach the store.

    Returns:
        The index that was replaced now, under the name that it has from now on.

    Raises:
        ConfigError: no kept index has this name, or shards of it are gone.
        FileExistsError: a writer or a conversion to `out` has not finished.
        StorageError: the store failed.
    """
    place = StorePlace(open_store(out, options), PATIENT)
    check_finished(place)
    names = list(_kept(place))
    if to not in names:
        raise ConfigError(
            f'A rollback brings back an index that was kept, but got {to!r}, and {place.shown} has '
            f'{", ".join(names) or "none"}. Name one of them.'
        )
    data = place.read(to)
    shards = _parse(data, f'{place.shown}/{to}')
    gone = _missing_shards([place], shards, ())
    if gone:
        raise ConfigError(
            f'An index comes back with all of its shards, but {len(gone)} of the {len(shards)} of '
            f'{place.shown}/{to} are gone, such as {gone[0].name}. Restore them, or name another '
            f'index.'
        )
    name = replace_index(place, data)
    return _counts_of(name or to, _parse(place.read(name), f'{place.shown}/{name}') if name else shards)


def _counts_of(name: str, shards: Sequence[ShardInfo]) -> KeptIndex:
    return KeptIndex(name, len(shards), sum(shard.samples for shard in shards))


def replace_index(place: StorePlace, index: bytes) -> str | None:
    """Store an index; the name under which the replaced one is kept, None if there was none, or it was the same."""
    place.remove_unfinished()
    before = place.read_if_there(INDEX)
    if before == index:
        return None
    name = None if before is None else keep_index(place, before)
    place.write(INDEX, index)
    return name


def keep_index(place: StorePlace, index: bytes) -> str:
    kept = _kept(place)
    for name, size in kept.items():
        if size == len(index) and place.read(name) == index:
            return name
    name = f'index.{1 + max(map(_number, kept), default=0):05}.json'
    place.write(name, index)
    return name


def check_finished(place: StorePlace) -> None:
    """Refuse a dataset whose index a writer, a conversion or an erasure is about to replace."""
    refuse_erasure(place.shown, [name for name in (ERASURE_PLAN,) if place.has(name)])
    for name in (MARK, PLAN):
        if place.has(name):
            raise FileExistsError(
                redact(
                    f'{place.shown} is still being written: it holds {name}. Wait for its writer. If that was killed, '
                    f'run it again to continue, or remove that file to give its new samples up.'
                )
            )


def refuse_erasure(shown: str, keys: Collection[str]) -> None:
    """Refuse a dataset with an erasure that was killed, whose plan would be carried out on other shards later."""
    if ERASURE_PLAN in keys:
        raise FileExistsError(
            redact(
                f'{shown} has an unfinished erasure: it holds {ERASURE_PLAN}. Run `headrace erase` again to finish it.'
            )
        )


def _missing_shards(places: Sequence[StorePlace], shards: Iterable[ShardInfo], keys: Container[str]) -> list[ShardInfo]:
    """The shards of which no place has all files, compressed or not. `keys` are known to be there."""

    def is_there(name: str) -> bool:
        return name in keys or any(place.has(name) for place in places)

    def is_missing(shard: ShardInfo) -> bool:
        return not all(
            is_there(file.raw.basename) or (file.zip and is_there(file.zip.basename)) for file in shard.files
        )

    shards = list(shards)
    with ThreadPoolExecutor(_THREADS) as threads:
        return [shard for shard, missing in zip(shards, threads.map(is_missing, shards), strict=True) if missing]


def _kept(place: StorePlace) -> dict[str, int]:
    kept_indexes = [(info.key, info.size) for info in place.list('index.') if _KEPT.fullmatch(info.key)]
    return dict(sorted(kept_indexes, key=lambda pair: _number(pair[0])))


def _number(name: str) -> int:
    match = _KEPT.fullmatch(name)
    assert match is not None
    return int(match[1])
