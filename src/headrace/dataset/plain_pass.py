"""The samples of a dataset one by one, as a plain `torch.utils.data.DataLoader` reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from headrace.dataset.batch_keys import BAD_SAMPLE_KEY, PADDING_KEY
from headrace.dataset.prefetch.horizon import upcoming_batches
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.dataset.progress import ending_here
from headrace.dataset.reading.batch_reader import SampleSource
from headrace.dataset.reading.sample_errors import read_each
from headrace.dataset.sample_rng import drawing_for
from headrace.dataset.workers.shutdown import end_with_rank
from headrace.errors import ConfigError
from headrace.order import BatchPlan


def samples_of_pass(source: SampleSource, begin_pass: Callable[..., BatchPlan]) -> Iterator[Any]:
    """This worker's samples of a dataset's next epoch; `begin_pass` as `StreamingDataset.begin_pass`.

    A plain loader takes batches from its workers in turn, so each has the samples of every n-th batch.
    """
    worker = get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
    if worker is not None:
        end_with_rank(source.progress)
    plan, shards = begin_pass(worker=number), source.pool.shards
    epoch, is_marked = plan.order.epoch, plan.remainder == 'exact'
    if source.skipping_reader is not None:
        source.skipping_reader.begin_pass()
    shards.follow(
        upcoming_batches(source.pool, plan, lambda k: source.pool.places_in_batch(plan.ids(k))[0].shards, first=0),
        first=0,
        limits=prefetch_limits(source.predownload, plan.batch_size, count),
    )
    ends_here = ending_here()
    try:
        for k in range(number, plan.num_batches, count):
            if source.progress.is_overtaken(epoch, rank=plan.topology.rank, worker=number):
                source.progress.refuse_turns()
            shards.advance(k)
            own_samples = plan.own_samples(k)
            for row, sample in enumerate(_samples(source, epoch, plan.ids(k))):
                yield PADDING_KEY.put(sample, row >= own_samples) if is_marked else sample
    finally:
        if ends_here():
            shards.pause()
            source.progress.end(epoch)


def refuse_dealing(dataset: object, ranks: int) -> None:
    """Check that Accelerate, and so Hugging Face's Trainer, does not deal the samples of one rank out to all ranks."""
    accelerate: Any = sys.modules.get('accelerate.state')
    if ranks == 1 or accelerate is None:
        return
    for dealing in accelerate.GradientState().dataloader_references:
        dealt = getattr(dealing, 'dataset', None)
        if dataset is dealt or dataset is getattr(dealt, 'dataset', None):
            raise ConfigError(
                f'`accelerator.prepare` deals the samples that a process reads out to all {ranks} ranks, but a '
                f'{type(dataset).__name__} gives each rank its own samples already, so that the others would be lost. '
                f'Use `headrace.accelerate.prepare(accelerator, StreamingDataLoader(...))` in its place; with Hugging '
                f"Face's Trainer, `headrace.transformers.StreamingTrainer(..., loader=StreamingDataLoader(...))`."
            )


def _samples(source: SampleSource, epoch: int, sample_ids: npt.NDArray[np.int64]) -> Iterator[Any]:
    present, erased = source.pool.erased.replaced(sample_ids)
    ids: list[int] = present.tolist()

    def read(sample_id: int) -> Any:
        with drawing_for(source.shuffle_seed, epoch, sample_id):
            return source.samples[sample_id]

    if source.skipping_reader is None:
        yield from read_each(ids, read, source.pool.describe)
        return
    # All at once: a later sample may replace a bad one.
    samples, bad = source.skipping_reader.samples(ids, read)
    for row, sample in enumerate(samples):
        yield BAD_SAMPLE_KEY.put(sample, any(mask is not None and bool(mask[row]) for mask in (bad, erased)))
