"""Time to the first batch, at the start of an epoch and from a state in the middle of one, for small and huge datasets.

usage: python benchmarks/start.py [--rounds 9] [--samples 10000,1000000000]

A fresh process for each value; a fresh start and a resume take turns. "first batch" is from the construction of the
dataset to its first batch, without imports. A dataset of more than a million samples has an index and no shards: its
figure ends with the ids of the first batch, "plan". Values are milliseconds of wall time and of processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BATCH = 16
MOST_WRITTEN = 1_000_000
SHARDS = 100


def write(folder: Path, samples: int) -> None:
    """Samples of 64 int32; of many, only an index of 100 shards that name as many samples."""
    import numpy as np

    from headrace import MDSWriter

    written = samples if samples <= MOST_WRITTEN else SHARDS
    size = 1 << 20 if samples <= MOST_WRITTEN else 300
    with MDSWriter(out=str(folder), columns={'tokens': 'ndarray:int32:64'}, size_limit=size) as writer:
        for number in range(written):
            writer.write({'tokens': np.full(64, number, np.int32)})
    if samples > MOST_WRITTEN:
        index = json.loads((folder / 'index.json').read_text())
        for shard in index['shards']:
            shard['samples'] = samples // len(index['shards'])
            shard['raw_data']['bytes'] = 8 + shard['samples'] * (4 + 256) + 200
        (folder / 'index.json').write_text(json.dumps(index))


def measure(folder: Path, samples: int, *, resumes: bool) -> dict[str, float]:
    """Start once in this process."""
    import torch  # noqa: F401

    from headrace import StreamingDataLoader, StreamingDataset

    def loader() -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=True))

    state = None
    if resumes:
        state = loader().state_dict()
        state['sample_in_epoch'] = samples // 2 // BATCH * BATCH
    wall, cpu = time.perf_counter(), time.process_time()
    started = loader()
    if state is not None:
        started.load_state_dict(state)
    if samples <= MOST_WRITTEN:
        next(iter(started))
    else:
        epoch, start = started.next_pass()
        assert (start > 0) == resumes
        started.plan(epoch, start).ids(0)
    return {'wall': 1e3 * (time.perf_counter() - wall), 'cpu': 1e3 * (time.process_time() - cpu)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--samples', default='10000,1000000000')
    parser.add_argument('--one', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, samples, resumes = options.one.split(',')
        print(json.dumps(measure(Path(folder), int(samples), resumes=resumes == 'True')))
        return
    print('| samples | start, ms | resume, ms | ratio | start CPU, ms | resume CPU, ms | ratio |')
    print('|---|---|---|---|---|---|---|')
    for samples in map(int, options.samples.split(',')):
        with tempfile.TemporaryDirectory() as root:
            write(Path(root), samples)
            found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for number in range(options.rounds):
                for resumes in (False, True) if number % 2 else (True, False):
                    command = [sys.executable, '-W', 'ignore', __file__, '--one', f'{root},{samples},{resumes}']
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    found[resumes].append(json.loads(done.stdout))
        cells = [f'{samples:,}']
        for kind in ('wall', 'cpu'):
            start, resume = (statistics.median(one[kind] for one in found[which]) for which in (False, True))
            cells += [f'{start:.1f}', f'{resume:.1f}', f'{resume / start:.2f}']
        print(f'| {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
    main()
