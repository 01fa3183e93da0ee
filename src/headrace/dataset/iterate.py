"""A pass over a dataset, sample by sample: `for sample in dataset`, or in the workers of a plain `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import get_worker_info

from headrace.dataset.batch_keys.bad_sample import BAD_SAMPLE_KEY
from headrace.dataset.batch_keys.padding import PADDING_KEY
from headrace.dataset.pass_end import ending_here
from headrace.dataset.prefetch.distance import look_ahead
from headrace.dataset.prefetch.upcoming_batch import upcoming_batches
from headrace.dataset.reading.protocol import SampleSource
from headrace.dataset.reading.sample_errors import read_each
from headrace.dataset.sample_rng import drawing_for
from headrace.dataset.workers.shutdown import end_with_parent
from headrace.order import BatchPlan

__all__ = ['samples_of_pass']


class _PassSource(SampleSource, Protocol):
    def begin_pass(self, *, worker: int = 0) -> BatchPlan:
        """Begin the next pass."""
        ...


def samples_of_pass(dataset: _PassSource) -> Iterator[Any]:
    """This worker's samples of the dataset's next epoch.

    A plain loader takes batches from its workers in turn, so each has the samples of every n-th batch.
    """
    worker = get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
    if worker is not None:
        end_with_parent()
    plan = dataset.begin_pass(worker=number)
    epoch, is_marked = plan.order.epoch, plan.remainder == 'exact'
    if dataset.skipping_reader is not None:
        dataset.skipping_reader.begin_pass()
    dataset.pool.shards.follow(
        upcoming_batches(dataset, plan, plan.ids, first=0),
        first=0,
        ahead=look_ahead(dataset.predownload, plan.batch_size, count),
    )
    ends_here = ending_here()
    try:
        for k in range(number, plan.num_batches, count):
            dataset.pool.shards.advance(k)
            own_samples = plan.own_samples(k)
            for row, sample in enumerate(_samples(dataset, epoch, plan.ids(k).tolist())):
                yield PADDING_KEY.put(sample, row >= own_samples) if is_marked else sample
    finally:
        if ends_here():
            dataset.pool.shards.pause()
            dataset.progress.end(epoch)


def _samples(dataset: SampleSource, epoch: int, ids: list[int]) -> Iterator[Any]:
    """The samples of one batch."""

    def read(sample_id: int) -> Any:
        with drawing_for(dataset.shuffle_seed, epoch, sample_id):
            return dataset[sample_id]

    if dataset.skipping_reader is None:
        yield from read_each(ids, read, dataset.pool.describe)
        return
    # All at once: a later sample may replace a bad one.
    samples, bad = dataset.skipping_reader.samples(ids, read)
    for row, sample in enumerate(samples):
        yield BAD_SAMPLE_KEY.put(sample, bad is not None and bool(bad[row]))
