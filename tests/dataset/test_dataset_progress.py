"""The epoch of a dataset, shared with workers of a plain DataLoader."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.dataset.progress import Progress


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


def test_progress_counts_passes_of_hundreds_of_workers():
    progress = Progress()
    assert [progress.begin(rank=0, worker=worker) for worker in range(384)] == [(0, 0)] * 384
    assert progress.begin(rank=0, worker=383) == (1, 0)


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
