"""What runs pay that use nothing new: this version beside an earlier commit, as ratios.

    [SINCE=COMMIT] python -m benchmarks.since [ROUNDS] [--json OUT]

Both read the same local shards in batches, shuffled, each in a process of its own, in interleaved rounds. Without
`SINCE` the commit is the last one before ranks could come and go, data grow and nodes give each other shards.

- "batches" are those in a second, and "CPU" is processor time of the trainer's process for one, in an epoch that begins
  after a first one, or in a second of it.
- "start" is from the construction of the dataset to its first batch, without imports.
- "memory" is that of the trainer's process at the end, without pages of files, and "state" the loader's state as JSON.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from benchmarks.loading.contenders import CONTENDERS, Settings, written
from benchmarks.machine import machine
from benchmarks.rounds import in_rounds

SINCE = os.environ.get('SINCE', 'bb5d9693')
CASES = [f'{load}, {workers} workers' for load, workers in itertools.product(('tokens', 'text'), (0, 2))]
FIGURES = {
    'batches': '{:,.0f} /s',
    'CPU': '{:.1f} µs',
    'start': '{:.1f} ms',
    'memory': '{:.1f} MB',
    'state': '{:,.0f} bytes',
}
SECONDS = 1


def write(root: Path) -> None:
    """The shards, and the sources of the commit."""
    repository = Path(__file__).parents[1]
    sources = subprocess.run(
        ['git', 'archive', SINCE, 'src'], cwd=repository, check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(sources)) as archive:
        archive.extractall(root / SINCE, filter='data')
    for load in ('tokens', 'text'):
        written('headrace', load, root)


def run(name: str, root: Path) -> dict[str, float]:
    load, workers, version = re.fullmatch(r'(\w+), (\d) workers, (.+)', name).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if version == SINCE:
        sys.path.insert(0, str(root / SINCE / 'src'))
    import torch  # noqa: F401 - its import does not count

    import headrace

    _ = headrace.StreamingDataLoader, headrace.StreamingDataset  # are imported here
    assert (SINCE in str(headrace.__file__)) == (version == SINCE), headrace.__file__
    begin = time.perf_counter()
    settings = Settings(load, written('headrace', load, root), int(workers), 'fork' if workers != '0' else None)
    loader: Any = CONTENDERS['headrace'].read(settings)
    first = itertools.chain.from_iterable(loader for _ in range(2))
    next(first)
    start = time.perf_counter() - begin
    for _ in range(len(loader)):  # the first epoch, and a batch
        next(first)
    count, wall, cpu = 0, time.perf_counter(), time.process_time()
    for _ in first:
        count += 1
        if time.perf_counter() - wall > SECONDS:
            break
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    (memory,) = re.findall(r'^Anonymous: +(\d+) kB', Path('/proc/self/smaps_rollup').read_text(), re.MULTILINE)
    return {
        'batches': count / wall,
        'CPU': 1e6 * cpu / count,
        'start': 1e3 * start,
        'memory': int(memory) / 1024,
        'state': len(json.dumps(loader.state_dict())),
    }


if __name__ == '__main__':
    print(f'{machine("torch")}\n', flush=True)
    names = [f'{case}, {version}' for case in CASES for version in (SINCE, 'now')]
    medians = in_rounds('benchmarks.since', names, write, run, FIGURES, rounds=5)
    if medians:
        print(f'\n| now by {SINCE} | {" | ".join(FIGURES)} |\n|{"---|" * (len(FIGURES) + 1)}')
        for case in CASES:
            before, now = (medians[f'{case}, {version}'] for version in (SINCE, 'now'))
            print(f'| {case} | {" | ".join(f"{now[each] / before[each]:.3f}" for each in FIGURES)} |')
