"""Figures from real runs: their numbers as JSON, and pictures that are drawn from them.

usage: python -m benchmarks.figures NAME... | all [--small] [--draw] [--out FOLDER] [--png]

Without options, each figure is measured and drawn into docs/figures. docs/appendix/figures.md says what each one shows.
The numbers of --small prove nothing: they show that the scripts run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures.results import Made, save_picture, write

NAMES = ('ranks', 'resume', 'convergence', 'shuffle', 'egress', 'lengths')
ROOT = Path(__file__).parents[2]


def made(name: str) -> Made:
    return importlib.import_module(f'benchmarks.figures.{name}').FIGURE


def main() -> int:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.figures', description='Figures from real runs, with their numbers.'
    )
    parser.add_argument('names', nargs='+', choices=(*NAMES, 'all'))
    parser.add_argument('--small', action='store_true', help='the smallest runs, into build/figures')
    parser.add_argument('--draw', action='store_true', help='draw the pictures of numbers that are there')
    parser.add_argument('--out', type=Path, help='the folder')
    parser.add_argument('--png', action='store_true', help='write PNG files, too')
    options = parser.parse_args()
    out = options.out or ROOT / ('build/figures' if options.small else 'docs/figures')
    names = NAMES if 'all' in options.names else options.names
    if len(names) > 1:  # each in a process of its own, since some fork
        rest = [word for word in sys.argv[1:] if word not in (*NAMES, 'all')]
        runs = [[sys.executable, '-W', 'ignore', '-m', 'benchmarks.figures', name, *rest] for name in names]
        return max(subprocess.run(run, check=False).returncode for run in runs)
    (name,) = names
    numbers, figure = out / f'{name}.json', made(name)
    if options.draw and not numbers.is_file():
        sys.exit(f'--draw needs the numbers of {name}, but there is no {numbers}: measure them first, without --draw.')
    if not options.draw:
        begun = time.monotonic()
        write(numbers, figure.measure(options.small))
        print(f'{numbers}: measured in {time.monotonic() - begun:.0f} s')
    for suffix in ('.svg', '.png') if options.png else ('.svg',):
        save_picture(figure, numbers, numbers.with_suffix(suffix))
    claims = figure.claims(json.loads(numbers.read_text(encoding='utf-8')))
    for claim, holds in claims.items():
        print(f'{"yes" if holds else "NO "}  {claim}')
    return 0 if options.small or all(claims.values()) else 1


if __name__ == '__main__':
    sys.exit(main())
