"""headrace and its peers on local shards: samples per second, and what a trainer feels.

usage: python -m benchmarks.loading [--rounds 5] [--workloads tokens,text] [--workers 0,2:fork,2:spawn]
                                    [--only headrace,litdata] [--seconds 5] [--data DIR] [--json OUT] [--picture OUT]

Each contender reads the same shuffled samples, in a fresh process per round; contenders take turns within a round, and
figures are medians of the rounds. "headrace is" is the ratio of headrace's samples per second to the contender's. The
data take 2 GB of DIR, and are written once. Columns:

- samples/s: after the first batch, for at most S seconds of one epoch.
- trainer CPU: processor time of the trainer's process for a batch, all of its threads together.
- p99 wait: 99th percentile of the time that `next` takes.
- first batch: from the construction of the dataset to its first batch, without imports.
- memory: largest resident set of the trainer's process.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.loading.contenders import CONTENDERS, SAMPLES, Settings, written
from benchmarks.machine import machine

Row = tuple[str, str, str]
"""Workload, workers with their start method, contender."""

COLUMNS = {
    'rate': 'samples/s',
    'cpu': 'trainer CPU a batch, µs',
    'p99': 'p99 wait, ms',
    'first': 'first batch, s',
    'memory': 'memory, MB',
}


def length(batch: Any) -> int:
    """Samples in a batch."""
    if isinstance(batch, dict):
        return length(next(iter(batch.values())))
    if isinstance(batch, torch.Tensor):
        return len(batch)
    return length(batch[0]) if batch and not isinstance(batch[0], str | int) else len(batch)


def measure(contender: str, settings: Settings, seconds: float) -> dict[str, float]:
    """Read an epoch, or as much as comes in so many seconds, in this process."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    batches = iter(CONTENDERS[contender].read(settings))
    next(batches)
    first = now = time.perf_counter()
    processor, samples, waits = time.process_time(), 0, list[float]()
    while now - first < seconds:
        batch = next(batches, None)
        asked, now = now, time.perf_counter()
        if batch is None:
            break
        waits.append(now - asked)
        samples += length(batch)
    return {
        'rate': samples / sum(waits),
        'cpu': (time.process_time() - processor) / len(waits) * 1e6,
        'p99': float(np.percentile(waits, 99)) * 1e3,
        'first': first - begin,
        'memory': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def rounds(rows: list[Row], count: int, seconds: float, data: Path) -> dict[Row, dict[str, list[float]]]:
    """The values of all rounds. A contender that fails is named, and has no row."""
    found: dict[Row, dict[str, list[float]]] = {}
    failed: set[Row] = set()
    for number in range(count):
        for row in rows:
            if row in failed:
                continue
            one = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.loading', '--one', '/'.join(row)]
            options = ['--data', str(data), '--seconds', str(seconds)]
            done = subprocess.run([*one, *options], capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith('{"rate"')]
            if not lines:
                failed.add(row)
                print(f'{row} failed: {done.stderr.strip().splitlines()[-1:]}', file=sys.stderr, flush=True)
                continue
            for name, value in json.loads(lines[0]).items():
                found.setdefault(row, {}).setdefault(name, []).append(value)
        print(f'round {number + 1} of {count}', file=sys.stderr, flush=True)
    return found


def table(medians: dict[Row, dict[str, float]]) -> str:
    """Rows of all contenders, the fastest of each case first."""
    lines: list[str] = []
    for case in dict.fromkeys(row[:2] for row in medians):
        lines += ['', f'| {case[0]}, {case[1]} workers | headrace is | {" | ".join(COLUMNS.values())} |']
        lines.append('|---' * (len(COLUMNS) + 2) + '|')
        ours = medians.get((*case, 'headrace'), {}).get('rate')
        of_case = [(row[2], values) for row, values in medians.items() if row[:2] == case]
        for name, values in sorted(of_case, key=lambda pair: -pair[1]['rate']):
            ratio = '' if ours is None or name == 'headrace' else f'{ours / values["rate"]:.2f} x'
            cells = [f'{values["rate"]:,.0f}', f'{values["cpu"]:,.0f}', f'{values["p99"]:.2f}']
            cells += [f'{values["first"]:.3f}', f'{values["memory"]:,.0f}']
            label = f'**{name}**' if name == 'headrace' else name
            lines.append(f'| {label} | {ratio} | {" | ".join(cells)} |')
    return '\n'.join(lines[1:])


def draw(medians: dict[Row, dict[str, float]], path: Path) -> None:
    """Bars of samples per second for each case."""
    import matplotlib as mpl

    mpl.use('agg')
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row[:2] for row in medians))
    figure, axes = plt.subplots(1, len(cases), figsize=(4.2 * len(cases), 2.6), squeeze=False)
    for axis, case in zip(axes[0], cases, strict=True):
        pairs = sorted((values['rate'], row[2]) for row, values in medians.items() if row[:2] == case)
        colors = ['#1f77b4' if name == 'headrace' else '#c8c8c8' for _, name in pairs]
        bars = axis.barh([name for _, name in pairs], [rate for rate, _ in pairs], color=colors)
        axis.bar_label(bars, [f' {rate:,.0f}' for rate, _ in pairs], fontsize=8)
        axis.set_title(f'{case[0]}, {case[1]} workers: samples/s', fontsize=9)
        axis.set_xlim(0, 1.25 * pairs[-1][0])
        axis.set_xticks([])
        axis.tick_params(labelsize=8)
        axis.spines[['top', 'right', 'bottom']].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def settings_of(workload: str, workers: str, folder: Path) -> Settings:
    """The settings of a case; workers are such as '0' or '2:spawn'."""
    count, _, start = workers.partition(':')
    return Settings(workload, folder, int(count), (start or None) if int(count) else None)


def chosen(text: str, known: Collection[str], option: str) -> list[str]:
    """The names of an option, each of which is known; else the program ends with a line."""
    names = text.split(',')
    if wrong := [name for name in names if name not in known]:
        sys.exit(f'{option} takes names of {", ".join(known)}, separated by commas, got {", ".join(wrong)}.')
    return names


def cases(text: str) -> list[str]:
    """The numbers of workers of an option, such as '0' or '2:spawn'; if one is wrong, the program ends with a line."""
    found = text.split(',')
    if wrong := [case for case in found if not re.fullmatch(r'[0-9]+(:(fork|spawn|forkserver))?', case)]:
        sys.exit(
            f'--workers takes numbers, each alone or with fork, spawn or forkserver, as in 0,2:fork,2:spawn, '
            f'got {", ".join(map(repr, wrong))}.'
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.loading')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--workloads', default='tokens,text')
    parser.add_argument('--workers', default='0,2:fork,2:spawn')
    parser.add_argument('--only', default=','.join(CONTENDERS))
    parser.add_argument('--seconds', type=float, default=5)
    parser.add_argument('--data', type=Path, default=Path(tempfile.gettempdir()) / 'headrace-benchmark')
    parser.add_argument('--json', type=Path)
    parser.add_argument('--picture', type=Path)
    parser.add_argument('--one', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        workload, workers, contender = options.one.split('/')
        folder = written(contender, workload, options.data)
        print(json.dumps(measure(contender, settings_of(workload, workers, folder), options.seconds)), flush=True)
        return
    workloads = chosen(options.workloads, SAMPLES, '--workloads')
    contenders = chosen(options.only, CONTENDERS, '--only')
    workers_of = cases(options.workers)
    described = machine('torch', *(made.package for made in CONTENDERS.values() if made.package))
    rows = [
        (workload, workers, contender)
        for workload in workloads
        for workers in workers_of
        for contender in contenders
        if contender != 'limit' or (workload, workers) == ('tokens', '0')
    ]
    for workload, _, contender in rows:
        written(contender, workload, options.data)
    found = rounds(rows, options.rounds, options.seconds, options.data)
    medians = {row: {name: statistics.median(values) for name, values in of.items()} for row, of in found.items()}
    print(f'{described}. Medians of {options.rounds} rounds.\n\n{table(medians)}')
    if options.json is not None:
        result = {'machine': described, 'rounds': {'/'.join(row): values for row, values in found.items()}}
        options.json.write_text(json.dumps(result, indent=1))
    if options.picture is not None:
        draw(medians, options.picture)


if __name__ == '__main__':
    main()
