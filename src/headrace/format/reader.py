"""The protocol of shard readers of all formats, and `open_shard`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from headrace.format.mds import RESTORE, FixedRows, MDSReader
from headrace.format.shards import ColumnBatch, IntArray, ShardInfo


class ShardReader(Protocol):
    """The samples of one mapped shard.

    A reader holds views of its buffers: drop it before the buffers are released. Returned values own their memory.
    A reader never changes, so threads may share it.
    """

    num_samples: int
    """Number of samples."""
    fixed_rows: FixedRows | None
    """The bytes of all samples, if every sample has the same size; else None."""

    def sample(self, i: int) -> dict[str, Any]:
        """Sample ``i`` of 0 to ``num_samples - 1``: its selected columns, in the schema's order.

        Raises:
            IndexError: ``i`` is out of range.
            ShardError: the sample's bytes contradict the schema.
        """
        ...

    def gather(self, rows: IntArray, out_rows: IntArray, batch: ColumnBatch) -> None:
        """Put samples ``rows`` into the rows ``out_rows`` of a batch that the schema allocated, its columns only.

        Args:
            rows: int64 ``[k]``, sample numbers of this shard, in any order, repeats allowed.
            out_rows: int64 ``[k]``, distinct rows of the batch.
            batch: of ``schema.allocate(n)``.

        Raises:
            IndexError: a row is out of range.
            ShardError: a sample's bytes contradict the schema. The batch is then partly filled.
        """
        ...

    def gather_few(self, rows: Sequence[int], out_rows: Sequence[int], which: range, batch: ColumnBatch) -> None:
        """The same for elements `which` of lists, if they are few: a loop is faster than arrays then."""
        ...


def open_shard(
    info: ShardInfo,
    buffers: Sequence[memoryview],
    *,
    source: str,
    columns: Collection[str] | None = None,
    fix: str = RESTORE,
) -> ShardReader:
    """The reader of a shard; its raw files are in memory or mapped.

    Args:
        info: the shard's entry in the index.
        buffers: the raw files in the order of ``info.files``.
        source: path or URL of the shard, for messages.
        columns: the columns to read, all of them in the schema; no other is decoded. None: all.
        fix: what helps against a damaged file, for messages.

    Raises:
        ShardError: a file's size or table of offsets contradicts the index.
    """
    if info.format == 'mds':
        return MDSReader(info, buffers, source=source, columns=columns, fix=fix)
    # Most datasets are MDS: the other readers, with their encoders, would delay a start.
    if info.format == 'json':
        from headrace.format.jsonl import JSONReader

        return JSONReader(info, buffers, source=source, columns=columns, fix=fix)
    from headrace.format.xsv import XSVReader

    return XSVReader(info, buffers, source=source, columns=columns, fix=fix)
