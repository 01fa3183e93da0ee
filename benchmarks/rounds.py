"""Interleaved rounds of runs, each in a process of its own, and their medians."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Figures: TypeAlias = 'dict[str, float]'


def in_rounds(
    module: str,
    names: Sequence[str],
    write: Callable[[Path], None],
    run: Callable[[str, Path], Figures],
    columns: Mapping[str, str],
    *,
    rounds: int,
) -> dict[str, Figures]:
    """The program of a module: print the medians of each name as a row of a table, or the figures of one run.

    The result are the medians. A process of one run ends here.

    Args:
        module: its name, for `python -m`.
        names: the runs, in each round in this order. One whose package is not installed is left out.
        write: makes the data in an empty folder.
        run: the figures of a name, with the data in the folder.
        columns: the figures that are printed, with the format of each, such as '{:.3f} s'.
        rounds: the usual number of rounds.
    """
    parser = argparse.ArgumentParser(description=(sys.modules['__main__'].__doc__ or '').split('\n')[0])
    parser.add_argument('rounds', nargs='?', type=int, default=rounds)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--run', nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(given.run[0], Path(given.run[1]))), flush=True)
        os._exit(0)  # deltalake's threads may abort a process that ends as others do
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for _ in range(given.rounds):
            for name in names:
                command = [sys.executable, '-W', 'ignore', '-m', module, '--run', name, folder]
                done = subprocess.run(command, check=False, capture_output=True, text=True)
                if not done.returncode:
                    found.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
                elif 'ModuleNotFoundError' not in done.stderr:
                    raise SystemExit(f'{name}: {done.stderr[-2000:]}')
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    print(f'| | {" | ".join(columns)} |\n|{"---|" * (len(columns) + 1)}')
    for name, one in medians.items():
        cells = [form.format(one[key]) if key in one else '' for key, form in columns.items()]
        print(f'| {name} | {" | ".join(cells)} |')
    if given.json:
        given.json.write_text(json.dumps(medians, indent=1))
    return medians
