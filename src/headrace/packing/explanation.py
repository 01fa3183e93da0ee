"""The documents of a global batch of packed sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors.display import count_text
from headrace.order import BatchExplanation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.packing.lanes import PieceTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedExplanation(BatchExplanation):
    """The pieces of documents in one global batch of sequences; arrays have an entry for each piece.

    `ranks`, `rows` and `positions` are those of its sequence. `ids`, `streams`, `shards` and `shard_rows` are those of
    its document. A sequence without tokens, such as padding, has no piece.
    """

    passes: NDArray[np.int64]
    """The pass over the documents."""
    begins: NDArray[np.int64]
    """The piece's first token in its document, begin and end tokens included."""
    ends: NDArray[np.int64]
    """The token of its document after the piece."""
    offsets: NDArray[np.int64]
    """The place of its first token in the sequence."""
    sequences: BatchExplanation
    """The sequences of the batch, replica after replica; each counts as a sample of one stream."""
    is_known: NDArray[np.bool_]
    """bool[sequences]: whether the documents of a sequence are known. All are, unless they were not to be read."""

    @property
    def counted(self) -> str:
        """The unit of `stream_counts`."""
        return 'tokens'

    @property
    def position_unit(self) -> str:
        return 'sequences'

    def stream_counts(self) -> dict[str, int]:
        """Tokens of each stream."""
        counts = np.zeros(len(self.stream_names), np.int64)
        np.add.at(counts, self.streams, self.ends - self.begins)
        return dict(zip(self.stream_names, counts.tolist(), strict=True))

    def of_rank(self, rank: int) -> PackedExplanation:
        """The pieces of one rank only.

        Raises:
            TopologyError: the rank does not exist.
        """
        sequences = self.sequences.of_rank(rank)
        where = np.isin(self.ranks, sequences.ranks)
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != 'is_known'}
        arrays: dict[str, Any] = {k: column[where] for k, column in columns.items() if isinstance(column, np.ndarray)}
        is_known = self.is_known[np.isin(self.sequences.ranks, sequences.ranks)]
        return replace(self, **arrays, sequences=sequences, is_known=is_known)

    def columns(self) -> dict[str, list[Any]]:
        """The facts of each piece, by name, as plain types."""
        columns = BatchExplanation.columns(self)
        columns |= {
            'pass': self.passes.tolist(),
            'begin': self.begins.tolist(),
            'end': self.ends.tolist(),
            'offset': self.offsets.tolist(),
        }
        return columns

    def to_json(self) -> dict[str, Any]:
        """Plain types: the batch, and a list of its sequences, each with a list of its documents' pieces.

        A sequence whose documents are not known has None instead of the list.
        """
        names = ('stream', 'shard', 'file', 'shard_row', 'id', 'pass', 'begin', 'end', 'offset')
        columns = self.columns()
        places = zip(columns['rank'], columns['row'], strict=True)
        rows = zip(*(columns[name] for name in names), strict=True)
        pieces: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for place, row in zip(places, rows, strict=True):
            pieces.setdefault(place, []).append(dict(zip(names, row, strict=True)))
        names = ('rank', 'row', 'position', 'is_padding')
        sequences = self.sequences.columns()
        rows = [
            {**dict(zip(names, row, strict=True)), 'documents': pieces.get(row[:2], []) if is_known else None}
            for row, is_known in zip(
                zip(*(sequences[name] for name in names), strict=True), self.is_known.tolist(), strict=True
            )
        ]
        return {'epoch': self.epoch, 'batch': self.number, 'end': self.end, 'rows': rows}

    def summary(self) -> list[str]:
        """By stream, its tokens and documents; then the documents' ids, if they are few."""
        lines: list[str] = []
        for number, (name, tokens) in enumerate(self.stream_counts().items()):
            ids = np.unique(self.ids[self.streams == number]).tolist()
            if ids:
                named = f': {", ".join(map(str, ids))}' if len(ids) <= _NAMED_DOCUMENTS else ''
                lines.append(f'{name} {tokens} tokens of {count_text(len(ids), "document")}{named}')
        unknown = int((~self.is_known).sum())
        if unknown:
            lines.append(f'{count_text(unknown, "sequence")} of other ranks, whose documents `headrace explain` names')
        return lines


_NAMED_DOCUMENTS = 16


def joined(
    sequences: BatchExplanation, numbers: list[int], tables: Mapping[int, PieceTable]
) -> tuple[NDArray[np.int64], PieceTable, NDArray[np.int64]]:
    """The places in the batch of all pieces' sequences, int64[pieces]; the pieces; their begins in sequences."""
    empty = np.zeros((0, 4), np.int64)
    chosen = [
        empty if is_padding else tables.get(number, empty)
        for number, is_padding in zip(numbers, sequences.is_padding.tolist(), strict=True)
    ]
    places = np.repeat(np.arange(len(chosen)), [len(table) for table in chosen])
    offsets = [np.cumsum(table[:, 3] - table[:, 2]) - (table[:, 3] - table[:, 2]) for table in chosen]
    return places, np.concatenate([empty, *chosen]), np.concatenate([empty[:, 0], *offsets])
