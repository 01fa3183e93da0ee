"""Where a writer starts: at nothing, behind a finished dataset, or behind the whole shards of a killed writer.

The journal lists the shards that are whole, and is kept beside them until the dataset is finished. A shard is listed
after its files are stored. So the next writer knows which shards of a killed one are whole, with their sizes and
hashes. It reads only the head of the last one, which may store costs. The journal is a number of small indexes, each
of some shards, because stores cannot append to an object.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.dataset.arguments import check_kind
from headrace.dataset.writing.place import Place, delete_or_warn
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.format import ShardInfo, dump_index, parse_index
from headrace.format.compression import LONGEST_BLOCK, unpack_head
from headrace.format.costs import stored_costs

JOURNAL: Final = re.compile(r'\.headrace-written\.\d{5,}')  # Names of the journal's files.
_NUMBER: Final = re.compile(r'shard\.(\d{5,})\.[^/]*')
_SHARDS: Final = 64  # Shards in a file of the journal: it is stored again after each of them.


def shard_number(name: str) -> int:
    """The number in the name of a shard's file; -1 if it is not a name that writers give."""
    match = _NUMBER.fullmatch(name)
    return int(match[1]) if match else -1


def next_number(names: Iterable[str]) -> int:
    """The least number above those in the names of shards' files."""
    return max(map(shard_number, names), default=-1) + 1


def read_journal(place: Place, names: Iterable[str]) -> list[ShardInfo]:
    """The shards of a journal, in the order of their numbers. `names`: of all files there."""
    by_number: dict[int, ShardInfo] = {}
    for name in sorted(name for name in names if JOURNAL.fullmatch(name)):
        source = f'{place.shown}/{name}'
        for shard in parse_index(place.read(name), source=source, allow_unsafe_types=True, allow_empty=True):
            by_number[shard_number(shard.name)] = shard
    return [by_number[number] for number in sorted(by_number)]


class Journal:
    """The journal of one writer, whose threads add shards."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._shards: list[ShardInfo] = []
        self._new: list[ShardInfo] = []
        self._is_writing = False

    def begin(self, whole: Sequence[ShardInfo], names: Iterable[str]) -> None:
        """Start with the whole shards of a killed writer, in place of its journal in the files `names`."""
        if whole:
            self._next_file(dump_index(whole))
        for name in names:
            if name not in self._names:
                self._place.delete(name)

    def add(self, shard: ShardInfo) -> None:
        """List a shard whose files are stored. A thread that finds another one at work leaves its shard to that one."""
        with self._lock:
            self._new.append(shard)
            if self._is_writing:
                return
            self._is_writing = True
        try:
            while True:
                with self._lock:
                    if not self._new:
                        self._is_writing = False
                        return
                    is_next = not 0 < len(self._shards) < _SHARDS
                    self._shards = self._new if is_next else self._shards + self._new
                    self._new = []
                if is_next:
                    self._next_file(dump_index(self._shards))
                else:
                    self._place.write(self._names[-1], dump_index(self._shards))
        except BaseException:
            with self._lock:
                self._is_writing = False
            raise

    def remove(self, others: Iterable[str]) -> None:
        """Delete the journal of a finished dataset, and other files with it. Warns of those that stay."""
        delete_or_warn(self._place, dict.fromkeys([*self._names, *others]))

    def _next_file(self, data: bytes) -> None:
        name = f'.headrace-written.{len(self._names):05}'
        self._names.append(name)
        self._place.write(name, data)


INDEX: Final = 'index.json'
MARK: Final = '.headrace-writing'
"""Name of the file in a folder, and at the prefix of a store, that marks an unfinished dataset."""
_SHARED: Final = ('format', 'columns', 'column_names', 'column_encodings', 'newline', 'separator')
"""The settings that all shards of a dataset share."""
_ALL: Final = (*_SHARED, 'compression', 'hashes', 'size_limit')
PART: Final = re.compile(r'part-\d{5,}-[0-9a-f]{8}-[0-9a-f]{8}')
"""Names of the folders of parts, which a writer of parts makes."""
ERASURE: Final = '.headrace-erasing'  # The job folder of an erasure.
ERASURE_PLAN: Final = f'{ERASURE}/plan.json'  # Names the shards that an unfinished erasure writes.
_REPLACED: Final = re.compile(r'index\.\d{5,}\.json')
"""Names of indexes beside the dataset's, whose shards stay: those that were replaced, and can be brought back."""
_FILE: Final = (
    r'(shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.(br|bz2|gz|snappy|zstd))?|index\.json\.tmp'
    rf'|{JOURNAL.pattern})(\.tmp)?'
)
_OURS: Final = re.compile(rf'{_FILE}|{PART.pattern}(/({_FILE}|index\.json|{re.escape(MARK)}))?')


@dataclass(frozen=True, slots=True)
class Terms:
    """The caller's permissions for the files that a writer finds."""

    exist_ok: bool = False
    append: bool = False
    resume: bool = False
    settings: Callable[[ShardInfo], Mapping[str, object]] = ShardInfo.entry
    """The writer's settings, given a shard that has the columns which the writer may have left out."""

    def __post_init__(self) -> None:
        """Refuse text, before `exist_ok='no'` deletes a dataset."""
        for name in ('exist_ok', 'append', 'resume'):
            check_kind(name, getattr(self, name), bool)


@dataclass(frozen=True, slots=True)
class Start:
    """The files that a writer keeps, and those that it removes."""

    before: tuple[ShardInfo, ...] = ()  # The shards of the finished dataset that it appends to.
    whole: tuple[ShardInfo, ...] = ()  # The shards of the killed writer that it continues.
    is_finished: bool = False  # Whether the killed writer had stored the index.
    obsolete: tuple[str, ...] = ()
    """Files to remove, in this order: at once, or when the writer finishes if the dataset is finished."""
    journal: tuple[str, ...] = ()  # Files of the journal, which the next one replaces.
    taken: int = 0  # The least number above those of shards that stay.

    replaced: frozenset[str] = frozenset()  # The files, or folders, of shards that replaced indexes name.

    @property
    def shards(self) -> list[ShardInfo]:
        return [*self.before, *self.whole]

    @property
    def roots(self) -> set[str]:
        """The files of these shards and of replaced indexes, or the folders of parts that hold them."""
        return _roots(self.shards) | self.replaced


def is_ours(name: str) -> bool:
    """Whether writers give this name to a file of an unfinished dataset."""
    return _OURS.fullmatch(name) is not None


def find_start(
    place: Place, sizes: Mapping[str, int], beside: Mapping[str, int] | None, marked: int | None, terms: Terms
) -> Start:
    """Decide where to start, without a change.

    `beside`: the files of a folder that is to hold the same shards; None: there is none. `marked`: how many shards the
    index had before the writer whose mark is there; None: not known. FileExistsError: `place` holds something that
    `terms` allow neither to continue nor to remove. ConfigError: the killed writer appended, and the caller does not.
    """
    is_left = MARK in sizes or any(map(JOURNAL.fullmatch, sizes))
    if INDEX in sizes and (terms.append or terms.resume):
        replaced = frozenset(
            _roots(shard for name in filter(_REPLACED.fullmatch, sizes) for shard in _read(place, name))
        )
        replaced |= _planned(place, sizes)
        start = _behind_index(place, sizes, beside, marked, terms, _read(place, INDEX), replaced, is_left=is_left)
        return dataclasses.replace(start, replaced=replaced)
    foreign = [name for name in sizes if name != MARK and not (is_left and is_ours(name))]
    if foreign and not terms.exist_ok:
        raise refuse(place.shown, foreign[0], len(sizes) - 1)
    whole = _whole(read_journal(place, sizes), 0, sizes, beside) if terms.resume and is_left else []
    return _check_settings(place, _unfinished((), whole, sizes, next_number(_names(whole))), terms)


def _behind_index(
    place: Place,
    sizes: Mapping[str, int],
    beside: Mapping[str, int] | None,
    marked: int | None,
    terms: Terms,
    index: Sequence[ShardInfo],
    replaced: frozenset[str],
    *,
    is_left: bool,
) -> Start:
    journal, names = read_journal(place, sizes), _names(index)
    roots = set(map(_root, names))
    added = [shard for shard in journal if roots.isdisjoint(shard.stored)]
    kept = roots | replaced
    leftovers = [name for name in sizes if is_left and is_ours(name) and _root(name) not in kept]
    # Without a mark, the writer of the journal had finished.
    new = 0 if MARK not in sizes else len(journal) if marked is None else len(index) - marked
    if terms.resume and not added and (new > 0 or not terms.append):
        # The writer was killed after it stored the index, or had finished.
        before = len(index) - new if new > 0 else 0
        start = Start(tuple(index[:before]), tuple(index[before:]), True, tuple(leftovers), (), next_number(names))
        return _check_settings(place, start, terms)
    if not terms.append:
        raise ConfigError(
            f'A writer with `append=True` was killed while it added to {place.shown}. Pass `append=True` too, beside '
            f'`resume=True`.'
        )
    taken = {*sizes, *replaced}.difference(leftovers)
    first = next_number([*names, *taken])
    whole = _whole(added, first, sizes, beside) if terms.resume else []
    return _check_settings(place, _unfinished(index, whole, leftovers, max(first, next_number(_names(whole)))), terms)


def _planned(place: Place, sizes: Mapping[str, int]) -> set[str]:
    """The files that an unfinished erasure has written, or is going to write."""
    if ERASURE not in map(_root, sizes):
        return set()
    with contextlib.suppress(ObjectNotFoundError):
        return {name for task in json.loads(place.read(ERASURE_PLAN))['tasks'] for name in task['new']}
    return set()


def _read(place: Place, name: str) -> list[ShardInfo]:
    source = f'{place.shown}/{name}'
    return list(parse_index(place.read(name), source=source, allow_unsafe_types=True, allow_empty=True))


def _stored_cost(place: Place, shard: ShardInfo) -> str | None:
    ((name, stored),) = shard.stored.items()

    def head(size: int) -> bytes:
        if shard.compression is None:
            return place.read(name, min(size, stored))
        return unpack_head(shard.compression, place.read(name, min(size + LONGEST_BLOCK, stored)), size)

    costs = stored_costs(shard, head)
    return None if costs is None else costs[0]


def _check_settings(place: Place, start: Start, terms: Terms) -> Start:
    for shards, names, what in (
        (start.before[-1:], _SHARED, 'A dataset, and samples that are appended,'),
        (start.whole[-1:], _ALL, 'A killed writer, and the one that continues it,'),
    ):
        for shard in shards:
            theirs, ours = shard.entry(), terms.settings(shard)
            if 'cost' in ours and shard.format == 'mds' and shard.samples:
                stored = _stored_cost(place, shard)
                if stored is not None or names is _ALL:  # streams read appended shards without costs whole
                    theirs['cost'] = stored
                    names = (*names, 'cost')  # noqa: PLW2901
            different = next((name for name in names if theirs.get(name) != ours.get(name)), None)
            if different is not None:
                raise ConfigError(
                    f'{what} must have the same {different}, but they are {theirs.get(different)!r:.300} and '
                    f'{ours.get(different)!r:.300}. Give the first.'
                )
    return start


def refuse(shown: str, name: str, more: int) -> FileExistsError:
    return FileExistsError(
        f'Directory is not empty: {shown} holds {name} and {more} more. Choose another `out`, or pass `exist_ok=True` '
        f'to have it emptied. `append=True` adds to a finished dataset.'
    )


def _whole(
    journal: Sequence[ShardInfo], first: int, sizes: Mapping[str, int], beside: Mapping[str, int] | None
) -> list[ShardInfo]:
    verified: list[ShardInfo] = []
    for number, shard in enumerate(journal, first):
        there = all(
            found_there is None or found_there.get(name) == size
            for found_there in (sizes, beside)
            for name, size in shard.stored.items()
        )
        if not there or shard_number(shard.name) != number:
            break
        verified.append(shard)
    return verified


def _unfinished(before: Sequence[ShardInfo], whole: Sequence[ShardInfo], names: Iterable[str], taken: int) -> Start:
    """A start that removes all files but those of whole shards."""
    kept = {MARK, *_names(whole)}
    others = [name for name in names if name not in kept]
    journal = tuple(name for name in others if whole and JOURNAL.fullmatch(name))
    # The index goes first: from here on this is not a dataset. Then the journal, which vouches for shards; but beside
    # whole shards the next journal replaces it.
    obsolete = sorted(
        set(others).difference(journal), key=lambda name: (name != INDEX, JOURNAL.fullmatch(name) is None, name)
    )
    return Start(tuple(before), tuple(whole), False, tuple(obsolete), journal, taken)


def _roots(shards: Iterable[ShardInfo]) -> set[str]:
    return set(map(_root, _names(shards)))


def _root(name: str) -> str:
    return name.partition('/')[0]


def _names(shards: Iterable[ShardInfo]) -> list[str]:
    return [name for shard in shards for name in shard.stored]
