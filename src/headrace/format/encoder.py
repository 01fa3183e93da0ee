"""The common class of shard encoders of all formats.

An encoder turns samples into finished shards and does no input or output::

    encoder = MDSEncoder({'id': 'int', 'text': 'str'}, compression='zstd', hashes=['sha1'], size_limit='64mb')
    shards = []
    for sample in samples:
        for shard in encoder.add(sample):     # a full shard, if the sample did not fit
            store(shard.files)
            shards.append(shard.info)
    for shard in encoder.finish():            # the last one
        store(shard.files)
        shards.append(shard.info)
    store([('index.json', dump_index(shards))])

``add`` checks and encodes the sample first, so the encoder accepts the next sample after an error. A shard stays in
memory until it is full. Errors count samples by the calls of ``add``, from 0.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.format.checksum import get_hash, is_hash
from headrace.format.compression import compress, get_compression_extension
from headrace.format.human_size import bytes_to_int
from headrace.format.shards import FileInfo, Schema, ShardFile, ShardInfo
from headrace.notes import add_note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ['EncodedShard', 'ShardEncoder']

DEFAULT_SIZE_LIMIT: Final = 1 << 26
MAX_OFFSET: Final = (1 << 32) - 1
"""The largest offset of a shard's table."""


@dataclass(frozen=True, slots=True)
class EncodedShard:
    """A finished shard."""

    info: ShardInfo
    """Its entry in the index; ``info.entry()`` is the JSON object."""
    files: tuple[tuple[str, bytes], ...]
    """Name and content of each file to store. With compression only the compressed files."""


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

    def __init__(
        self, schema: Schema, compression: str | None, hashes: Sequence[str] | None, size_limit: int | str | None
    ) -> None:
        self.schema = schema
        self.compression = _check_compression(compression)
        self.hashes = _check_hashes(hashes)
        self.size_limit = _check_size_limit(size_limit)
        self._calls = 0
        self._column = ''  # whose encoding failed
        self._index = 0
        self._samples: list[bytes] = []
        self._start_shard()

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
        number = self._calls
        self._calls += 1
        missing = [name for name in self.schema.names if name not in sample]
        if missing:
            raise KeyError(
                f'A sample has a value for each column {list(self.schema.names)}, but sample {number} lacks {missing}. '
                f'Its keys are {list(sample)[:20]}.'
            )
        try:
            data = self._encode(sample)
        except Exception as error:
            _name_place(error, f'Sample {number}, column {self._column!r}')
            raise
        done: list[EncodedShard] = []
        # A sample above the limit is alone in its shard; no empty shard precedes it.
        if self._samples and self.size_limit is not None and self._size_with(data) > self.size_limit:
            done = self.finish()
        if self._file_size_with(data) > MAX_OFFSET:
            raise ValueError(
                f'A shard file is smaller than 4 GiB because its offsets are 32-bit numbers, but sample '
                f'{number} of {len(data)} bytes would pass that. Give a '
                f'`size_limit`, or store less in a sample.'
            )
        self._samples.append(data)
        self._count(data)
        return done

    def finish(self) -> list[EncodedShard]:
        """The shard of the remaining samples, or nothing; the encoder then starts the next shard."""
        if not self._samples:
            return []
        name = f'shard.{self._index:05}.{self.format}'
        packed = [self._pack(name + ending, data) for ending, data in self._files()]
        info = ShardInfo(
            format=self.format,
            samples=len(self._samples),
            files=tuple(file for file, _ in packed),
            compression=self.compression,
            hashes=self.hashes,
            size_limit=self.size_limit,
            schema=self.schema,
        )
        self._index += 1
        self._samples = []
        self._start_shard()
        return [EncodedShard(info, tuple(stored for _, stored in packed))]

    def _pack(self, name: str, raw: bytes) -> tuple[ShardFile, tuple[str, bytes]]:
        """A file's entry in the index, and its name and bytes to store."""
        raw_info = self._file_info(name, raw)
        if self.compression is None:
            return ShardFile(raw_info, None), (name, raw)
        packed = compress(self.compression, raw)
        packed_info = self._file_info(f'{name}.{get_compression_extension(self.compression)}', packed)
        return ShardFile(raw_info, packed_info), (packed_info.basename, packed)

    def _file_info(self, name: str, data: bytes) -> FileInfo:
        return FileInfo(name, len(data), {algorithm: get_hash(algorithm, data) for algorithm in self.hashes})

    @abstractmethod
    def _start_shard(self) -> None:
        """Reset the count of bytes for the first sample of a shard."""

    @abstractmethod
    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        """The sample's bytes in the data file. An error is about the column in `_column`."""

    @abstractmethod
    def _size_with(self, data: bytes) -> int:
        """The shard's size, as the limit counts it, once this sample is added."""

    @abstractmethod
    def _file_size_with(self, data: bytes) -> int:
        """The data file's size in bytes, once this sample is added."""

    @abstractmethod
    def _count(self, data: bytes) -> None:
        """Count an added sample."""

    @abstractmethod
    def _files(self) -> list[tuple[str, bytes]]:
        """The files of the collected samples: the suffix of each name, and the bytes."""


_PLAIN_ERRORS: Final = (AttributeError, TypeError, ValueError, OverflowError)


def _name_place(error: Exception, place: str) -> None:
    """Prefix an encoding's message with a place, or note the place on another error."""
    if type(error) in _PLAIN_ERRORS and len(error.args) == 1:
        error.args = (f'{place}: {error.args[0]}',)
    else:
        add_note(error, f'While encoding {place[0].lower()}{place[1:]}.')


def config_json(config: Mapping[str, Any]) -> bytes:
    """The configuration as shards hold it: JSON in ASCII, keys sorted."""
    return json.dumps(config, sort_keys=True).encode('ascii')


def offset_table(sizes: Sequence[int], start: int) -> bytes:
    """u32 count, u32 offset[count + 1] of samples with these sizes; the first begins at ``start``."""
    table = bytearray(len(sizes).to_bytes(4, 'little'))
    table += start.to_bytes(4, 'little')
    for size in sizes:
        start += size
        table += start.to_bytes(4, 'little')
    return bytes(table)


def _check_compression(compression: str | None) -> str | None:
    if not compression:
        return None
    get_compression_extension(compression)  # refuses an unknown one
    return compression


def _check_hashes(hashes: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(hashes or ())
    unknown = [name for name in names if not is_hash(name)]
    if unknown:
        raise ConfigError(f'{unknown[0]!r} is not a supported hash algorithm. See `headrace.format.get_hashes()`.')
    if list(names) != sorted(names):
        raise ConfigError(f'`hashes` is sorted by name, but got {list(names)}. Give {sorted(names)}.')
    return names


def _check_size_limit(size_limit: int | str | None) -> int | None:
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
