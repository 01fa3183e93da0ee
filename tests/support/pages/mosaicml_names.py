"""The tables of docs/mosaicml.md, from those of headrace.compat: ``python -m tests.support.pages.mosaicml_names``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from headrace.compat.tables import ABSENT_MODULES, MEMBERS, TABLES, Alias, Entry

__all__ = ['updated']


def updated(page: str) -> str:
    """The page with each table between ``<!-- table: name -->`` and ``<!-- end -->`` written anew.

    Raises:
        ValueError: the page lacks a table.
    """
    for name, table in {'names': _names(), 'members': _members(), 'counts': _counts()}.items():
        start, end = f'<!-- table: {name} -->\n', '<!-- end -->'
        before, _, rest = page.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f'the page has no table between {start.strip()} and {end}')
        page = f'{before}{start}{table}{end}{after}'
    return page


def _names() -> str:
    rows = [
        (f'`{name}`', _short(module), entry) for module, entries in TABLES.items() for name, entry in entries.items()
    ]
    rows += [(f'all of {_short(module)}', 'itself', entry) for module, entry in ABSENT_MODULES.items()]
    return _table('in `streaming`', rows)


def _members() -> str:
    return _table(
        'class', [(f'`{name}`', f'`{cls}`', entry) for cls, found in MEMBERS.items() for name, entry in found.items()]
    )


def _table(second: str, rows: Iterable[tuple[str, str, Entry]]) -> str:
    """A row for all names with the same status and remark. Names that work are left out."""
    places: dict[tuple[str, Entry], str] = {}
    for name, place, entry in rows:
        places.setdefault((name, entry), place)  # the first of its modules, which is the shortest
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (name, entry), place in places.items():
        if entry.status != 'works':
            said = entry.difference if isinstance(entry, Alias) else entry.reason
            grouped.setdefault((entry.status, said), []).append((name, place))
    lines = [f'| name | {second} | status | difference, reason, or replacement |', '|---|---|---|---|']
    for row, found in grouped.items():
        names, where = (', '.join(dict.fromkeys(column)) for column in zip(*found, strict=True))
        lines.append(f'| {names} | {where} | {" | ".join(row)} |')
    return '\n'.join(lines) + '\n'


def _counts() -> str:
    entries = {(name, entry) for found in TABLES.values() for name, entry in found.items()}
    entries |= {(f'{cls}.{name}', entry) for cls, found in MEMBERS.items() for name, entry in found.items()}
    counts = Counter(entry.status for _, entry in entries)
    said = ', '.join(f'{counts[status]} {status}' for status in ('works', 'differs', 'absent', 'no meaning'))
    return f'Of {len(entries)} names: {said}.\n'


def _short(module: str) -> str:
    return f'`{module.removeprefix("streaming") or "streaming"}`'


if __name__ == '__main__':
    page = Path(sys.argv[1] if len(sys.argv) > 1 else 'docs/mosaicml.md')
    page.write_text(updated(page.read_text()))
