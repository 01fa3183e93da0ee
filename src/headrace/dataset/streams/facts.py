"""The repr of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.dataset.streams.columns import column_kinds
from headrace.display import Facts, count_text, human_size
from headrace.format import ShardTable
from headrace.images import Decode
from headrace.order import RowSelection
from headrace.redaction import without_credentials

__all__ = ['ShownStream', 'columns_text', 'stream_facts', 'stream_text']

_LONGEST = 300


class ShownStream(Protocol):
    """The attributes of a stream that its repr shows."""

    name: str | None
    row_selection: RowSelection | None
    shards: ShardTable
    proportion: float | None
    repeat: float | None
    choose: int | None
    columns: tuple[str, ...] | None
    decode: Decode | None

    @property
    def title(self) -> str:
        """Its name for messages."""
        ...

    @property
    def url(self) -> str | None:
        """Its remote."""
        ...

    @property
    def folder(self) -> Path:
        """Its cache, or its data."""
        ...


def stream_facts(stream: ShownStream) -> Facts:
    """Name, place, sizes, weight and columns."""
    rows = [('remote', without_credentials(stream.url))] if stream.url else []
    rows.append(('local', str(stream.folder)))
    if stream.shards:
        rows += [('data', _sizes(stream)), ('columns', columns_text([stream]))]
    weight = _weight(stream)
    if weight:
        rows.append(('weight', weight))
    name = f' {stream.name!r}' if stream.name else ''
    return Facts(f'Stream{name}{"" if stream.shards else " (not opened)"}', rows)


def stream_text(stream: ShownStream, *, weight: bool) -> str:
    """One line about an opened stream, without its name.

    Args:
        stream: the stream.
        weight: whether to say its weight, which tells nothing of a single one.
    """
    place = without_credentials(stream.url) if stream.url else str(stream.folder)
    parts = [place, _sizes(stream), _weight(stream) if weight else '']
    return ', '.join(part for part in parts if part)


def columns_text(streams: list[ShownStream]) -> str:
    """The columns that are read, with their types in a batch."""
    kinds: dict[str, str] = {}
    for stream in streams:
        for schema in stream.shards.schemas:
            for name, kind in column_kinds(stream, schema).items():
                kinds.setdefault(name, kind)
    text = ', '.join(f'{name}: {kind}' for name, kind in kinds.items())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + '…'


def _sizes(stream: ShownStream) -> str:
    shards = stream.shards
    samples, stored = int(shards.samples.sum()), int(shards.stored_bytes().sum())
    text = f'{count_text(samples, "sample")} in {count_text(len(shards), "shard")} ({human_size(stored)})'
    return text if stream.row_selection is None else f'{int(np.sum(stream.row_selection.counts)):,} of {text}'


def _weight(stream: ShownStream) -> str:
    """The first weight that is given; opened streams have all three."""
    if stream.proportion is not None:
        return f'proportion {stream.proportion:.4g}'
    if stream.repeat is not None:
        return f'repeat {stream.repeat:.4g}'
    return '' if stream.choose is None else f'choose {stream.choose:,}'
