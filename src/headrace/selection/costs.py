"""The cost of each sample: its length, measured once per machine, kept from run to run, mapped by all processes.

A file of ``.headrace-costs`` is, all little-endian::

    'hrcosts1' | u64 samples | 16 bytes: digest of the key | 16 bytes: digest of the costs | u32 cost[samples]

It is valid if its digest, of xxh3, is right. The digest is part of checkpoints. While the costs are measured, those of
the first shards are in the file ``.costs.part``, so that a process that goes on after a kill measures the others only::

    {8 bytes: xxh3 of the shard's number and its costs | u32 cost[samples of the shard]} [shards]
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import CacheError, DiskFullError, ShardError, StreamError
from headrace.errors.redaction import logger_of, warn
from headrace.format.costs import costs_of_values
from headrace.order import each_selected_row
from headrace.selection.kept_file import KeptFile
from headrace.selection.selection import SECONDS_BETWEEN_LINES, Shards, in_threads
from headrace.storage.cache.control_folder import OpenFolder, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from headrace.format import ShardInfo
    from headrace.order import RowSelection

FOLDER: Final = '.headrace-costs'
_NAMES: Final = re.compile(r'[0-9a-f]{32}\.costs(\.tmp|\.part)?')
_HEAD: Final = struct.Struct('<8sQ16s16s')
_MAGIC: Final = b'hrcosts1'
_RULES: Final = 2
"""Part of the key: another number wherever values get other costs. The first rules counted digits of texts."""

Costs = npt.NDArray[np.uint32]
_log = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Measuring:
    jobs: int = 8
    progress: Callable[[str, int, int], None] = lambda *_: None
    """Called with the stream, and the numbers of its measured shards and of all."""


class _CostsFile(KeptFile['StoredCosts']):
    def __init__(self, folder: Path, key: str, samples: int) -> None:
        super().__init__(folder, FOLDER, _NAMES, f'{key}.costs')
        self.folder = folder
        self._key, self._samples = bytes.fromhex(key), samples

    def load(self, fill: Callable[[Costs, BinaryIO], None]) -> StoredCosts:
        def make(folder: OpenFolder) -> None:
            values, part_name = np.empty(self._samples, '<u4'), f'{self.name}.part'
            with open(folder.open_file(part_name, os.O_RDWR | os.O_CREAT), 'r+b') as part:
                fill(values, part)
            head = _HEAD.pack(_MAGIC, self._samples, self._key, xxhash.xxh3_128_digest(values.data))
            publish(folder, self.name, [head, values.data.cast('B')])
            folder.delete(part_name)

        return self.made(make)

    def _content(self, data: mmap.mmap) -> StoredCosts | None:
        if len(data) != _HEAD.size + 4 * self._samples:
            return None
        magic, samples, key, digest = _HEAD.unpack_from(data)
        if (magic, samples, key) != (_MAGIC, self._samples, self._key):
            return None
        values = np.frombuffer(data, '<u4', samples, _HEAD.size)
        return StoredCosts(self, values, digest.hex()) if xxhash.xxh3_128_digest(values.data) == digest else None


class StoredCosts:
    """The costs of a stream's samples, uint32[samples], as a mapped file. A copy for another process maps it, too."""

    def __init__(self, file: _CostsFile, values: Costs, digest: str) -> None:
        self.file, self.values, self.digest = file, values, digest

    def __reduce__(self) -> tuple[Callable[..., StoredCosts], tuple[Any, ...]]:
        self.file.load(lambda out, _: np.copyto(out, self.values))  # it may be deleted
        return KeptFile.find_again, (self.file,)


class DatasetCosts:
    """The costs of the samples of several streams, which are numbered stream after stream."""

    def __init__(self, streams: Sequence[StoredCosts]) -> None:
        self._streams = streams
        self._offsets = np.cumsum([0, *(len(stream.values) for stream in streams)])
        self.digest = hashlib.blake2b(''.join(stream.digest for stream in streams).encode(), digest_size=8).hexdigest()

    def kept(self, key: str, size: int, fill: Callable[[Costs], None]) -> Costs:
        """Return uint32[size] of a file beside the costs, which `fill` fills in if it is not there; 32 hex digits."""
        try:
            return _CostsFile(self._streams[0].file.folder, key, size).load(lambda out, _: fill(out)).values
        except (CacheError, DiskFullError) as error:
            warn(f'{error} Each process works them out for itself.', stacklevel=2)
            fill(out := np.empty(size, '<u4'))
            return out

    @property
    def largest(self) -> int:
        return max((int(stream.values.max(initial=0)) for stream in self._streams), default=0)

    def __call__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if len(self._streams) == 1:
            return self._streams[0].values[ids].astype(np.int64)
        numbers = self._offsets.searchsorted(ids, 'right') - 1
        costs = np.empty(len(ids), np.int64)
        for number in np.unique(numbers).tolist():
            where = numbers == number
            costs[where] = self._streams[number].values[ids[where] - self._offsets[number]]
        return costs


def check_cost(column: str, infos: Sequence[ShardInfo], title: str) -> None:
    for schema in {id(info.schema): info.schema for info in infos}.values():
        if column not in schema.names:
            raise StreamError(
                f'`cost` of stream {title} names the column {column!r}, but its columns are {", ".join(schema.names)}. '
                f'Name one of these.'
            )


def measure_costs(shards: Shards, column: str, rows: RowSelection | None, measuring: Measuring) -> StoredCosts:
    """The costs of the samples that a stream offers, in their order: `column`'s whole numbers, or lengths.

    They are measured once for each machine. A shard is fetched and read only if nothing less tells its costs.
    StreamError: the column has a null, or a number that is not a cost.
    """
    counts = shards.sizes if rows is None else rows.counts
    key = hashlib.blake2b(f'{shards.identity}\0{column}\0{_RULES}'.encode(), digest_size=16).hexdigest()
    file = _CostsFile(shards.folder, key, int(counts.sum()))
    return file.load(lambda out, part: _measure(shards, column, rows, out, part, measuring))


def _measure(
    shards: Shards, column: str, rows: RowSelection | None, out: Costs, part: BinaryIO, measuring: Measuring
) -> None:
    """Fill `out` from `part`, and from the shards that it lacks, whose costs it gets; see the module."""
    counts = shards.sizes if rows is None else rows.counts
    wanted = counts.nonzero()[0].tolist()
    starts = np.cumsum(counts) - counts
    kept = end = 0
    for shard in wanted:
        place = out[starts[shard] : starts[shard] + counts[shard]]
        entry = part.read(8 + place.nbytes)
        if len(entry) < 8 + place.nbytes or entry[:8] != _checksum(shard, entry[8:]):
            break
        place[:] = np.frombuffer(entry, '<u4', offset=8)
        kept, end = kept + 1, part.tell()
    part.seek(end)
    part.truncate()
    remark = f' {kept} of them were measured before.' if kept else ''
    samples, title = len(out), shards.title
    _log.info('Measuring the cost %r of %d samples in %d shards of %s.%s', column, samples, len(wanted), title, remark)

    whole: list[int] = []

    def read(shard: int) -> npt.NDArray[np.int64]:
        stored = np.arange(counts[shard])
        if rows is not None:
            stored = np.concatenate([row for _, row in each_selected_row(rows, np.array([shard]))])
        read_lengths = shards.lengths_of(shard, column)
        if read_lengths is not None:
            lengths = _joined(read_lengths, column, f'shard {shard} of stream {title}')
            if len(lengths) != shards.sizes[shard]:
                raise ShardError(
                    f'Shard {shard} of stream {title} has {shards.sizes[shard]} rows in its index, but {len(lengths)} '
                    f'lengths of {column!r}. Restore the data, or write them again.'
                )
            return lengths[stored]
        whole.append(shard)
        with shards.read(shard) as reader:
            batch = shards.infos[shard].schema.allocate(len(stored), [column])
            reader.gather(stored, np.arange(len(stored)), batch)
            return costs_of_values(batch.columns[column], column, f'the offered samples of shard {shard} of {title}')

    began = said = time.monotonic()
    for number, (shard, costs) in enumerate(in_threads(read, wanted[kept:], measuring.jobs), kept + 1):
        place = out[starts[shard] : starts[shard] + len(costs)]
        place[:] = costs
        part.write(_checksum(shard, place.tobytes()) + place.tobytes())
        part.flush()
        measuring.progress(title, number, len(wanted))
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            _log.info('Measured the cost of %d of %d shards of %s.', number, len(wanted), title)
    seconds = time.monotonic() - began
    _log.info('Measured the cost %r of %s in %.1f s. %d shards were read whole.', column, title, seconds, len(whole))


def _joined(parts: Iterable[Any], column: str, place: str) -> npt.NDArray[np.int64]:
    """The costs of all values of a shard, which come in parts."""
    values = list(parts)
    if not all(isinstance(part, np.ndarray) and part.ndim == 1 for part in values):
        values = [[value for part in values for value in part]]
    return np.concatenate([costs_of_values(part, column, place) for part in values])


def _checksum(shard: int, costs: bytes) -> bytes:
    return xxhash.xxh3_64_digest(costs, seed=shard)
