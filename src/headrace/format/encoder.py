"""The common class of shard encoders of all formats.

An encoder turns samples into finished shards and does no input or output::

    encoder = MDSEncoder({'id': 'int', 'text': 'str'}, compression='zstd', hashes=['sha1'], size_limit='64mb')
    full = [shard for sample in samples for shard in encoder.add(sample)]

    full += encoder.finish()                  # the last shard
    for shard in full:
        store(shard.files)

    store([('index.json', dump_index([shard.info for shard in full]))])

``add`` checks and encodes the sample first, so the encoder accepts the next sample after an error. ``add_batch`` takes
columns with the values of many samples, and makes the same shards. A shard stays in memory until it is full. Errors
count samples in the order of their adding, from 0.

``collect``, ``collect_batch`` and ``cut`` do the same, but leave the last step to the caller: ``CollectedShard.pack``
joins, compresses and hashes a shard, in any thread.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from headrace.errors import ConfigError
from headrace.errors.mapping import add_note
from headrace.format.checksum import get_hash, is_hash
from headrace.format.compression import compress, get_compression_extension
from headrace.format.encodings.arrays import unmasked
from headrace.format.human_size import bytes_to_int
from headrace.format.shard_memory import WAITING, BlockPool, Piece, ShardMemory, joined_rows, shared_pool
from headrace.format.shards import NO_HASHES, FileInfo, IntArray, Schema, ShardFile, ShardInfo


@dataclass(frozen=True, slots=True)
class EncodedShard:
    """A finished shard."""

    info: ShardInfo
    """Its entry in the index; ``info.entry()`` is the JSON object."""
    files: tuple[tuple[str, bytes], ...]
    """Name and content of each file to store. With compression only the compressed files."""


@dataclass(frozen=True, slots=True)
class ShardPieces:
    """A finished shard whose files are not in one piece each, so that nothing is copied before it is stored."""

    info: ShardInfo
    """Its entry in the index."""
    files: tuple[tuple[str, list[Piece]], ...]
    """Name and content of each file to store. The content is the pieces, one after another.

    Memory is used again when the last view of it goes. So a writer takes each piece out of the list once it is stored.
    """


@dataclass(frozen=True, slots=True)
class CollectedShard:
    """The samples of a shard, ready to be packed into its files."""

    number: int
    """The shard's number in the dataset, from 0."""
    samples: int
    """Number of samples."""
    pack_pieces: Callable[[], ShardPieces]
    """As `pack`, but only compression and hashes join the samples."""

    def pack(self) -> EncodedShard:
        """Join, compress and hash the samples. Any thread may call it."""
        packed = self.pack_pieces()
        return EncodedShard(packed.info, tuple((name, b''.join(pieces)) for name, pieces in packed.files))


@dataclass(frozen=True, slots=True)
class EncodedRows:
    sizes: IntArray
    pieces: Callable[[int, int], Iterable[Piece]]
    """The bytes of samples from one row to before another. They are copied before the next piece is asked for."""


DEFAULT_SIZE_LIMIT: Final = 1 << 26
MAX_OFFSET: Final = (1 << 32) - 1  # the largest offset of a shard's table


def check_compression(compression: str | None) -> str | None:
    if not compression:
        return None
    if not isinstance(compression, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not all callers have types
        raise ConfigError(
            f"`compression` is the name of an algorithm, such as 'zstd' or 'zstd:7', but is {compression!r}."
        )
    get_compression_extension(compression)  # refuses an unknown one
    return compression


def check_hashes(hashes: Sequence[str] | None) -> tuple[str, ...]:
    given: Any = hashes
    if isinstance(given, str) or not (given is None or isinstance(given, Iterable)):
        raise ConfigError(f"`hashes` is a list of names, such as ['sha1'], but is {given!r}.")
    names = tuple(hashes or ())
    unknown = [name for name in names if not is_hash(name)]
    if unknown:
        raise ConfigError(f'{unknown[0]!r} is not a supported hash algorithm. See `headrace.format.get_hashes()`.')
    if list(names) != sorted(names):
        raise ConfigError(f'`hashes` is sorted by name, but got {list(names)}. Give {sorted(names)}.')
    return names


def check_size_limit(size_limit: int | str | None) -> int | None:
    if size_limit is None:
        return None
    limit = bytes_to_int(size_limit)
    if limit < 0:
        raise ConfigError(f'`size_limit` is a number of bytes, 0 or None for no limit, but got {size_limit!r}.')
    if limit > MAX_OFFSET:
        raise ConfigError(
            f'`size_limit` must be less than 2**32 because shards hold 32-bit offsets, but got {size_limit!r}. '
            f"Use a smaller one: '64mb' suits most data."
        )
    return limit or None


_PLAIN_ERRORS: Final = (AttributeError, TypeError, ValueError, OverflowError)


def name_place(error: Exception, place: str) -> None:
    """Prefix an encoding's message with a place, or note the place on another error."""
    if type(error) in _PLAIN_ERRORS and len(error.args) == 1:
        error.args = (f'{place}: {error.args[0]}',)
    else:
        add_note(error, f'While encoding {place[0].lower()}{place[1:]}.')


def as_sequence(name: str, values: Any) -> Sequence[Any]:
    """The values of a column as a sequence, with tensors as arrays. TypeError, ValueError: text, or masked values."""
    try:
        if isinstance(values, np.ma.MaskedArray):
            return cast('Sequence[Any]', unmasked(values))
        if isinstance(values, list | tuple | np.ndarray):
            return cast('Sequence[Any]', values)
        if hasattr(values, '__array__'):
            return cast('Sequence[Any]', np.asarray(values))
        if not isinstance(values, str | bytes):
            return list(values)
    except Exception as error:
        name_place(error, f'Column {name!r}')
        raise
    raise TypeError(
        f'Column {name!r}: a column of a batch is a list or an array of values, but got one {type(values).__name__}, '
        f'{values[:60]!r}. Put it into a list.'
    )


def common_length(columns: Mapping[str, Sequence[Any]]) -> int:
    """The number of values of each column of a batch; a ValueError if they differ."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f'The columns of a batch have equally many values, but got {lengths}. Nothing was added.')
    return next(iter(lengths.values()), 0)


def python_values(values: Sequence[Any]) -> Sequence[Any]:
    """The values of a column one by one: Python objects of an array with one axis, else its rows."""
    if isinstance(values, np.ndarray):
        return values.tolist() if values.ndim == 1 else list(values)
    return values


class ShardEncoder(ABC):
    """Collects samples into shards of one format.

    Args:
        schema: the columns, checked.
        compression: algorithm with an optional level ('zstd', 'br:9'), None or '' for none.
        hashes: names of hash algorithms, sorted.
        size_limit: bytes of a shard, a number or a text such as '64mb'; None or 0 for no limit. Each format counts its
            own files.

    Raises:
        ConfigError: an argument is invalid.
    """

    _sample_overhead = 0
    """Bytes of the data file for each sample besides the sample."""

    def __init__(
        self, schema: Schema, compression: str | None, hashes: Sequence[str] | None, size_limit: int | str | None
    ) -> None:
        self.schema = schema
        self.compression = check_compression(compression)
        self.hashes = check_hashes(hashes)
        self.size_limit = check_size_limit(size_limit)
        self._blocks = shared_pool()
        self._config = json.dumps(self.get_config(), sort_keys=True).encode('ascii')
        uncounted, self._empty_size = self._sizes_of_empty_shard()
        self._largest = MAX_OFFSET - uncounted
        self._limit = self._largest if self.size_limit is None else self.size_limit
        self._refused = 0  # samples with an error; see `number_from`
        self._encode_plain: Callable[[dict[str, Any]], bytes | None] = _not_plain
        """Bytes of a sample if that is quick to say; None for a sample that `_encode` has to look at."""
        self._column = ''  # whose encoding failed
        self._index = 0
        self._samples_before = 0  # those of full shards
        self._start_shard()

    @property
    def num_samples(self) -> int:
        """Samples that were added, and those before the first (`start_at`)."""
        return self._samples_before + len(self._sizes)

    @property
    def _number(self) -> int:
        return self.num_samples + self._refused

    def start_at(self, shard: int, samples: int) -> None:
        """Number the first shard and the first sample; for an encoder without samples."""
        self._index, self._samples_before = shard, samples

    def number_from(self, number: int) -> None:
        """Give the next sample this number in messages, and count on from there."""
        self._refused = number - self.num_samples

    @property
    def format(self) -> str:
        """'mds', 'json', 'csv', 'tsv' or 'xsv'."""
        return self.schema.format

    def get_config(self) -> dict[str, Any]:
        """The writer's settings, as shards record them."""
        return {
            'version': 2,
            'format': self.format,
            'compression': self.compression,
            'hashes': list(self.hashes),
            'size_limit': self.size_limit,
            **self.schema.config(),
        }

    def add(self, sample: Mapping[str, Any]) -> list[EncodedShard]:
        """Add one sample; keys without a column are ignored.

        Returns:
            The previous shard if this sample did not fit into it, or nothing.

        Raises:
            KeyError: a column is missing.
            AttributeError, TypeError, ValueError, OverflowError: a value cannot be stored; see the encodings. The
                message names the column, and the sample by its number.
        """
        full = self.collect(sample)
        return [] if full is None else [full.pack()]

    def add_batch(self, columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]) -> list[EncodedShard]:
        """Add many samples: the same shards as of `add`, sample by sample. Keys without a column are ignored.

        Args:
            columns: the values of each column, equally many. A column is a list, an array whose first axis is the
                sample, or an object that converts to one, such as a tensor. Numbers of an array of one axis count as
                Python numbers.

        Returns:
            The shards that are full.

        Raises:
            KeyError: a column is missing.
            AttributeError, TypeError, ValueError, OverflowError: as for `add`. None of the samples is added.
        """
        return [full.pack() for full in self.collect_batch(columns)]

    def finish(self) -> list[EncodedShard]:
        """The shard of the remaining samples, or nothing; the encoder then starts the next shard."""
        last = self.cut()
        return [] if last is None else [last.pack()]

    def collect(self, sample: Mapping[str, Any]) -> CollectedShard | None:
        """As `add`, but the full shard is not packed."""
        # A lookup may succeed in other mappings without the key.
        data = self._encode_plain(sample) if type(sample) is dict else None
        if data is None:
            data = self._encode_checked(sample)
        size = self._size + self._sample_overhead + len(data)
        full = None
        if size > self._stop:
            full = self._make_room(len(data))
            size = self._size + self._sample_overhead + len(data)
        self._samples.append(data)
        self._sizes.append(len(data))
        self._size = size
        return full

    def collect_batch(self, columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]) -> list[CollectedShard]:
        """As `add_batch`, but the full shards are not packed."""
        number = self._number
        self._check_names(columns, number)
        values = {name: as_sequence(name, columns[name]) for name in self.schema.names}
        count = common_length(values)
        try:
            rows = self._encode_rows(values, count, number)
            stops = self._divide(rows.sizes, number)
        except Exception:
            self._refused += count
            raise
        done: list[CollectedShard] = []
        begin = 0
        for i, stop in enumerate(stops):
            if i and (full := self.cut()) is not None:
                done.append(full)
            if stop > begin:
                self._add_pieces(rows.pieces(begin, stop))
                self._sizes.frombytes(rows.sizes[begin:stop].astype(np.uint64).tobytes())
                self._size += int(rows.sizes[begin:stop].sum()) + self._sample_overhead * (stop - begin)
            begin = stop
        return done

    def cut(self) -> CollectedShard | None:
        """As `finish`, but the shard is not packed."""
        if not self._sizes:
            return None
        pieces, sizes, number = [*self._memory.pieces(), *self._samples], self._sizes, self._index
        self._index += 1
        self._samples_before += len(sizes)
        self._start_shard()
        return CollectedShard(number, len(sizes), lambda: self._pack_shard(number, pieces, sizes))

    def release(self) -> None:
        """Give all memory back, and lose the samples of the open shard. Nothing may be added afterwards.

        The settings and the number of samples stay.
        """
        self._blocks = BlockPool()
        self._memory = ShardMemory(self._blocks)
        self._samples.clear()

    def _encode_checked(self, sample: Mapping[str, Any]) -> bytes:
        try:
            self._check_names(sample, self._number)
            return self._encode(sample)
        except Exception as error:
            self._check_names(sample, self._number)
            name_place(error, f'Sample {self._number}, column {self._column!r}')
            self._refused += 1
            raise

    def _make_room(self, size: int) -> CollectedShard | None:
        """Copy the samples that wait; or cut the shard, if the next sample does not fit into it."""
        if self._size + self._sample_overhead + size > self._limit:
            return self._cut_before(size)
        self._add_waiting()
        return None

    def _add_waiting(self) -> None:
        self._memory.add_samples(self._samples)
        self._samples.clear()
        self._stop = min(self._limit, self._size + WAITING)

    def _add_pieces(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if len(piece) < WAITING // 2:
                self._samples.append(bytes(piece))
            else:
                self._memory.add_samples(self._samples)
                self._samples.clear()
                self._memory.add(piece)

    def _cut_before(self, size: int) -> CollectedShard | None:
        # A sample above the limit is alone in its shard; no empty shard precedes it.
        begin = self._size if self.size_limit is None else self._empty_size
        if begin + self._sample_overhead + size > self._largest:
            number = self._number
            self._refused += 1
            raise _too_large(number, size)
        return self.cut()

    def _start_shard(self) -> None:
        self._memory = ShardMemory(self._blocks)
        self._samples: list[bytes] = []  # the samples behind those of the memory; a piece may hold several
        self._sizes: array[int] = array('Q')  # bytes of each sample
        self._size = self._empty_size  # bytes of the shard, as the limit counts them
        self._stop = min(self._limit, self._size + WAITING)
        """The size above which samples are copied to the memory, or the shard ends."""

    def _pack_shard(self, number: int, pieces: Sequence[Piece], sizes: array[int]) -> ShardPieces:
        name = f'shard.{number:05}.{self.format}'
        packed = [self._pack(name + ending, data) for ending, data in self._files(pieces, sizes)]
        info = ShardInfo(
            format=self.format,
            samples=len(sizes),
            files=tuple(file for file, _ in packed),
            compression=self.compression,
            hashes=self.hashes,
            size_limit=self.size_limit,
            schema=self.schema,
        )
        return ShardPieces(info, tuple(stored for _, stored in packed))

    def _pack(self, name: str, pieces: list[Piece]) -> tuple[ShardFile, tuple[str, list[Piece]]]:
        """A file's entry in the index, and its name and bytes to store."""
        if self.compression is None and not self.hashes:
            return ShardFile(FileInfo(name, sum(map(len, pieces)), NO_HASHES), None), (name, pieces)
        raw = b''.join(pieces)
        raw_info = self._file_info(name, raw)
        if self.compression is None:
            return ShardFile(raw_info, None), (name, [raw])
        packed = compress(self.compression, raw)
        packed_info = self._file_info(f'{name}.{get_compression_extension(self.compression)}', packed)
        return ShardFile(raw_info, packed_info), (packed_info.basename, [packed])

    def _file_info(self, name: str, data: bytes) -> FileInfo:
        return FileInfo(name, len(data), {algorithm: get_hash(algorithm, data) for algorithm in self.hashes})

    def _check_names(self, keys: Mapping[str, Any], number: int) -> None:
        missing = [name for name in self.schema.names if name not in keys]
        if missing:
            raise KeyError(
                f'A sample has a value for each column {list(self.schema.names)}, but sample {number} lacks {missing}. '
                f'Its keys are {list(keys)[:20]}.'
            ) from None

    def _divide(self, sizes: IntArray, number: int) -> list[int]:
        """The rows before which shards end: the open one, which may take none, and then each new one."""
        count = len(sizes)
        ends = np.cumsum(sizes + self._sample_overhead)
        stops: list[int] = []
        begin, size, is_empty = 0, self._size, not self._sizes
        while True:
            before = int(ends[begin - 1]) if begin else 0
            stop = max(begin, int(np.searchsorted(ends, before + self._limit - size, side='right')))
            if stop == begin < count and is_empty:
                stop += self.size_limit is not None  # a sample above the limit is alone in its shard
                if stop == begin or int(ends[begin]) - before + size > self._largest:
                    raise _too_large(number + begin, int(sizes[begin]))
            elif stop < count and self.size_limit is None:
                raise _too_large(number + stop, int(sizes[stop]))
            stops.append(stop)
            if stop >= count:
                return stops
            begin, size, is_empty = stop, self._empty_size, True

    def _encode_rows(self, columns: Mapping[str, Sequence[Any]], count: int, number: int) -> EncodedRows:
        """Encode samples, given as columns of equal length; errors count them from `number`."""
        names = list(columns)
        rows: list[bytes] = []
        values = zip(*map(python_values, columns.values()), strict=True) if names else iter([()] * count)
        try:
            for row in values:
                rows.append(self._encode(dict(zip(names, row, strict=True))))  # noqa: PERF401 - counts for the message
        except Exception as error:
            name_place(error, f'Sample {number + len(rows)}, column {self._column!r}')
            raise
        sizes = np.fromiter(map(len, rows), np.int64, count)
        return EncodedRows(sizes, joined_rows(rows, 1, sizes))

    @abstractmethod
    def _sizes_of_empty_shard(self) -> tuple[int, int]:
        """Bytes of a data file without samples: those that the limit does not count, and those that it counts."""

    @abstractmethod
    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        """The sample's bytes in the data file. An error is about the column in `_column`, or a column is missing."""

    @abstractmethod
    def _files(self, pieces: Sequence[Piece], sizes: array[int]) -> list[tuple[str, list[Piece]]]:
        """The suffixes and bytes of the files of samples, of `sizes` bytes in all pieces. Any thread may call it."""


def offset_table(sizes: array[int], start: int) -> bytes:
    """u32 count, u32 offset[count + 1] of samples with these sizes; the first begins at ``start``."""
    table = np.empty(len(sizes) + 2, np.uint64)
    table[0], table[1] = len(sizes), start
    np.cumsum(np.frombuffer(sizes, np.uint64), out=table[2:])
    table[2:] += np.uint64(start)
    return table.astype('<u4').tobytes()


def _not_plain(sample: dict[str, Any]) -> None:
    del sample


def _too_large(number: int, size: int) -> ValueError:
    return ValueError(
        f'A shard file is smaller than 4 GiB because its offsets are 32-bit numbers, but sample {number} of {size} '
        f'bytes would pass that. Give a `size_limit`, or store less in a sample.'
    )
