"""The common parts of JSONL and the separated formats: a data file of lines, and a meta file with their offsets.

The meta file is ``u32 n | u32 offset[n+1] | configuration``: ``offset[i]`` is the position of line i in the data file,
``offset[n]`` the data file's length.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from headrace.errors import FormatError, ShardError
from headrace.format.encoder import ShardEncoder, offset_table
from headrace.format.encodings.texts import decode_text
from headrace.format.mds import RESTORE, FixedRows
from headrace.format.shard_memory import Piece
from headrace.format.shards import ColumnBatch, IntArray, ShardInfo


class LineReader:
    def __init__(
        self,
        info: ShardInfo,
        buffers: Sequence[memoryview],
        *,
        source: str,
        columns: Collection[str] | None = None,
        fix: str = RESTORE,
    ) -> None:
        data, meta = buffers
        self.num_samples = info.samples
        self.fixed_rows: FixedRows | None = None
        self._schema = info.schema
        self._wanted: Collection[str] = info.schema.names if columns is None else columns
        self._newline = info.schema.newline.encode('utf-8')
        self._source, self._fix = source, fix
        self._view = data
        for view, file in zip(buffers, info.files, strict=True):
            if len(view) != file.raw.bytes:
                raise self._error(
                    f'the index says that {file.raw.basename} has {file.raw.bytes} bytes, but it has {len(view)}'
                )
        self._offsets = self._check_table(meta, self._first_line())

    def _first_line(self) -> int:
        return 0

    def _check_table(self, meta: memoryview, first: int) -> IntArray:
        """The checked offsets, int64 ``[n + 1]``."""
        n, size = self.num_samples, len(self._view)
        if len(meta) < 8 + 4 * n:
            raise self._error(f'the table of {n} lines needs {8 + 4 * n} bytes, but the meta file has {len(meta)}')
        count = int.from_bytes(meta[:4], 'little')
        if count != n:
            raise self._error(f'the index counts {n} samples, but the meta file counts {count}')
        offsets = np.frombuffer(meta, '<u4', n + 1, 4).astype(np.int64)
        if offsets[0] != first or offsets[n] != size:
            raise self._error(
                f'lines go from byte {first} to the end of the data file at {size}, but the meta file lets them go '
                f'from {offsets[0]} to {offsets[n]}'
            )
        sizes = offsets[1:] - offsets[:-1]
        if n and sizes.min() < len(self._newline):
            i = int(sizes.argmin())
            raise self._error(f'a line ends with the newline, but the meta file gives line {i} {sizes[i]} bytes')
        return offsets

    def _error(self, message: str) -> ShardError:
        return ShardError(f'Shard {self._source} is damaged: {message}. {self._fix}')

    def sample(self, i: int) -> dict[str, Any]:
        return self._sample(i, self._wanted)

    def _sample(self, i: int, names: Collection[str]) -> dict[str, Any]:
        if not 0 <= i < self.num_samples:
            raise IndexError(f'Shard {self._source} has samples 0 to {self.num_samples - 1}, but got {i}.')
        begin, end = self._offsets[i : i + 2].tolist()
        line = self._view[begin:end]
        size = len(line) - len(self._newline)
        if bytes(line[size:]) != self._newline:
            raise self._error(f'sample {i} does not end with the newline {self._schema.newline!r}')
        try:
            return self._parse(decode_text(line[:size], 'The line'), names)
        except FormatError as error:
            raise ShardError(
                f'Shard {self._source} cannot be read: sample {i}: {error} It is damaged, or the line was written so. '
                f'{self._fix}'
            ) from error

    def gather(self, rows: IntArray, out_rows: IntArray, batch: ColumnBatch) -> None:
        self.gather_few(rows.tolist(), out_rows.tolist(), range(len(rows)), batch)

    def gather_few(self, rows: Sequence[int], out_rows: Sequence[int], which: range, batch: ColumnBatch) -> None:
        columns = batch.columns
        for k in which:
            for name, value in self._sample(rows[k], columns).items():
                columns[name][out_rows[k]] = value

    @abstractmethod
    def _parse(self, line: str, names: Collection[str]) -> dict[str, Any]:
        """These columns of a line without its newline, in the schema's order; FormatError if it is not a sample."""


class LineEncoder(ShardEncoder):
    """Writes shards of lines: the size limit counts the lines of samples only."""

    def _sizes_of_empty_shard(self) -> tuple[int, int]:
        return len(self._header()), 0

    def _header(self) -> bytes:
        return b''

    def _files(self, pieces: Sequence[Piece], sizes: array[int]) -> list[tuple[str, list[Piece]]]:
        header = self._header()
        return [('', [header, *pieces]), ('.meta', [offset_table(sizes, len(header)), self._config])]
