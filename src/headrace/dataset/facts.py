"""The reprs of datasets and loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.dataset.attributes import DatasetAttributes
from headrace.dataset.streams.stream import columns_text, stream_text
from headrace.errors import ConfigError
from headrace.errors.display import Facts, count_text

_MOST = 8  # Streams that are listed.


def dataset_facts(dataset: DatasetAttributes) -> Facts:
    streams = list(dataset.streams)
    rows = [
        (stream.name or f'stream {number}', stream_text(stream, weight=len(streams) > 1))
        for number, stream in enumerate(streams[:_MOST])
    ]
    if len(streams) > _MOST:
        rows.append(('', f'and {len(streams) - _MOST} more streams'))
    rows.append(('columns', columns_text(streams)))
    rows.append(('epoch', count_text(dataset.epoch_size, 'sample') if dataset.has_length else 'does not end'))
    order = dataset.sample_run.config()
    shuffled = f'shuffled with seed {order.seed}' if order.shuffle else 'not shuffled'
    rows.append(('order', f'{order.algorithm or "native"}, {shuffled}'))
    if dataset.global_batch_size is not None:
        rows.append(('batch', _bounded(dataset, f'{dataset.global_batch_size:,} samples over all ranks')))
    elif dataset.batch_size is not None:
        rows.append(('batch', _bounded(dataset, f'{dataset.batch_size:,} samples per device')))
    title = f'{count_text(dataset.num_samples, "sample")} of {count_text(len(streams), "stream")}'
    return Facts(f'{type(dataset).__name__}: {title}', rows)


def loader_facts(
    name: str,
    dataset: DatasetAttributes,
    *,
    batch: str,
    more: str,
    workers: int,
    places: Callable[[], Iterable[tuple[int, int]]],
    fixed_epoch: int | None,
) -> Facts:
    """The facts that a loader of a dataset shows. `places`: that of its last batch, and that of its next pass."""
    title, rows = dataset_facts(dataset)
    try:
        position, following = (f'epoch {epoch}, sample {sample:,}' for epoch, sample in places())
    except ConfigError:  # the launcher's variables contradict one another
        position = following = 'unknown: so are the ranks'
    of_loader = [
        ('batch', f'{_bounded(dataset, batch)}, {more}'),
        ('workers', str(workers)),
        ('position', position + ('' if fixed_epoch is None else f'; every pass reads epoch {fixed_epoch}')),
        ('next', f'iter begins at {following}; peek() only looks there'),
        ('dataset', title),
    ]
    return Facts(name, [*of_loader, *(row for row in rows if row[0] != 'batch')])


def _bounded(dataset: DatasetAttributes, size: str) -> str:
    cost = dataset.run.settings.order.batch_cost
    return size if cost is None else f'at most {size}, and a cost of {cost.budget:,} over all ranks'
