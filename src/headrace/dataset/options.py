"""The arguments of a `StreamingDataset`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.dataset.streams.stream import Stream
from headrace.options.constraints import AtLeast, MoreThan
from headrace.options.dataset import DatasetOptions
from headrace.options.streams import OnChangedData
from headrace.order import DEFAULT_SEED, Schedule, SchedulePoint, Topology


@dataclass(frozen=True, kw_only=True)
class DatasetArguments(DatasetOptions):
    """The options of a `StreamingDataset` in Python."""

    streams: Sequence[Stream] | None = None
    """The streams to mix. Or give one by `remote`, `local` and `split`, and None or an empty list here. With `streams`,
    `split` is the default of theirs."""

    download_retry: Annotated[int, AtLeast(0)] = 2
    download_timeout: Annotated[float, MoreThan(0)] = 60
    keep_zip: bool = False
    on_changed_data: OnChangedData | None = 'refresh'
    shuffle_seed: Annotated[int, AtLeast(0)] = DEFAULT_SEED
    num_canonical_nodes: Annotated[int | None, AtLeast(0)] = None

    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Samples of one device batch."""

    global_batch_size: Annotated[int | None, AtLeast(1)] = None
    """Samples of a batch over all ranks, in place of `batch_size`. The ranks must divide it, unless `uneven` is
    given."""

    schedule: Schedule | Sequence[SchedulePoint | dict[str, Any]] = ()
    """Proportions that change during the run, instead of the streams' weights. Each point has `at` (samples of the run
    so far), `proportions` (by stream name) and `change` (`step`, or `linear` for a ramp from the point before)."""

    stream_name: str = 'stream'
    """Name of a class in `streams_registry` that makes the stream of `remote` and `local`."""

    stream_config: dict[str, Any] | None = None
    """More arguments for that class."""

    topology: Topology | None = None
    """Rank, world size and nodes. Default: detected at the first `len` or `iter`."""
