"""A training on data that grow: ranks that may be killed, and a writer that appends.

``python growing_run.py FOLDER LEG MODE SECONDS STEPS`` is a rank, in the environment of a launcher. It trains from
FOLDER/data, for so many seconds, or so many steps, and commits to FOLDER/checkpoint.json the position and the ids of
each global batch so far. FOLDER/record has the run's record. In a run of STEPS rank 0 appends samples itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from headrace import StreamingDataLoader, StreamingDataset
from headrace.watching.record import RunRecorder, read_record
from tests.support.datasets.growing import append
from tests.support.programs.processes import end_rank

GLOBAL_BATCH = 12


def loader_of(folder: Path, cache: str, data: str = 'data', **options: Any) -> StreamingDataLoader:
    options = {'shuffle': True, 'global_batch_size': GLOBAL_BATCH, 'remainder': 'exact', 'uneven': 'pad', **options}
    workers = options.pop('workers', 0)
    dataset = StreamingDataset(remote=str(folder / data), local=str(folder / cache), **options)
    return StreamingDataLoader(dataset, num_workers=workers)


def train(folder: Path, leg: int, mode: Any, seconds: float, steps: int) -> None:
    rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    dist.init_process_group('gloo', f'file://{folder}/rendezvous{leg}', rank=rank, world_size=world)
    loader = loader_of(folder, f'cache{leg % 2}', on_growth=mode, growth_wait=20, workers=leg % 2)
    done: list[list[Any]] = []
    checkpoint = folder / 'checkpoint.json'
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        done = saved['done']
        loader.load_state_dict(saved['state'])
    record = RunRecorder(folder / 'record')
    record.begin({'': loader}, step=len(done))
    end = time.monotonic() + seconds
    is_over = False
    while not is_over:
        for batch in loader:
            assert loader.handed_out is not None
            own = [loader.handed_out[0].order.epoch, *batch['id'][: loader.own_samples].tolist()]
            told: list[Any] = [None] * world
            dist.all_gather_object(told, (own, len(done) + 1 >= steps if steps else time.monotonic() > end))
            done.append([told[0][0][0], sorted(number for ids, _ in told for number in ids[1:])])
            record.batch_done()
            if rank == 0 and steps and len(done) % 7 == 0:
                append(folder / 'data', 40 + 5 * (len(done) // 7 - 1), 5)
            if rank == 0 and len(done) % 3 == 0:
                (folder / 'new').write_text(json.dumps({'state': loader.state_dict(), 'done': done}))
                (folder / 'new').rename(checkpoint)
                record.checkpoint()
            is_over = told[0][1]
            if is_over:
                break
    record.end()
    dist.barrier()
    end_rank()


def environment(rank: int, world: int) -> dict[str, str]:
    """What a launcher sets."""
    ranks = {'RANK': str(rank), 'WORLD_SIZE': str(world), 'LOCAL_RANK': str(rank), 'LOCAL_WORLD_SIZE': str(world)}
    return {**ranks, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}


def chain(folder: Path, mode: str, *, kills: int, seed: int, most_ranks: int, seconds: tuple[float, float]) -> int:
    """Train with kills on changing ranks, while samples are appended; returns how many there are at the end."""
    rng = random.Random(seed)
    append(folder / 'data', 0, 40)
    samples = 40
    for leg in range(kills + 1):
        world = rng.randint(1, most_ranks)
        length = rng.uniform(*seconds)
        last = leg == kills
        command = [sys.executable, __file__, str(folder), str(leg), mode, str(length if last else 1000), '0']
        ranks = [subprocess.Popen(command, env=os.environ | environment(rank, world)) for rank in range(world)]
        try:
            end = time.monotonic() + length
            # A leg counts from its first batch, which a busy machine may delay.
            while time.monotonic() < end or (last and ranks[0].poll() is None):
                count = rng.randint(1, 25)
                append(folder / 'data', samples, count)
                samples += count
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ranks[0].wait(1.0)
                assert last or ranks[0].poll() is None, 'a rank ended by itself'
        finally:
            for process in ranks:
                process.send_signal(signal.SIGKILL)
            for process in ranks:
                process.wait()
        if last:
            assert all(process.returncode in (0, -9) for process in ranks)
    return samples


def check(folder: Path, mode: str) -> dict[str, int]:
    """Check each pass of the committed run, and replay it elsewhere from the record; returns counts."""
    done = json.loads((folder / 'checkpoint.json').read_text())['done']
    by_epoch: dict[int, list[list[int]]] = {}
    for epoch, ids in done:
        by_epoch.setdefault(epoch, []).append(ids)
    assert list(by_epoch) == list(range(len(by_epoch)))
    passes = [sorted(number for ids in batches for number in ids) for batches in by_epoch.values()]
    seen = 0
    for ids in passes[:-1]:
        assert len(set(ids)) == len(ids)
        first = seen if mode != 'next_pass' and ids[0] else 0
        assert ids == list(range(first, ids[-1] + 1))
        assert ids[-1] + 1 >= seen
        assert mode != 'wait' or first == seen
        seen = ids[-1] + 1
    entries = read_record(folder / 'record').entries
    mixtures = {entry['id']: entry['state'] for entry in entries if entry['kind'] == 'mixture'}
    begun = {entry['epoch']: mixtures[entry['mixture']] for entry in entries if entry['kind'] == 'pass'}
    shutil.copytree(folder / 'data', folder / 'elsewhere')
    for epoch, batches in by_epoch.items():
        replay = loader_of(folder, 'replay', 'elsewhere')
        config = json.dumps(begun[epoch]['config'])
        replay.load_state_dict({**begun[epoch], 'config': config, 'epoch': epoch, 'sample_in_epoch': 0})
        found = [sorted(batch['id'][: replay.own_samples].tolist()) for batch in replay]
        assert found[: len(batches)] == batches
        assert epoch + 1 == len(by_epoch) or len(found) == len(batches)
    return {
        'passes': len(passes),
        'generations': len({json.dumps(state['config']) for state in begun.values()}),
        'batches': len(done),
        'samples read': sum(map(len, passes)),
    }


if __name__ == '__main__':
    _folder, _leg, _mode, _seconds, _steps = sys.argv[1:]
    train(Path(_folder), int(_leg), _mode, float(_seconds), int(_steps))
