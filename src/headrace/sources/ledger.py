"""The ledger of a reader or a conversion: the files it read, and everything that it left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.errors.display import count_text, printable
from headrace.sources.formats import DESCRIPTIONS, SIDECARS, is_hidden, name_of
from headrace.storage import ObjectInfo

_DATA: Final = re.compile(
    r'\.(json|jsonl|ndjson|csv|tsv|tab|parquet|parq|pq|arrow|feather|ipc|tar|tgz|zip|tfrecords?|tfrec|array_?records?)'
    r'(-\d+-of-\d+)?(\.\w+)?$',
    re.IGNORECASE,
)
"""Names that data may have."""
_MOST: Final = 32  # columns that a message names
_HIVE: Final = re.compile(r'([^=/]+)=[^/]*/')


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files that were left out for one reason."""

    reason: str
    files: int
    example: str  # The name of one of them.
    may_be_data: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """The parts of a source that were read, and those that were not."""

    files: int = 0  # Files that were read; 0 for a source without files.
    left_out: tuple[LeftOut, ...] = ()
    keys: tuple[str, ...] = ()  # Keys of Hive partitions, ``KEY=VALUE`` in the names of folders, that are not columns.
    splits: tuple[str, ...] = ()  # Several splits that a glob names, and that are read as one.
    classes: tuple[str, ...] = ()  # Columns with numbers of classes, whose names are not values of the data.
    dropped: tuple[str, ...] = ()  # Columns of the source that `columns` leaves out.
    nulls: Mapping[str, int] = field(default_factory=dict[str, int])
    """Nulls in each column that has any; of a conversion."""
    notes: tuple[str, ...] = ()  # Sentences on what the format left out, or decided.

    @property
    def is_suspect(self) -> bool:
        """Whether the user may want something else."""
        return bool(self.keys or self.splits) or any(group.may_be_data for group in self.left_out)

    def lines(self) -> list[str]:
        """Sentences on all that was left out, and on what may be unexpected."""
        lines = [
            f'Left out {count_text(group.files, "file")} {group.reason}, such as {group.example}.'
            for group in self.left_out
        ]
        if self.keys:
            lines.append(f'Folders name the keys {", ".join(self.keys)}, which are no columns of the data.')
        if self.splits:
            lines.append(f'Several splits are read as one: {", ".join(self.splits)}.')
        if self.classes:
            lines.append(
                f'Numbers of classes are in {", ".join(self.classes)}. A conversion writes their names to classes.json.'
            )
        if self.dropped:
            more = f' and {len(self.dropped) - _MOST:,} more' if len(self.dropped) > _MOST else ''
            names = printable(', '.join(self.dropped[:_MOST]))
            lines.append(f'Left out {count_text(len(self.dropped), "column")}: {names}{more}.')
        if self.nulls:
            lines.append('Nulls: ' + ', '.join(f'{count:,} in {name}' for name, count in self.nulls.items()) + '.')
        return [*lines, *self.notes]


def ledger_of(
    listed: Sequence[ObjectInfo],
    of_format: Sequence[ObjectInfo],
    chosen: Sequence[ObjectInfo],
    *,
    with_rows: Collection[str],
    columns: Collection[str],
    others: str = 'of another split',
) -> Ledger:
    """The ledger of a listing. `others`: the reason for those of the format that are not chosen."""
    readable, taken = {info.key for info in of_format}, {info.key for info in chosen}
    by_reason: dict[str, list[ObjectInfo]] = {}
    suspect: set[str] = set()
    for info in listed:
        name = name_of(info.key)
        if info.key in with_rows or (
            info.key in taken and (name in DESCRIPTIONS or name.endswith(SIDECARS) or is_hidden(info.key))
        ):
            continue
        may_be_data = False
        if info.key in taken:
            reason, may_be_data = 'without rows', not info.size
        elif is_hidden(info.key):
            reason = "whose name begins with '.' or '_'"
        elif info.key in readable:
            reason = others
        elif _DATA.search(name) and name not in DESCRIPTIONS:
            reason, may_be_data = 'of another format', True
        else:
            reason = 'of no known format'
        by_reason.setdefault(reason, []).append(info)
        if may_be_data:
            suspect.add(reason)
    left_out = (LeftOut(reason, len(infos), infos[0].key, reason in suspect) for reason, infos in by_reason.items())
    keys = {key for name in with_rows for key in _HIVE.findall(name)}
    return Ledger(len(with_rows), tuple(left_out), tuple(sorted(keys.difference(columns))))
