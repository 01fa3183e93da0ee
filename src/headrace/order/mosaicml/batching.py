"""How streams share global batches: MosaicML Streaming's four methods, row by row.

Positions are numbered stream after stream, each stream's from 0 to its number of samples in the epoch; under `random`
all streams are as one. A row is a global batch: its P·R·B positions by node, rank and sample of the batch, or -1
without a sample. Nothing is held but which stream a row or a part of it belongs to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from headrace.errors import ConfigError, TopologyError
from headrace.order.arrays import IntArray
from headrace.order.config import OrderConfig
from headrace.order.mixture.mixture import Mixture
from headrace.order.mosaicml.partition import Partition
from headrace.order.random.numpy_streams import random_stream

_ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The parallel world that an epoch is dealt to."""

    nodes: int  # P.
    ranks: int  # R, ranks of each node.
    batch_size: int  # B, samples of a rank's batch.
    initial_nodes: int | None = None  # Number of nodes that the run began on, if known.

    @property
    def row_length(self) -> int:
        """Samples of a global batch."""
        return self.nodes * self.ranks * self.batch_size


class Batching(ABC):
    """The global batches of an epoch, or of what is left of it."""

    __slots__ = ('num_rows',)

    num_rows: int  # Number of rows; the last ones may be without samples.

    @abstractmethod
    def rows(self, numbers: IntArray, columns: slice = _ALL) -> IntArray:
        """Return int64[k, columns], positions or -1, of rows int64[k]; `columns`: a part of a row's P·R·B entries."""


def epoch_seed(config: OrderConfig, epoch: int) -> int:
    """Seed of picks and draws: another in each epoch only with balanced sampling and shuffle."""
    return config.seed + epoch if config.sampling == 'balanced' and config.shuffle else config.seed


def _stream_partition(config: OrderConfig, devices: Devices, choose: int, *, nodes: int, batch_size: int) -> Partition:
    return Partition(
        choose,
        config.num_canonical_nodes or 1,
        nodes=nodes,
        ranks=devices.ranks,
        batch_size=batch_size,
        algorithm=config.partition,
        initial_nodes=devices.initial_nodes,
    )


def continues(mixture: Mixture, config: OrderConfig, then: Devices, now: Devices) -> bool:
    """Whether batches that were dealt to some devices continue on others in the middle of an epoch."""
    if config.batching == 'device_per_stream':
        return then == now
    if config.batching == 'random':
        return True

    def rows(devices: Devices) -> list[int]:
        """Batches of each stream."""
        nodes, size = devices.nodes, devices.batch_size
        dealt = [_stream_partition(config, devices, c, nodes=nodes, batch_size=size) for c in mixture.choose]
        return [partition.num_full_rows for partition in dealt]

    is_same = config.batching == 'stratified' or rows(then) == rows(now)
    return is_same and then.row_length == now.row_length


class RandomBatching(Batching):
    """random: batches are runs of one sequence of all streams."""

    __slots__ = ('_partition',)

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int, devices: Devices, drop: int) -> None:  # noqa: ARG002
        """Leave out the first ``drop`` samples of the epoch."""
        self._partition = Partition(
            mixture.epoch_size,
            config.num_canonical_nodes or 1,
            nodes=devices.nodes,
            ranks=devices.ranks,
            batch_size=devices.batch_size,
            drop=drop,
            algorithm=config.partition,
            initial_nodes=devices.initial_nodes,
            resumes_in_repeats=True,
        )
        self.num_rows = self._partition.num_rows

    def rows(self, numbers: IntArray, columns: slice = _ALL) -> IntArray:
        return self._partition.rows(numbers, columns)


class StratifiedBatching(Batching):
    """stratified: every batch has the same number of samples of each stream, by the streams' proportions."""

    __slots__ = ('_first', '_offsets', '_partitions', '_portions')

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int, devices: Devices, drop: int) -> None:  # noqa: ARG002
        """Leave out the first ``drop`` samples of the epoch, rounded down to whole batches."""
        self._portions = _portions(mixture, devices.row_length)
        self._partitions = [_stream_partition(config, devices, c, nodes=1, batch_size=1) for c in mixture.choose]
        self._offsets = np.cumsum([0, *mixture.choose[:-1]])
        self._first = drop // devices.row_length
        batches = min(p.num_entries // q for p, q in zip(self._partitions, self._portions, strict=True))
        self.num_rows = max(batches - self._first, 0)

    def rows(self, numbers: IntArray, columns: slice = _ALL) -> IntArray:
        first = (numbers + self._first)[:, None]
        return np.concatenate(
            [
                offset + partition.at(first * portion + np.arange(portion))
                for partition, portion, offset in zip(self._partitions, self._portions, self._offsets, strict=True)
            ],
            axis=1,
        )[:, columns]


def _portions(mixture: Mixture, row_length: int) -> list[int]:
    """How many samples of each stream a batch has."""
    wanted = np.array(mixture.proportions) * row_length
    portions = wanted.astype(np.int64)
    missing = row_length - int(portions.sum())
    # Streams with equal fractions in a stable order; numpy's other sorts order them by the kind of CPU.
    portions[np.flip(np.argsort(wanted - portions, kind='stable'))[:missing]] += 1
    for stream, portion in zip(mixture.streams, portions.tolist(), strict=True):
        if portion <= 0:
            raise ConfigError(
                f'stratified batches must have at least 1 sample of every stream, got {portion} of stream '
                f'{stream.name!r} in a global batch of {row_length}. Raise the batch size or its proportion.'
            )
    return portions.tolist()


class PerStreamBatching(Batching):
    """per_stream: every global batch is of a single stream."""

    __slots__ = ('_first', '_line', '_offsets', '_partitions')

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int, devices: Devices, drop: int) -> None:
        """Leave out the first ``drop`` samples of the epoch, rounded down to whole batches."""
        self._partitions = [
            _stream_partition(config, devices, c, nodes=devices.nodes, batch_size=devices.batch_size)
            for c in mixture.choose
        ]
        counts = np.array([partition.num_full_rows for partition in self._partitions])
        _check_filled(mixture, counts, f'global batch of {devices.row_length}')
        self._offsets = np.cumsum([0, *mixture.choose[:-1]])
        self._line = _Line(counts)
        self._line.shuffle(epoch_seed(config, epoch))
        self._first = drop // devices.row_length
        self.num_rows = max(int(counts.sum()) - self._first, 0)

    def rows(self, numbers: IntArray, columns: slice = _ALL) -> IntArray:
        streams, draws = self._line.at(0, numbers + self._first)
        length = len(range(self._partitions[0].row_length)[columns])
        out = np.empty((len(numbers), length), np.int64)
        for i in np.unique(streams).tolist():
            where = streams == i
            out[where] = self._partitions[i].rows(draws[where], columns) + self._offsets[i]
        return out


class DevicePerStreamBatching(Batching):
    """device_per_stream: every rank's batch is of a single stream."""

    __slots__ = (
        '_batch', '_devices', '_first', '_line', '_offsets', '_partitions', '_share',
    )  # fmt: skip

    def __init__(self, mixture: Mixture, config: OrderConfig, epoch: int, devices: Devices, drop: int) -> None:
        """Leave out the first ``drop`` samples of the epoch, rounded down to whole batches."""
        parts = config.num_canonical_nodes or 1
        if parts % devices.nodes:
            raise TopologyError(
                f'device_per_stream batching needs a num_canonical_nodes that is a multiple of the {devices.nodes} '
                f'nodes, got {parts}.'
            )
        self._devices, self._batch = devices, devices.batch_size
        self._partitions = [_stream_partition(config, devices, c, nodes=parts, batch_size=1) for c in mixture.choose]
        self._share = parts // devices.nodes * devices.ranks  # entries of a node in a row of a partition
        counts = np.array([p.num_rows * self._share // self._batch for p in self._partitions])
        _check_filled(mixture, counts, f'device batch of {devices.batch_size}')
        self._offsets = np.cumsum([0, *mixture.choose[:-1]])
        self._line = _Line(counts)
        self._line.shuffle(epoch_seed(config, epoch), times=devices.nodes)
        most, count = int(counts.sum()), devices.nodes * devices.ranks
        self._first = drop // devices.row_length
        # MosaicML Streaming adds rows without samples, also where the number divides.
        self.num_rows = max((most + count - most % count) // devices.ranks - self._first, 0)

    def rows(self, numbers: IntArray, columns: slice = _ALL) -> IntArray:
        nodes, ranks = self._devices.nodes, self._devices.ranks
        device_rows = ((numbers + self._first)[:, None] * (nodes * ranks) + np.arange(nodes * ranks)).ravel()
        out = np.full((len(device_rows), self._batch), -1, np.int64)
        # The nodes' device batches were interleaved, and are handed out as if they were not.
        origins = device_rows % nodes
        for node in range(nodes):
            mine = np.flatnonzero((origins == node) & (device_rows // nodes < len(self._line)))
            streams, draws = self._line.at(node, device_rows[mine] // nodes)
            for i in np.unique(streams).tolist():
                where = mine[streams == i]
                entries = draws[streams == i][:, None] * self._batch + np.arange(self._batch)
                rows, place = np.divmod(entries, self._share)
                partition = self._partitions[i]
                at = partition.at(rows * partition.row_length + node * self._share + place)
                out[where] = at + self._offsets[i]
        return out.reshape(len(numbers), -1)[:, columns]


class _Line:
    """The draws of streams, in one or more random orders."""

    __slots__ = ('_counts', '_draws', '_streams')

    def __init__(self, counts: IntArray) -> None:
        self._counts = counts
        self._streams: list[IntArray] = []
        self._draws: list[IntArray] = []

    def __len__(self) -> int:
        return int(self._counts.sum())

    def shuffle(self, seed: int, times: int = 1) -> None:
        stream = random_stream(seed)
        begins = np.cumsum(self._counts) - self._counts
        for _ in range(times):
            streams = np.repeat(np.arange(len(self._counts)), self._counts)
            stream.shuffle(streams)
            draws = np.empty_like(streams)
            draws[np.argsort(streams, kind='stable')] = np.arange(len(streams)) - np.repeat(begins, self._counts)
            self._streams.append(streams)
            self._draws.append(draws)

    def at(self, order: int, places: IntArray) -> tuple[IntArray, IntArray]:
        """Streams, and how many draws each had before, of places int64[k] of one of the orders."""
        return self._streams[order][places], self._draws[order][places]


def _check_filled(mixture: Mixture, counts: IntArray, what: str) -> None:
    empty = [stream.name for stream, count in zip(mixture.streams, counts.tolist(), strict=True) if not count]
    if empty:
        raise ConfigError(
            f'every stream must fill at least one {what}, but streams {empty} do not. '
            'Lower the batch size, or let the epoch draw more of them.'
        )


BATCHINGS: Mapping[str, type[RandomBatching | StratifiedBatching | PerStreamBatching | DevicePerStreamBatching]] = (
    MappingProxyType(
        {
            'device_per_stream': DevicePerStreamBatching,
            'per_stream': PerStreamBatching,
            'random': RandomBatching,
            'stratified': StratifiedBatching,
        }
    )
)
"""By the name that users give: a function of (mixture, config, epoch, devices, drop)."""
