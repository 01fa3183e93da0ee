"""Tokens in flat files: raw, .npy, llm.c's, and datatrove's .ds. A sample is a document, or a block of tokens.

Documents are known by the file ``NAME.index`` beside the file ``NAME``, which has the end of each as a uint64 count of
tokens, or by the token `end_of_document`. Without either, a sample is a block of `block_size` tokens. A row of a .npy
file with two axes is a sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Final

import numpy as np

from headrace.errors import FormatError, StreamError
from headrace.sources.formats import is_hidden
from headrace.sources.npy import MAGIC, read_header
from headrace.sources.ranges import ByteRange, in_parallel, read_range, refuse_packed
from headrace.sources.token_source import (
    PART,
    Integers,
    TokenFile,
    TokenRuns,
    TokenSource,
    cut_documents,
    document_ends,
    load_tokens,
    read_numbers,
    runs_of_blocks,
    runs_of_documents,
    source_of,
)
from headrace.storage import ObjectInfo, Store

NAME: Final = 'tokens'
load = load_tokens
_ENDINGS: Final = ('.bin', '.npy', '.ds', '.u16', '.u32')
_DTYPE_OF_ENDING: Final = {'.u16': 'uint16', '.u32': 'uint32'}
_INDEX: Final = '.index'
_METADATA: Final = '.metadata'
DTYPES: Final = ('uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64')
_BLOCK: Final = 2048
_MOST_TOKENS: Final = 1 << 28  # Tokens of a block, at most.
_HEAD: Final = 10 << 10  # Bytes that hold the head of a file.
_LLM_C: Final = {20240520: (1, 'uint16'), 20240801: (7, 'uint32')}
"""The version and dtype of llm.c's files of tokens, by magic."""
_LLM_C_QUESTIONS: Final = 20240522
_LLM_C_HEAD: Final = 256 * 4
_SCANNED: Final = 4 << 20  # Bytes of a request that looks for ends of documents.


def find(objects: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """The files by their endings, and those beside them that describe them."""
    keys = {info.key for info in objects if info.key.endswith(_ENDINGS) and not is_hidden(info.key)}
    beside = {key + ending for key in keys for ending in (_INDEX, _METADATA)}
    return [info for info in objects if info.key in keys or info.key in beside] if keys else []


def index(
    store: Store,
    objects: Sequence[ObjectInfo],
    *,
    columns: Collection[str] | None,
    allow_unsafe_types: bool,
    token_dtype: str | None = None,
    end_of_document: int | None = None,
    block_size: int | None = None,
    keep_last: bool = False,
) -> TokenSource:
    """See `SourceFormat.index`.

    `token_dtype`: dtype of tokens in files that do not say it, such as 'uint16'.
    `end_of_document`: the token that ends each document.
    `block_size`: tokens of a sample, where documents do not matter. By default 2048, where they are not known.
    `keep_last`: whether the end of a file that fills no block is a sample, too. It does not stack with others.
    """
    del allow_unsafe_types
    _check_options(token_dtype, end_of_document, block_size, keep_last)
    listed = {info.key: info for info in objects}
    beside = {info.key + ending for info in objects for ending in (_INDEX, _METADATA)}
    files = [info for info in objects if info.key not in beside]
    options = _Options(token_dtype, end_of_document, block_size, keep_last)
    runs = in_parallel(partial(_index_file, store, listed, options), files)
    return source_of(NAME, runs, columns, end_of_document, keep_last=keep_last)


@dataclass(frozen=True, slots=True)
class _Options:
    token_dtype: str | None
    end_of_document: int | None
    block_size: int | None
    keep_last: bool


def _check_options(dtype: object, end: object, block_size: object, keep_last: object) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise StreamError(f'`token_dtype` is one of {", ".join(DTYPES)}, but is {dtype!r:.80}.')
    for name, value, least, most in (
        ('end_of_document', end, 0, (1 << 63) - 1),
        ('block_size', block_size, 1, _MOST_TOKENS),
    ):
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise StreamError(f'`{name}` is a whole number from {least} to {most}, but is {value!r:.80}.')
    if end is not None and block_size is not None:
        raise StreamError(
            f'A sample is a document or a block, but `end_of_document` is {end} and `block_size` is {block_size}. Give '
            f'one of them.'
        )
    if not isinstance(keep_last, bool):
        raise StreamError(f'`keep_last` is true or false, but is {keep_last!r:.80}.')


def _index_file(store: Store, listed: Mapping[str, ObjectInfo], options: _Options, info: ObjectInfo) -> TokenRuns:
    file, width = _open(store, listed, options.token_dtype, info)
    if width:
        if options.end_of_document is not None or options.block_size is not None:
            raise StreamError(
                f'A row of an array with two axes is a sample, as in {info.key}, so neither `end_of_document` nor '
                f'`block_size` applies. Remove it.'
            )
        return runs_of_blocks(file, width, empty=0)
    ends = listed.get(info.key + _INDEX)
    if options.end_of_document is not None:
        if options.end_of_document > np.iinfo(file.dtype).max:
            raise StreamError(
                f'`end_of_document` is a token, but {options.end_of_document} is no {file.dtype} as in {info.key}. '
                f'Correct it, or `token_dtype`.'
            )
        cuts = cut_documents(_ends_by_token(store, file, options.end_of_document), PART // file.itemsize)
        run = runs_of_documents(file, cuts, lambda *_: ())
        if sum(part.rows for part in run.parts) != 1:
            return run
        last = read_range(store, ByteRange(info.key, info.size - file.itemsize, file.itemsize, info.etag))
        return replace(run, lacks_end=int.from_bytes(last, 'little') != options.end_of_document)
    if options.block_size is not None or ends is None:
        return runs_of_blocks(file, options.block_size or _BLOCK, keep_last=options.keep_last)
    cuts = cut_documents(_ends_by_index(store, ends, file), PART // file.itemsize)

    def beside(before: Integers, after: Integers) -> list[tuple[str, int, int]]:
        return [(ends.key, int(before[0]) * 8, int(after[0] - before[0]) * 8)]

    return runs_of_documents(file, cuts, beside)


def _ends_by_token(store: Store, file: TokenFile, end_of_document: int) -> Iterator[Integers]:
    at, (info,), step = 0, file.objects, _SCANNED // file.itemsize
    for tokens in read_numbers(store, info, file.dtype, begin=file.begin, count=file.count, step=step):
        ends = at + document_ends(tokens, end_of_document, is_last=at + len(tokens) == file.count)
        at += len(tokens)
        yield ends[:, None]


def _ends_by_index(store: Store, info: ObjectInfo, file: TokenFile) -> Iterator[Integers]:
    if info.size % 8:
        raise FormatError(f'{info.key} has numbers of 8 bytes, but {info.size} bytes. Restore or write it again.')
    last = 0
    for ends in read_numbers(store, info, '<i8', count=info.size // 8):
        # Differences of such numbers may overflow.
        if ends[0] < last or (ends[1:] < ends[:-1]).any() or ends[-1] > file.count:
            raise FormatError(
                f'{info.key} has the end of each document as a uint64 count of tokens, none after the {file.count} '
                f'tokens of {file.name}, but its numbers are others. Restore or write it again.'
            )
        last = int(ends[-1])
        yield ends[:, None]
    if last != file.count:
        raise FormatError(
            f'The last document of {info.key} ends with the tokens, but at {last} of the {file.count} tokens of '
            f'{file.name}. Restore both files, or write them again.'
        )


def _open(
    store: Store, listed: Mapping[str, ObjectInfo], token_dtype: str | None, info: ObjectInfo
) -> tuple[TokenFile, int]:
    """The tokens of a file, and the number in each row of an array with two axes, else 0."""
    head = read_range(store, ByteRange(info.key, 0, min(info.size, _HEAD), info.etag))
    refuse_packed(head, info.key)
    magic, version, count = (int.from_bytes(head[at : at + 4], 'little') for at in (0, 4, 8))
    begin = width = 0
    dtype = None
    if head.startswith(MAGIC):
        shape, dtype, begin = _read_npy(head, info.key)
        count, width = math.prod(shape), shape[1] if len(shape) > 1 else 0
    elif magic in _LLM_C:
        expected, dtype = _LLM_C[magic]
        begin = _LLM_C_HEAD
        if version != expected:
            raise FormatError(
                f"llm.c's files of {dtype} tokens have version {expected}, but {info.key} has {version}. Rewrite it."
            )
    elif magic == _LLM_C_QUESTIONS:
        raise FormatError(
            f'{info.key} holds questions and answers of llm.c, and no documents. Name other files with a glob in '
            f'`remote`.'
        )
    if dtype is None:
        dtype, announced = _dtype_beside(store, listed, token_dtype, info)
        count = max(info.size // np.dtype(dtype).itemsize, announced)
    elif token_dtype not in (None, dtype):
        raise _contradiction(token_dtype, info.key, dtype)
    size = begin + count * np.dtype(dtype).itemsize
    if size != info.size:
        raise FormatError(
            f'{info.key} should have {size} bytes for {count} tokens of {dtype}, but has {info.size}. Restore it, or '
            f'correct `token_dtype`.'
        )
    return TokenFile(objects=[info], begin=begin, dtype=dtype, count=count), width


def _read_npy(head: bytes, key: str) -> tuple[tuple[int, ...], str, int]:
    """Shape, dtype and first byte of an array."""
    stream = BytesIO(head)
    try:
        shape, is_fortran, dtype = read_header(stream)
    except Exception as error:  # numpy reads the header as Python text: ValueError, SyntaxError, TokenError and others
        raise FormatError(f'The header of {key} cannot be read: {error}. Restore or write it again.') from None
    if dtype.str not in {np.dtype(name).str for name in DTYPES} or not 1 <= len(shape) <= 2 or min(shape) < 0:
        raise FormatError(
            f'Tokens are little-endian integers in arrays of one or two axes, but {key} has the dtype {dtype} and the '
            f'shape {shape}. Write it again, or name other files with a glob in `remote`.'
        )
    if is_fortran and len(shape) > 1:
        raise FormatError(
            f'A row of tokens is in one place, but {key} has its columns so (`fortran_order`). Write it again.'
        )
    return shape, dtype.name, stream.tell()


def _contradiction(token_dtype: str | None, key: str, says: str) -> StreamError:
    return StreamError(
        f'`token_dtype` is for files that do not say it, but is {token_dtype}, and {key} says {says}. Remove it, or '
        f'read these files as another stream.'
    )


def _dtype_beside(
    store: Store, listed: Mapping[str, ObjectInfo], token_dtype: str | None, info: ObjectInfo
) -> tuple[str, int]:
    """The dtype of a raw file, and how many tokens it has at least.

    The name tells, or what datatrove writes beside it: a line ``TOKENIZER|BYTES``, and one with the number of tokens.
    """
    named, size, announced = _DTYPE_OF_ENDING.get(info.key[-4:]), b'', 0
    metadata = listed.get(info.key + _METADATA)
    if metadata is not None:
        head = read_range(store, ByteRange(metadata.key, 0, min(metadata.size, _HEAD), metadata.etag))
        first, count = [*head.split(b'\n'), b''][:2]
        size, announced = first.rpartition(b'|')[2], int(count) if count.isdigit() else 0
    dtype = token_dtype or named or {b'2': 'uint16', b'4': 'uint32'}.get(size)
    if named and dtype != named:
        raise _contradiction(dtype, f'the name of {info.key}', named)
    if dtype and size in {b'1', b'2', b'4', b'8'} and np.dtype(dtype).itemsize != int(size):
        raise _contradiction(dtype, f'{info.key}{_METADATA}', f'{int(size)} bytes')
    if dtype is None:
        raise StreamError(
            f'{info.key} does not say of which dtype its tokens are. Say it, such as `format_options={{"token_dtype": '
            f'"uint16"}}`. Files of Megatron need the .idx beside them, so that a glob in `remote` must name it, too.'
        )
    return dtype, announced
