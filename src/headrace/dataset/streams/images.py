"""The columns of images of a stream's shards that are read as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.format import Schema, ShardTable
from headrace.images import Decode, ImageTensor

__all__ = ['ImageColumn', 'ImageColumns', 'OpenedStream', 'column_kinds', 'image_columns']


class OpenedStream(Protocol):
    """The columns of an opened stream."""

    @property
    def title(self) -> str:
        """Its name for messages."""
        ...

    @property
    def shards(self) -> ShardTable:
        """Its shards with their schemas."""
        ...

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns to read; None: all."""
        ...

    @property
    def decode(self) -> Decode | None:
        """The columns of images to read as tensors."""
        ...


@dataclass(frozen=True)
class ImageColumn:
    """One column of images."""

    name: str
    encoding: str
    """Of the stored values."""
    image: ImageTensor


@dataclass(frozen=True)
class ImageColumns:
    """The columns of images of shards of one schema."""

    columns: Sequence[ImageColumn]
    as_bytes: Schema
    """The schema for a reader, whose values of these columns are the stored bytes."""


def image_columns(stream: OpenedStream) -> list[ImageColumns]:
    """The columns of images for each kind of shard of a stream; empty if it reads none as tensors.

    Raises:
        StreamError: `decode` names a column that is not there, is not read, or holds no images.
    """
    return (
        []
        if stream.decode is None
        else [_columns_of(stream, stream.decode, kind.schema) for kind in stream.shards.kinds]
    )


def column_kinds(stream: OpenedStream, schema: Schema) -> dict[str, str]:
    """The types of the columns to read of one schema in a batch; see `Schema.kinds`."""
    kinds = schema.kinds(stream.columns)
    if stream.decode is not None:
        kinds.update((column.name, column.image.kind) for column in _columns_of(stream, stream.decode, schema).columns)
    return kinds


def _columns_of(stream: OpenedStream, decode: Decode, schema: Schema) -> ImageColumns:
    stored: Mapping[str, str] = schema.columns
    images = decode.columns(stored, stream.columns, f'stream {stream.title}')
    columns = [ImageColumn(name, stored[name], image) for name, image in images.items()]
    encodings = tuple('bytes' if name in images else encoding for name, encoding in stored.items())
    return ImageColumns(columns, replace(schema, encodings=encodings))
