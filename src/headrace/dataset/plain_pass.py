"""A pass over a dataset for who iterates it: `for sample in dataset`, or the workers of a plain `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from headrace.dataset.bad_sample import BAD_SAMPLE_MARK
from headrace.dataset.look_ahead import look_ahead
from headrace.dataset.padding import PADDING_MARK
from headrace.dataset.randomness import drawing_for
from headrace.dataset.sample_errors import read_each
from headrace.dataset.upcoming import upcoming_batches
from headrace.dataset.worker_end import end_with_parent

if TYPE_CHECKING:
    from headrace.dataset.dataset import StreamingDataset

__all__ = ['samples_of_pass']


def samples_of_pass(dataset: StreamingDataset) -> Iterator[Any]:
    """This worker's samples of the dataset's next epoch: those of each batch that a worker of its number makes.

    A plain loader of PyTorch's deals batches to its workers in turn.
    """
    dataset.settle()
    topology, worker = dataset.topology, get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
    if worker is not None:
        end_with_parent()
    epoch, start = dataset.progress.begin(rank=topology.rank, worker=number)
    plan = dataset.plan(epoch=epoch, start=start, topology=topology)
    is_marked = dataset.remainder == 'exact'
    if dataset.tolerant_reader is not None:
        dataset.tolerant_reader.begin_pass()
    dataset.pool.follow(
        upcoming_batches(dataset, plan, topology, plan.ids, first=0),
        first=0,
        ahead=look_ahead(dataset.predownload, plan.global_batch_size // topology.replicas, count),
    )
    try:
        for k in range(number, plan.num_batches, count):
            dataset.pool.advance(k)
            own_samples = plan.own_samples(k)
            for row, sample in enumerate(_samples(dataset, epoch, plan.ids(k).tolist())):
                yield PADDING_MARK.put(sample, row >= own_samples) if is_marked else sample
    finally:
        dataset.pool.rest()
        dataset.progress.end(epoch)


def _samples(dataset: StreamingDataset, epoch: int, ids: list[int]) -> Iterator[Any]:
    """The samples of one batch."""

    def read(sample_id: int) -> Any:
        with drawing_for(dataset.shuffle_seed, epoch, sample_id):
            return dataset[sample_id]

    if dataset.tolerant_reader is None:
        yield from read_each(ids, read, dataset.pool.describe)
        return
    # All at once: what stands in for a sample may be behind it.
    samples, bad = dataset.tolerant_reader.samples(ids, read)
    for row, sample in enumerate(samples):
        yield BAD_SAMPLE_MARK.put(sample, bad is not None and bool(bad[row]))
