"""The reprs of datasets and loaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from headrace.dataset.streams.facts import ShownStream, columns_text, stream_text
from headrace.display import Facts, count_text
from headrace.errors import ConfigError
from headrace.order import OrderConfig, Run

__all__ = ['ShownDataset', 'ShownLoader', 'dataset_facts', 'loader_facts']

_MOST = 8
"""Streams that are listed."""


@runtime_checkable
class PackedRun(Protocol):
    """A run through sequences that are packed from documents."""

    @property
    def documents(self) -> Run:
        """The run through the documents."""
        ...


class ShownDataset(Protocol):
    """The attributes of a dataset that its repr shows."""

    batch_size: int | None

    @property
    def streams(self) -> Sequence[ShownStream]:
        """Its streams, opened."""
        ...

    @property
    def num_samples(self) -> int:
        """Samples that are offered."""
        ...

    @property
    def epoch_size(self) -> int:
        """Samples of an epoch."""
        ...

    @property
    def has_length(self) -> bool:
        """Whether an epoch ends."""
        ...

    @property
    def run(self) -> Run | PackedRun:
        """The run through the samples."""
        ...


class ShownLoader(Protocol):
    """The attributes of a loader that its repr shows."""

    batch_size: int | None
    num_workers: int
    mark_streams: bool
    fixed_epoch: int | None

    @property
    def remainder(self) -> str:
        """Handling of the samples after the last full global batch."""
        ...

    @property
    def dataset(self) -> ShownDataset:
        """What it reads."""
        ...

    def _current(self) -> tuple[int, int]:
        """Epoch, and its samples that were handed out."""
        ...

    def next_pass(self) -> tuple[int, int]:
        """Epoch and first sample of the next `iter`."""
        ...


def dataset_facts(dataset: ShownDataset) -> Facts:
    """Streams, columns, epoch and order."""
    streams = list(dataset.streams)
    rows = [
        (stream.name or f'stream {number}', stream_text(stream, weight=len(streams) > 1))
        for number, stream in enumerate(streams[:_MOST])
    ]
    if len(streams) > _MOST:
        rows.append(('', f'and {len(streams) - _MOST} more streams'))
    rows.append(('columns', columns_text(streams)))
    rows.append(('epoch', count_text(dataset.epoch_size, 'sample') if dataset.has_length else 'does not end'))
    run = dataset.run
    rows.append(('order', _order((run.documents if isinstance(run, PackedRun) else run).config(1, None))))
    if dataset.batch_size is not None:
        rows.append(('batch', f'{dataset.batch_size:,} samples per device'))
    title = f'{count_text(dataset.num_samples, "sample")} of {count_text(len(streams), "stream")}'
    return Facts(f'{type(dataset).__name__}: {title}', rows)


def loader_facts(loader: ShownLoader) -> Facts:
    """Batches and position, then the dataset."""
    title, rows = dataset_facts(loader.dataset)
    fixed = '' if loader.fixed_epoch is None else f'; every pass reads epoch {loader.fixed_epoch}'
    try:
        where, following = (f'epoch {e}, sample {sample:,}' for e, sample in (loader._current(), loader.next_pass()))
    except ConfigError:  # the launcher's variables contradict one another
        where = following = 'unknown: so are the ranks'
    own = [
        ('batch', f'{loader.batch_size:,} samples per device, remainder {loader.remainder!r}'),
        ('workers', str(loader.num_workers)),
        ('position', where + fixed),
        ('next', f'iter begins at {following}; peek() only looks there'),
        ('dataset', title),
    ]
    return Facts(type(loader).__name__, [*own, *(row for row in rows if row[0] != 'batch')])


def _order(order: OrderConfig) -> str:
    algorithm = order.algorithm or 'native'
    return f'{algorithm}, shuffled with seed {order.seed}' if order.shuffle else f'{algorithm}, not shuffled'
