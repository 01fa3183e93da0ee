"""Values for people: data without control characters, sizes, tables of text and HTML, and reprs.

Names and samples come from files of others. A terminal obeys control characters, so none of them is printed.
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.errors.redaction import redact

_UNITS = ('KiB', 'MiB', 'GiB', 'TiB', 'PiB')
_DECIMAL_UNITS = ('B', 'kB', 'MB', 'GB', 'TB')


def printable(text: str, *, keep: str = '') -> str:
    """The text with escapes for controls, direction marks and lone surrogates, without the characters of `keep`."""
    if text.isprintable():
        return text
    escaped = (char.encode('unicode_escape', 'surrogatepass').decode('ascii') for char in text)
    return ''.join(c if c.isprintable() or c in keep else e for c, e in zip(text, escaped, strict=True))


def shorten(text: str, width: int) -> str:
    """A printable text that takes at most ``width`` columns of a terminal; one that is cut ends with an ellipsis."""
    text, is_cut = printable(text[: width + 1]), len(text) > width
    columns = [2 if unicodedata.east_asian_width(char) in 'WF' else 1 for char in text]
    if sum(columns) <= width and not is_cut:
        return text
    used, end = 0, 0
    while end < len(text) and used + columns[end] <= width - 1:
        used += columns[end]
        end += 1
    return text[:end] + '…'


def human_size(size: float) -> str:
    """A number of bytes, such as '1.5 MiB'."""
    if size < 1024:
        return f'{size:.0f} bytes' if round(size) != 1 else '1 byte'
    power = 1
    while size / 1024**power >= 1000 and power < len(_UNITS):
        power += 1
    return f'{size / 1024**power:.3g} {_UNITS[power - 1]}'


def human_decimal_size(size: float) -> str:
    """A number of bytes in powers of 1,000, as networks count them, such as '1.5 MB'."""
    unit = 0
    while size >= 1000 and unit < len(_DECIMAL_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f'{size:.1f} {_DECIMAL_UNITS[unit]}' if unit else f'{size:.0f} B'


def count_text(count: int, what: str) -> str:
    """A number of things, such as '1 shard', '1,000 shards' or '2 batches'."""
    return f'{count:,} {what}{"" if count == 1 else "es" if what.endswith("ch") else "s"}'


def text_table(rows: Iterable[Sequence[str]], *, indent: int = 2) -> list[str]:
    """Lines of a table whose columns are two spaces apart."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        (' ' * indent + '  '.join(f'{cell:{width}}' for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]


def html_table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> str:
    """A table for notebooks; all texts are escaped."""
    lines = ['<table>']
    if header:
        lines.append(f'<thead><tr>{_cells("th", header)}</tr></thead>')
    lines += [f'<tr>{_cells("td", row)}</tr>' for row in rows]
    return '\n'.join([*lines, '</table>'])


def _cells(tag: str, row: Sequence[str]) -> str:
    return ''.join(f'<{tag} style="text-align: left">{_escaped(cell)}</{tag}>' for cell in row)


def _escaped(text: str) -> str:
    import html  # its tables of names take longer to import than most of headrace

    return html.escape(printable(text))


class Facts(NamedTuple):
    title: str  # one line
    rows: Sequence[tuple[str, str]]  # name and value of each fact; a name may be empty


class FactsRepr:
    """An object whose repr is its `Facts`, as text and as HTML in notebooks: without secrets and control characters."""

    @abstractmethod
    def _facts(self) -> Facts:
        """The facts. Opens, reads and computes nothing that takes time."""

    def __repr__(self) -> str:
        title, rows = self._safe_facts()
        lines = [printable(title), *text_table(rows)] if rows else [printable(title)]
        return redact('\n'.join(lines))

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        title, rows = self._safe_facts()
        return f'<b>{_escaped(redact(title))}</b>\n' + html_table([(name, redact(value)) for name, value in rows])

    def _safe_facts(self) -> Facts:
        try:
            return self._facts()
        except Exception as error:  # a debugger shows objects whose constructor has failed, or still runs
            return Facts(f'<{type(self).__name__} that is not ready: {type(error).__name__}>', ())
