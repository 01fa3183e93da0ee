r"""Megatron-LM's indexed datasets, also of NeMo and GPT-NeoX.

They are ``PREFIX.bin`` and ``PREFIX.idx``. A sample is a document.

The ``.idx`` holds little-endian numbers:

- ``MMIDIDX\0\0``, u64 version, u8 code of the dtype.
- u64 number of sequences, u64 number of documents and 1.
- i32 tokens of each sequence, then i64 its first byte in the ``.bin``.
- i64 first sequence of each document, and the number of sequences.

A document may have several sequences, which are joined.

The ``.bin`` is the sequences one after another. It may be cut into ``PREFIX-00000-of-00020.bin`` and so on.

The index reads the ``.idx`` once, in pieces. A part is read with the piece of it that has the lengths.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from headrace.errors import FormatError
from headrace.sources.formats import is_hidden
from headrace.sources.ranges import ByteRange, in_parallel, read_range
from headrace.sources.token_source import (
    PART,
    Integers,
    TokenFile,
    TokenRuns,
    TokenSource,
    cut_documents,
    load_tokens,
    read_numbers,
    runs_of_documents,
    source_of,
)
from headrace.storage import ObjectInfo, Store

NAME: Final = 'megatron'
load = load_tokens
_MAGIC: Final = b'MMIDIDX\0\0'
_OLD_MAGIC: Final = b'TNTIDX\0\0'
_HEAD: Final = struct.Struct('<9sQBQQ')
_DTYPES: Final = dict(enumerate(['uint8', 'int8', 'int16', 'int32', 'int64', 'float64', 'float32', 'uint16'], 1))
_PIECE: Final = re.compile(r'-(\d+)-of-\d+(?=\.bin$)')


def _prefix(key: str) -> str:
    return _PIECE.sub('', key).rpartition('.')[0]


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """The files, if any two belong together; then also those that lack the other one, which `index` refuses."""
    infos = [info for info in objects if info.key.endswith(('.idx', '.bin')) and not is_hidden(info.key)]
    prefixes = [{_prefix(info.key) for info in infos if info.key.endswith(end)} for end in ('.idx', '.bin')]
    return infos if prefixes[0] & prefixes[1] else []


def index(
    store: Store, objects: Sequence[ObjectInfo], *, columns: Collection[str] | None, allow_unsafe_types: bool
) -> TokenSource:
    """See `SourceFormat.index`."""
    del allow_unsafe_types
    files: dict[str, list[ObjectInfo]] = defaultdict(list)
    for info in objects:
        files[_prefix(info.key)].append(info)
    return source_of(NAME, in_parallel(partial(_index_file, store), list(files.values())), columns)


def _index_file(store: Store, objects: Sequence[ObjectInfo]) -> TokenRuns:
    indexes = [info for info in objects if info.key.endswith('.idx')]
    pieces = [info for info in objects if info.key.endswith('.bin')]
    if len(pieces) > 1:
        numbers = {int(match[1]): info for info in pieces if (match := _PIECE.search(info.key))}
        pieces = [numbers[number] for number in sorted(numbers)]
    if len(indexes) != 1 or len(pieces) != len(objects) - 1 or not pieces:
        raise FormatError(
            f'Data of Megatron are a .bin and a .idx of one name, but {", ".join(info.key for info in objects[:4])} '
            f'are not. Fetch the other file, or leave this out with a glob in `remote`.'
        )
    (idx,) = indexes
    dtype, sequences, documents = _read_head(store, idx)
    size = sum(piece.size for piece in pieces)
    file = TokenFile(objects=pieces, dtype=dtype, count=size // np.dtype(dtype).itemsize)
    cuts = cut_documents(_places(store, idx, file, size, sequences, documents), PART // file.itemsize)
    begin = _HEAD.size
    return runs_of_documents(
        file,
        cuts,
        # Columns of a place: documents, samples, tokens and sequences before it.
        lambda before, after: (
            (idx.key, begin + 12 * sequences + 8 * int(before[0]), 8 * int(after[0] - before[0] + 1)),
            (idx.key, begin + 4 * int(before[3]), 4 * int(after[3] - before[3])),
        ),
    )


def _read_head(store: Store, idx: ObjectInfo) -> tuple[str, int, int]:
    """Dtype, number of sequences, and number of documents and 1."""
    head = read_range(store, ByteRange(idx.key, 0, min(idx.size, _HEAD.size), idx.etag))
    if head.startswith(_OLD_MAGIC):
        raise FormatError(
            f'{idx.key} is an index of fairseq and the first Megatron-LM (TNTIDX), which is not read. Write the data '
            f'again with `--dataset-impl mmap`, or with a newer Megatron-LM.'
        )
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise FormatError(f'An index of Megatron-LM begins with MMIDIDX, but {idx.key} with {head[:9]!r}. Restore it.')
    _, version, code, sequences, documents = _HEAD.unpack(head)
    if version != 1 or code not in _DTYPES:
        raise FormatError(
            f'An index of Megatron-LM has version 1 and a dtype from 1 to 8, but {idx.key} has {version} and {code}. '
            f'Restore it, or write the data again.'
        )
    size = _HEAD.size + 12 * sequences + 8 * documents
    if idx.size == size + sequences and sequences:
        raise FormatError(
            f'{idx.key} has a mode for each sequence: multimodal data of Megatron-LM are not read. Convert them with '
            f'a function.'
        )
    if idx.size != size or not documents:
        raise FormatError(
            f'{idx.key} should have {size} bytes for {sequences} sequences and {documents} places of documents, but '
            f'has {idx.size}. Restore it, or write the data again.'
        )
    return _DTYPES[code], sequences, documents


def _places(
    store: Store, idx: ObjectInfo, file: TokenFile, size: int, sequences: int, documents: int
) -> Iterator[Integers]:
    """int64[documents, 2], the tokens and the sequences up to the end of each document, in runs."""

    def damaged(rule: str) -> FormatError:
        return FormatError(f'{rule}, but {idx.key} says something else. Restore it and {file.name}.')

    def documents_in_runs() -> Iterator[Integers]:
        last = 0
        for run in read_numbers(store, idx, '<i8', begin=_HEAD.size + 12 * sequences, count=documents):
            # Differences of numbers beyond these may overflow.
            if run.min() < 0 or run.max() > sequences or np.diff(run, prepend=last).min() < 0:
                raise damaged(f'Documents begin one after another, up to sequence {sequences}')
            last = int(run[-1])
            yield run
        if last != sequences:
            raise damaged(f'The last document ends with the last of {sequences} sequences')

    runs = documents_in_runs()
    waiting = next(runs)
    if waiting[0] != 0:
        raise damaged('The first document begins with the first sequence')
    waiting = waiting[1:]
    first_sequence = first_token = 0
    lengths = read_numbers(store, idx, '<i4', begin=_HEAD.size, count=sequences)
    offsets = read_numbers(store, idx, '<i8', begin=_HEAD.size + 4 * sequences, count=sequences)
    for length, offset in zip(lengths, offsets, strict=True):
        tokens = first_token + np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
        if length.min() < 0 or tokens[-1] > file.count or (offset != tokens[:-1] * file.itemsize).any():
            raise damaged(f'Sequences have their {file.dtype} tokens one after another, {file.count} in all')
        last_sequence = first_sequence + len(length)
        while True:
            waiting = waiting if len(waiting) else next(runs, waiting)
            now = waiting[: np.searchsorted(waiting, last_sequence, 'right')]
            if not len(now):
                break
            yield np.column_stack([tokens[now - first_sequence], now])
            waiting = waiting[len(now) :]
        first_sequence, first_token = last_sequence, int(tokens[-1])
    if first_token * file.itemsize != size:
        raise damaged(f'All sequences have the {size} bytes of the .bin')
