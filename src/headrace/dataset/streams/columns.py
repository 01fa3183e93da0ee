"""The columns that a dataset reads, and the check that all streams make one batch."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.dataset.streams.stream import PlacedStream
from headrace.errors import ConfigError, StreamError
from headrace.format import Columns, Schema, do_stack
from headrace.format.encodings.encoding import ArrayKind
from headrace.format.shards import NAME_MEANINGS, differing_meanings
from headrace.order import Mixture
from headrace.tensors.decoding import Decode
from headrace.tensors.padding import Pad, can_hold

_MOST = 8  # columns that a message names


def column_names(stream: PlacedStream) -> Iterator[Sequence[str]]:
    for schema in stream.shards.schemas:
        if stream.columns is None:
            yield schema.names
            continue
        for name in stream.columns:
            if name not in schema.names:
                nearest = difflib.get_close_matches(name, schema.names, n=1)
                meant = f' Did you mean {nearest[0]!r}?' if nearest else ''
                raise StreamError(
                    f'`columns` of stream {stream.title} asks for {name!r}, but {_shard_of(stream, schema)} has the '
                    f'columns {_listed(schema.names)}.{meant}'
                )
        yield [name for name in schema.names if name in stream.columns]


_Read = tuple[Schema, tuple[str, ...] | None, Decode | None]
"""A schema, the columns to read (None: all), and those to read as tensors."""


def columns_read(streams: Sequence[PlacedStream]) -> dict[_Read, PlacedStream]:
    """The different ways to read shards, and the first stream of each."""
    by_read: dict[_Read, PlacedStream] = {}
    for stream in streams:
        for schema in stream.shards.schemas:
            by_read.setdefault((schema, stream.columns, stream.decode), stream)
    return by_read


def gathered_columns(streams: Sequence[PlacedStream]) -> tuple[Columns, bool]:
    """The columns that all shards hold and store alike, and whether no others are read.

    Batches of these columns can be gathered in the same way from any shard.
    """
    every = [schema.gathered(names).arrays for schema, names, _ in columns_read(streams)]
    first, *others = every or [{}]
    shared = {
        name: array for name, array in first.items() if all(name in other and other[name] == array for other in others)
    }
    return Columns(shared), all(len(arrays) == len(shared) for arrays in every)


def refuse_different_columns(streams: Sequence[PlacedStream], mixture: Mixture, batching: str) -> None:
    """Refuse streams that are drawn from and share batches, but differ in columns or types."""
    drawn = _drawn(streams, mixture)
    for sharing in [[stream] for stream in drawn] if batching in ('per_stream', 'device_per_stream') else [drawn]:
        _refuse_different(columns_read(sharing))


def refuse_unpaddable_columns(streams: Sequence[PlacedStream], mixture: Mixture, pad: Pad) -> None:
    """Refuse to pad columns other than arrays that hold the value, and taken names for lengths and masks."""
    for (schema, names, decode), stream in columns_read(_drawn(streams, mixture)).items():
        kinds, place = stream.column_kinds(schema), _whose(stream, schema)
        tensors = {} if decode is None else decode.columns(schema.columns, names, f'stream {stream.title}')
        for column in pad.columns:
            kind = kinds.get(column.name)
            if kind is None:
                nearest = difflib.get_close_matches(column.name, kinds, n=1)
                meant = f' Did you mean {nearest[0]!r}?' if nearest else ''
                raise ConfigError(
                    f'`pad` names {column.name!r}, but {place} has the columns to read {_listed([*kinds])}.{meant}'
                )
            settings = tensors.get(column.name)
            is_sound = settings is not None and settings.is_ragged
            if not (is_sound or isinstance(kind, ArrayKind)):
                raise ConfigError(
                    f'`pad` fills up columns of arrays, and of sound without `seconds`, but {column.name!r} is {kind} '
                    f'in {place}. Leave it out of `pad`.'
                )
            dtype = kind.dtype if isinstance(kind, ArrayKind) else 'float32'
            if dtype is not None and not can_hold(np.dtype(dtype), column.value):
                raise ConfigError(
                    f'`pad` fills {column.name!r} with {column.value}, but its arrays are of {dtype} in {place}, which '
                    f'cannot hold it. Give another value.'
                )
            for key in column.added:
                if key in kinds:
                    raise ConfigError(
                        f'`pad` adds {key!r} to the batch, but {place} has a column of that name. Read other '
                        f'`columns`, or give another key as `mask`.'
                    )


def refuse_different_meanings(streams: Sequence[PlacedStream], mixture: Mixture) -> None:
    """Refuse streams whose columns of one name mean different things, such as times in ms and times in s.

    Their numbers look alike, in one batch or in several.
    """
    by_read = columns_read(_drawn(streams, mixture))
    kinds = [stream.column_kinds(schema) for (schema, _, _), stream in by_read.items()]
    differences = differing_meanings(
        (columns, schema.meaning_of, _whose(stream, schema))
        for columns, ((schema, _, _), stream) in zip(kinds, by_read.items(), strict=True)
    )
    if differences:
        shared = [name for name in kinds[0] if name not in differences and all(name in columns for columns in kinds)]
        select = f'Select others, `columns={shared[:_MOST]}`, write' if shared else 'Write'
        raise StreamError(
            f'Columns of one name mean the same in all streams, but {"; ".join([*differences.values()][:_MOST])}. '
            f'{select} one of them again with the type of the other, or override `get_item`.{NAME_MEANINGS}'
        )


def _drawn(streams: Sequence[PlacedStream], mixture: Mixture) -> list[PlacedStream]:
    return [stream for stream, is_drawn in zip(streams, mixture.is_drawn, strict=True) if is_drawn]


def _refuse_different(by_read: dict[_Read, PlacedStream]) -> None:
    (first, home), *others = by_read.items()
    kinds, there = home.column_kinds(first[0]), _whose(home, first[0])
    # Compatible kinds, with the first place of each: a later kind may be more specific.
    places = {name: {kind: there} for name, kind in kinds.items()}
    differences = dict[str, str]()
    for (schema, _, _), stream in others:
        theirs = stream.column_kinds(schema)
        if theirs == kinds:
            continue
        here = _whose(stream, schema)
        for name in [*kinds, *theirs]:
            if name in differences:
                continue
            if name not in theirs:
                differences[name] = f'{name!r} is in {there}, and not in {here}'
            elif name not in kinds:
                differences[name] = f'{name!r} is in {here}, and not in {there}'
            else:
                kind = theirs[name]
                for other, place in places[name].items():
                    if not do_stack(kind, other):
                        differences[name] = f'{name!r} is {other} in {place}, and {kind} in {here}'
                        break
                places[name].setdefault(kind, here)
    if not differences:
        return
    shared = [name for name in kinds if name not in differences]
    told = [*differences.values()]
    more = f'; {len(told) - _MOST} more columns differ' if len(told) > _MOST else ''
    select = f'Select what they share, `columns={shared[:_MOST]}`' if shared else 'Write the data again'
    raise StreamError(
        f'Streams that share batches have the same columns of the same types, but {"; ".join(told[:_MOST])}{more}. '
        f'{select}, override `get_item`, or pass a `collate_fn` that takes such samples.'
    )


def _whose(stream: PlacedStream, schema: Schema) -> str:
    where = f'stream {stream.title}'
    return where if len(stream.shards.schemas) == 1 else f'{_shard_of(stream, schema)} of {where}'


def _shard_of(stream: PlacedStream, schema: Schema) -> str:
    shards = stream.shards
    kinds = [number for number, kind in enumerate(shards.kinds) if kind.schema == schema]
    first = next(number for number, kind in enumerate(shards.kind_of.tolist()) if kind in kinds)
    return shards[first].files[0].raw.basename


def _listed(names: Sequence[str]) -> str:
    more = f' and {len(names) - 4 * _MOST} more' if len(names) > 4 * _MOST else ''
    return ', '.join(names[: 4 * _MOST]) + more
