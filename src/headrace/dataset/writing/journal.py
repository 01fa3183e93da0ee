"""The journal of a writer: the shards that are whole, kept beside them until the dataset is finished.

A shard is listed after its files are stored. So the next writer knows which shards of a killed one are whole, with
their sizes and hashes, and reads none of them. The journal is a number of small indexes, each of some shards, because
stores cannot append to an object.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from headrace.dataset.writing.place import delete_or_warn
from headrace.format import dump_index, parse_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.dataset.writing.place import Place
    from headrace.format import ShardInfo

__all__ = ['JOURNAL', 'Journal', 'read_journal', 'shard_number']

JOURNAL: Final = re.compile(r'\.headrace-written\.\d{5,}')
"""Names of the journal's files."""
_NUMBER: Final = re.compile(r'shard\.(\d{5,})\.[^/]*')
_SHARDS: Final = 64
"""Shards in a file of the journal: it is stored again after each of them."""


def shard_number(name: str) -> int:
    """The number in the name of a shard's file; -1 if it is not a name that writers give."""
    found = _NUMBER.fullmatch(name)
    return int(found[1]) if found else -1


def read_journal(place: Place, names: Iterable[str]) -> list[ShardInfo]:
    """The shards of a journal, in the order of their numbers.

    Args:
        place: where the dataset is.
        names: of all files there.
    """
    found: dict[int, ShardInfo] = {}
    for name in sorted(name for name in names if JOURNAL.fullmatch(name)):
        source = f'{place.shown}/{name}'
        for shard in parse_index(place.read(name), source=source, allow_unsafe_types=True, allow_empty=True):
            found[shard_number(shard.files[0].raw.basename)] = shard
    return [found[number] for number in sorted(found)]


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
        """Start with the shards of a killed writer, in place of its journal.

        Args:
            whole: its whole shards.
            names: the files of its journal.
        """
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
