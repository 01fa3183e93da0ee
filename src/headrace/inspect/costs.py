"""The costs of a dataset's samples: measured for the runs of this machine, and described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from headrace.dataset.streams.open_streams import open_streams
from headrace.dataset.streams.stream import Stream
from headrace.errors import StreamError
from headrace.errors.display import count_text, text_table
from headrace.options.streams import StreamOptions
from headrace.selection.costs import Measuring

if TYPE_CHECKING:
    from headrace.storage import StoreOptions

ROWS: Final = 32  # rows of the random batch whose padding is told
_BAR: Final = 40  # characters of the longest bar


@dataclass(frozen=True)
class CostSummary:
    column: str
    samples: int
    sum: int
    quantiles: Mapping[str, int]  # 'min', 'median', 'p90', 'p99' and 'max'.
    padding: float  # The mean share of padding in batches of `ROWS` random samples, 0 to 1.
    histogram: Sequence[tuple[int, int]]
    """The lower edge and the samples of each bin, which ends before the next one. Edges are 0 and powers of 2."""

    @classmethod
    def of(cls, column: str, costs: npt.NDArray[Any]) -> CostSummary:
        values, counts = np.unique(costs, return_counts=True)
        ends = counts.cumsum()
        count, total = len(costs), int(costs.sum(dtype=np.int64))
        places = {'min': 0, 'median': count // 2, 'p90': count * 9 // 10, 'p99': count * 99 // 100, 'max': count - 1}
        quantiles = {name: int(values[ends.searchsorted(place, 'right')]) for name, place in places.items()}
        # The share of random batches whose longest row has this cost.
        longest = float(np.diff((ends / count) ** ROWS, prepend=0) @ values)
        edges = [0, *(1 << power for power in range(quantiles['max'].bit_length()))]
        before = np.concatenate([[0], ends])[values.searchsorted([*edges, 1 << 32])]
        bins = list(zip(edges, np.diff(before).tolist(), strict=True))
        while bins[0][1] == 0:
            bins.pop(0)
        return cls(column, count, total, quantiles, 1 - total / count / longest if longest else 0.0, bins)

    def to_json(self) -> dict[str, Any]:
        return {
            'column': self.column,
            'samples': self.samples,
            'sum': self.sum,
            **self.quantiles,
            f'padding_of_{ROWS}': round(self.padding, 4),
            'histogram': [list(bucket) for bucket in self.histogram],
        }

    def lines(self) -> list[str]:
        said = ', '.join(f'{name} {value:,}' for name, value in self.quantiles.items())
        most = max(count for _, count in self.histogram)
        rows = [(f'{edge:,}+', f'{count:,}', '#' * -(-_BAR * count // most)) for edge, count in self.histogram]
        return [
            f'cost {self.column}: {count_text(self.samples, "sample")}, {self.sum:,} in all',
            f'  {said}',
            f'  padding of {ROWS} random samples: {self.padding:.1%}',
            *(line.rstrip() for line in text_table(rows)),
        ]


def measure(
    streams: Sequence[Stream],
    column: str | None = None,
    *,
    jobs: int = 8,
    cache_limit: int | None = None,
    allow_unsafe_types: bool = False,
    progress: Callable[[int, int | None], None] = lambda *_: None,
) -> list[CostSummary]:
    """Measure the costs of streams for the runs of this machine, unless they are kept; a killed call goes on.

    With other columns or selections than the runs', costs are measured again. `column` is for streams that name no
    `cost`. `progress` gets the numbers of measured shards and of all. StreamError: a stream has no cost, or one that is
    not its column.
    """
    for number, stream in enumerate(streams):
        if (stream.cost or column) is None:
            raise StreamError(
                f'`headrace measure` needs the column whose values are costs, but stream '
                f'{stream.name or f"stream_{number}"} names no `cost`. Add --cost COLUMN, or `cost` to the stream.'
            )
    counts = dict[str, tuple[int, int]]()

    def show(stream: str, done: int, total: int) -> None:
        counts[stream] = done, total
        progress(*(sum(numbers) for numbers in zip(*counts.values(), strict=True)))

    opened = open_streams(
        streams,
        StreamOptions(cost=column),
        cache_limit=cache_limit,
        allow_unsafe_types=allow_unsafe_types,
        has_costs=True,
        measuring=Measuring(jobs, show),
    )
    return [
        CostSummary.of(stream.cost, stream.costs.values)
        for stream in opened
        if stream.cost is not None and stream.costs is not None
    ]


def stream_at(
    url: str,
    options: StoreOptions,
    format: str | None = None,  # noqa: A002 - as in a stream
    format_options: Mapping[str, Any] | None = None,
    split: str | None = None,
) -> Stream:
    """The stream of a folder or URL."""
    from headrace.storage import local_path

    is_local = local_path(url) is not None
    return Stream(
        remote=None if is_local else url,
        local=str(local_path(url)) if is_local else None,
        endpoint_url=options.endpoint_url,
        region=options.region,
        anonymous=options.anonymous or None,
        store_options=dict(options.extra) or None,
        format=format,
        format_options=format_options,
        split=split,
    )
