"""Lost, repeated and moved samples of a resumed training, as a table with a column for each library."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import version
from itertools import accumulate, chain, pairwise
from pathlib import Path


def compare(expected: list[list[int]], seen: list[list[int]]) -> str:
    """What of the global batches of an uninterrupted run is lost, what is repeated, and what came elsewhere."""
    before, after = list(chain.from_iterable(expected)), list(chain.from_iterable(seen))
    lost = sum((Counter(before) - Counter(after)).values())
    repeated = sum((Counter(after) - Counter(before)).values())
    if lost or repeated:
        return f'{lost} lost, {repeated} repeated'
    # Of batches of two sizes, what lies between two boundaries that both have.
    bounds = sorted({0, *accumulate(map(len, expected))} & {0, *accumulate(map(len, seen))})
    moved = sum(sum((Counter(after[a:b]) - Counter(before[a:b])).values()) for a, b in pairwise(bounds))
    return f'{moved} moved' if moved else 'exact'


def failure(error: str) -> str:
    """Of a run that did not end well, by what was printed, which goes to stderr: the last exception's name."""
    print(error, file=sys.stderr)
    if 'HangError' in error:
        return 'hangs'
    names = re.findall(r'^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt))\b', error.split('\n', 1)[1], re.MULTILINE)
    return f'crash: {[name for name in names if not name.startswith("Process")][-1]}'


def show(columns: dict[str, dict[str, str]]) -> None:
    """Print the table, in Markdown, and write it to the file that the command line names."""
    table = [
        ' | '.join(['| checkpoint, and what is special', *(f'{name} {version(name)}' for name in columns)]) + ' |',
        '|---' * (1 + len(columns)) + '|',
        *(
            ' | '.join([f'| {row}', *(column[row] for column in columns.values())]) + ' |'
            for row in next(iter(columns.values()))
        ),
    ]
    text = '\n'.join(table) + '\n'
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
