"""Where a pass and its loader are, also in forked processes and at the end of the interpreter."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.progress import Place, Progress


def test_progress_counts_passes_of_each_worker():
    progress = Progress()
    assert progress.fresh
    assert [progress.begin(rank=0, worker=1) for _ in range(2)] == [(0, 0), (1, 0)]
    assert progress.begin(rank=0, worker=0) == (0, 0)
    assert progress.current(rank=0) == (1, 0)
    progress.load(4, 12)
    assert progress.next(rank=0) == (4, 12)
    assert [progress.begin(rank=3, worker=0) for _ in range(2)] == [(4, 12), (5, 0)]
    assert progress.next(rank=0) == (4, 12)


def test_a_finished_epoch_rolls_over() -> None:
    place = Place(3, 384, counted=380, trainer_epoch=3)
    assert place.rolled_over(384) == Place(4, 0, 380, 3, end=(3, 384))
    assert place.rolled_over(390) is place


def test_progress_counts_passes_of_hundreds_of_workers():
    progress = Progress()
    assert [progress.begin(rank=0, worker=worker) for worker in range(384)] == [(0, 0)] * 384
    assert progress.begin(rank=0, worker=383) == (1, 0)


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_copies_begin_at_the_same_epoch_on_every_rank(tmp_path: Path, copied: Any) -> None:
    with MDSWriter(out=tmp_path / 'data', columns={'x': 'int'}) as writer:
        for number in range(32):
            writer.write({'x': number})
    epoch: list[int] = []
    for rank in range(2):
        topology = Topology(rank=rank, world_size=2)
        dataset = StreamingDataset(local=str(tmp_path / 'data'), batch_size=4, shuffle=True, topology=topology)
        loader = StreamingDataLoader(dataset)
        for _ in range(2):
            list(loader)
        epoch += [number for batch in StreamingDataLoader(copied(dataset)) for number in batch['x'].tolist()]
    assert sorted(epoch) == list(range(32))


def read(dataset: StreamingDataset, found: Any) -> None:
    """Read two epochs with one loader."""
    loader = StreamingDataLoader(dataset, batch_size=4)
    epochs = [[int(batch['id'][0]) for batch in loader] for _ in range(2)]
    found.put((epochs, loader.state_dict()['epoch']))


@pytest.mark.parametrize('method', ['fork', 'spawn'])
def test_a_rank_reads_the_dataset_that_its_parent_made(tmp_path, method):
    with MDSWriter(columns={'id': 'int'}, out=str(tmp_path)) as writer:
        for number in range(8):
            writer.write({'id': number})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4)
    context = multiprocessing.get_context(method)
    found = context.SimpleQueue()
    child = context.Process(target=read, args=(dataset, found))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert found.get() == ([[0, 4]] * 2, 1)
    assert next(iter(StreamingDataLoader(dataset, batch_size=4)))['id'].tolist() == [0, 1, 2, 3]


def test_a_forked_rank_keeps_the_epoch_that_its_trainer_told():
    progress, found = Progress(), multiprocessing.get_context('fork').SimpleQueue()

    def work():
        progress.tell(1)
        progress.begin(rank=0, worker=0)
        found.put((progress.current(rank=0), progress.trainer_epoch))

    child = multiprocessing.get_context('fork').Process(target=work)
    child.start()
    child.join()
    assert found.get() == ((1, 0), 1)


def test_what_was_loaded_is_what_the_next_state_says(mix):
    loader = mix(Topology(), 0)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    state = loader.state_dict()
    for _ in range(3):
        next(batches)
    loader.load_state_dict(state)
    assert loader.state_dict() == state


def test_the_sampler_takes_an_epoch_only_while_nothing_better_is_known(mix):
    loader = mix(Topology(), 0)
    epochs = [[batch['id'].tolist() for batch in loader] for _ in range(3)]
    fresh = mix(Topology(), 0)
    fresh.sampler.set_epoch(1)
    assert [batch['id'].tolist() for batch in fresh] == epochs[1]
    fresh.sampler.set_epoch(1)
    assert [batch['id'].tolist() for batch in fresh] == epochs[2]


def test_the_sampler_says_that_the_trainer_ended_an_epoch_at_its_own_limit(mix):
    def started() -> StreamingDataLoader:
        return mix(Topology(), 0)

    epochs = [[batch['id'].tolist() for batch in loader] for loader in [started()] for _ in range(4)]
    # The loader is an epoch ahead of a trainer that begins it anew within its own epoch.
    for ahead in (0, 1):
        loader = started()
        loader.sampler.set_epoch(0)
        for _ in range(ahead):
            list(loader)
        next(itertools.islice(loader, 2, None))
        state = loader.state_dict()
        for trainer_epoch, expected in ((0, epochs[ahead][3:]), (1, epochs[ahead + 1]), (2, epochs[ahead + 2])):
            resumed = started()
            resumed.load_state_dict(state)
            resumed.sampler.set_epoch(trainer_epoch)
            assert [batch['id'].tolist() for batch in resumed] == expected


def test_a_pickled_loader_knows_its_position(mix):
    loader = mix(Topology(), 0)
    next(itertools.islice(loader, 3, None))
    dataset = pickle.loads(pickle.dumps(loader.dataset))
    assert dataset.num_samples == 140


_PROGRAM = """
import itertools
import os
import sys

import headrace
import headrace.dataset.dataset
import headrace.dataset.loader
import headrace.dataset.progress
import headrace.dataset.reading.sample_pool
import headrace.dataset.workers.worker_pool

def begin(kind):
    dataset = headrace.StreamingDataset(local=sys.argv[1], batch_size=2)
    workers = 1 if kind == 'workers' else 0
    passes = iter(dataset if kind == 'dataset' else headrace.StreamingDataLoader(dataset, 2, num_workers=workers))
    next(passes)
    return dataset, passes

if __name__ == '__main__':
    kept = [begin(kind) for kind in sys.argv[2:]]
    if not (child := os.fork()):
        try:
            for _, passes in kept:
                passes.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print([dataset.progress.ended(rank=0) for dataset, _ in kept])
    print([len(list(itertools.islice(passes, 4))) for _, passes in kept])
"""


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_a_pass_is_ended_by_its_own_process_only_and_without_a_word_at_the_end_of_the_interpreter(
    tmp_path: Path,
) -> None:
    with MDSWriter(out=tmp_path / 'data', columns={'x': 'int'}) as writer:
        for number in range(20):
            writer.write({'x': number})
    program = tmp_path / 'program.py'
    program.write_text(_PROGRAM)
    command = [sys.executable, '-W', 'ignore', str(program), str(tmp_path / 'data'), 'dataset', 'loader', 'workers']
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout == '[False, False, False]\n[4, 4, 4]\n'
    assert 'Exception ignored' not in run.stderr, run.stderr
