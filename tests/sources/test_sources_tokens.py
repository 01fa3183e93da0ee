"""Flat files of tokens: raw, .npy, llm.c's and datatrove's."""

from __future__ import annotations

import contextlib
import io
import struct
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import token_source, tokens
from headrace.sources.formats import formats_in
from headrace.storage import ObjectInfo
from tests.support.sources.source_cases import MemoryStore, index, part_bytes, rows
from tests.support.sources.token_files import datatrove, llm_c, raw
from tests.support.suite.example_counts import scaled


def npy(array: object, dtype: str = 'uint16') -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(array, dtype))
    return out.getvalue()


def read(objects: dict[str, bytes], **options: Any) -> list[list[int]]:
    return [row['tokens'].tolist() for row in rows(index(tokens, objects, **options), objects)]


def small(part: int):
    """Parts and batches of so many bytes."""
    together = contextlib.ExitStack()
    together.enter_context(patch.multiple(tokens, PART=part, _SCANNED=16))
    together.enter_context(patch.multiple(token_source, PART=part, _BATCH=part))
    return together


FILES = {
    'raw': ('a.bin', lambda flat, dtype: raw(flat, dtype)),
    'raw named npy': ('a.npy', lambda flat, dtype: raw(flat, dtype)),
    'npy': ('a.npy', npy),
    'llm.c': ('a.bin', llm_c),
}


@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.sampled_from(['uint16', 'uint32']),
    st.sampled_from([*FILES]),
    st.integers(8, 40),
    st.integers(1, 20),
    st.booleans(),
)
@settings(max_examples=scaled(150), deadline=None)
def test_blocks_of_any_file(flat, dtype, kind, part, block, keep):
    name, write = FILES[kind]
    objects = {name: write(flat, dtype)}
    options = {'token_dtype': dtype} if kind.startswith('raw') else {}
    whole = len(flat) - len(flat) % block
    expected = [flat[at : at + block] for at in range(0, len(flat) if keep else whole, block)]
    with small(part):
        if flat and not expected:
            with pytest.raises(StreamError, match='Choose a smaller `block_size`, or `keep_last`'):
                read(objects, block_size=block, **options)
            return
        source = index(tokens, objects, block_size=block, keep_last=keep, **options)
        assert [row['tokens'].tolist() for row in rows(source, objects)] == expected
    if expected:
        is_fixed = not keep or whole == len(flat)
        assert source.columns == {'tokens': f'ndarray:{dtype}:{block}' if is_fixed else f'ndarray:{dtype}'}


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=20),
    st.sampled_from(['uint16', 'uint32']),
    st.integers(8, 60),
)
@settings(max_examples=scaled(150), deadline=None)
def test_documents_by_an_index_or_by_a_token(documents, dtype, part):
    objects = datatrove('a.ds', documents, dtype)
    flat = [token for document in documents for token in document]
    ends = [at + 1 for at, token in enumerate(flat) if token == 0]
    ends += [len(flat)] * bool(flat and flat[-1])
    with small(part):
        assert read(objects) == [document for document in documents if document]
        if flat and 0 not in flat:
            with pytest.raises(StreamError, match='1 file, such as a.ds, have no such token'):
                read(objects, end_of_document=0)
            return
        assert read(objects, end_of_document=0) == [flat[a:b] for a, b in pairwise([0, *ends])]


def test_rows_of_an_array_are_samples():
    array = np.arange(35).reshape(7, 5)
    objects = {'a.npy': npy(array), 'b.npy': npy(array[:2])}
    assert read(objects) == [*array.tolist(), *array[:2].tolist()]
    assert index(tokens, objects).columns == {'tokens': 'ndarray:uint16:5'}
    objects['c.npy'] = npy([[1], [2]])
    assert index(tokens, objects).columns == {'tokens': 'ndarray:uint16'}
    assert read(objects)[-3:] == [array[1].tolist(), [1], [2]]


def test_an_index_beside_any_file_has_its_documents():
    objects = {'a.bin': raw([1, 2, 3, 4, 5]), 'a.bin.index': raw([2, 2, 5], '<u8')}
    store = MemoryStore(objects)
    source = tokens.index(store, list(store.list('')), columns=None, allow_unsafe_types=False, token_dtype='uint16')
    assert source.notes == ['Left out 1 document without tokens.']
    assert read(objects, token_dtype='uint16') == [[1, 2], [3, 4, 5]]
    assert read(objects, token_dtype='uint16', block_size=1) == [[1], [2], [3], [4], [5]]


def test_what_is_left_out_is_said():
    objects = {f'{name}.u16': raw(range(5)) for name in 'abc'} | {'d.u16': b''}
    store = MemoryStore(objects)

    def notes(**options: Any) -> list[str]:
        return [*tokens.index(store, list(store.list('')), columns=None, allow_unsafe_types=False, **options).notes]

    assert notes(block_size=3) == [
        'Samples of 3 files, such as a.u16, are blocks of 3 tokens, without regard to documents.',
        '6 tokens at the end of 3 files, such as a.u16, fill no block: left out.',
    ]
    assert notes(block_size=2, keep_last=True)[1] == (
        '3 tokens at the end of 3 files, such as a.u16, fill no block: they are shorter samples.'
    )
    assert notes(end_of_document=2) == []
    objects |= {'e.u16': raw([0, 1]), 'f.u16': raw([2])}
    store = MemoryStore(objects)
    assert notes(end_of_document=2) == [
        'The token `end_of_document` is not in 1 file, such as e.u16: each is one sample.'
    ]


def test_tokens_at_the_start_are_read_by_ranges():
    objects = {'a.u32': raw(range(100_000), 'uint32')}
    store = MemoryStore(objects)
    source = tokens.index(store, list(store.list('')), columns=None, allow_unsafe_types=False)
    assert sum(size for _, _, size in store.reads) <= 10 << 10
    with small(1 << 16):
        source = tokens.index(store, list(store.list('')), columns=None, allow_unsafe_types=False)
    assert [part.rows for part in source.parts] == [8] * 6
    assert all(part.ranges[0][1] == 8 * 2048 * 4 for part in source.parts)


@pytest.mark.parametrize(
    ('objects', 'options', 'message'),
    [
        ({'a.bin': raw([1])}, {}, r'does not say of which dtype .*"token_dtype": "uint16".* need the .idx'),
        ({'a.bin': raw([1])}, {'token_dtype': 'float32'}, "`token_dtype` is one of uint8, .* but is 'float32'"),
        ({'a.bin': raw([1])}, {'token_dtype': 2}, '`token_dtype` is one of'),
        ({'a.npy': npy([1])}, {'token_dtype': 'uint32'}, r'but is uint32, and a.npy says uint16'),
        ({'a.bin': llm_c([1])}, {'token_dtype': 'int32'}, r'but is int32, and a.bin says uint16'),
        ({'a.u32': raw([1], 'uint32')}, {'token_dtype': 'uint16'}, r'but is uint16, and the name of a.u32 says uint32'),
        ({'a.u16': raw([1])}, {'token_dtype': 'int16'}, r'but is int16, and the name of a.u16 says uint16'),
        (datatrove('a.ds', [[1]], 'uint32'), {'token_dtype': 'uint16'}, r'and a.ds.metadata says 4 bytes. Remove it'),
        (datatrove('a.ds', [[1]], 'uint16'), {'token_dtype': 'uint64'}, r'and a.ds.metadata says 2 bytes. Remove it'),
        ({'a.u16': raw([1])}, {'block_size': 0}, '`block_size` is a whole number from 1 to 268435456, but is 0'),
        ({'a.u16': raw([1])}, {'block_size': True}, '`block_size` is a whole number'),
        ({'a.u16': raw([1])}, {'end_of_document': '0'}, "`end_of_document` is a whole number from 0 .* is '0'"),
        ({'a.u16': raw([1])}, {'end_of_document': 65536}, '65536 is no uint16 as in a.u16. Correct it'),
        ({'a.u16': raw([1])}, {'end_of_document': 0, 'block_size': 2}, 'a document or a block, .* Give one of them'),
        ({'a.u16': raw([1])}, {'keep_last': 'yes'}, "`keep_last` is true or false, but is 'yes'"),
        ({'a.npy': npy([[1]])}, {'block_size': 2}, 'two axes is a sample, .* Remove it'),
        ({'a.npy': npy([[1]])}, {'end_of_document': 2}, 'two axes is a sample, .* Remove it'),
        ({'a.u16': raw([1]), 'b.u32': raw([1], 'uint32')}, {'block_size': 1}, 'a.u16 has uint16, and b.u32 has uint32'),
        ({'a.u16': raw([1])}, {'columns': ['text']}, "asks for 'text'"),
    ],
)
def test_wrong_options_are_refused(objects, options, message):
    with pytest.raises((StreamError, FormatError), match=message):
        index(tokens, objects, **options)


NPY = npy(range(10))


@pytest.mark.parametrize(
    ('objects', 'message'),
    [
        ({'a.u32': raw([1, 2, 3])}, 'should have 4 bytes for 1 tokens of uint32, but has 6'),
        ({'a.npy': NPY[:-1]}, 'should have 148 bytes for 10 tokens of uint16, but has 147'),
        ({'a.npy': NPY[:50]}, 'The header of a.npy cannot be read'),
        ({'a.npy': NPY.replace(b"order': ", b"order'{ ")}, 'The header of a.npy cannot be read'),
        ({'a.npy': NPY.replace(b'(10,)', b'(-9,)')}, r'shape \(-9,\). Write it again'),
        ({'a.npy': npy([1.5], 'float32')}, 'little-endian integers .* the dtype float32'),
        ({'a.npy': npy([1], '>u2')}, 'little-endian integers .* the dtype >u2'),
        ({'a.npy': npy(np.zeros((1, 1, 1)))}, r'one or two axes, .* the shape \(1, 1, 1\)'),
        ({'a.npy': npy(np.asfortranarray(np.zeros((2, 3))))}, 'fortran_order'),
        ({'a.bin': llm_c([1, 2])[:-1]}, 'should have 1028 bytes for 2 tokens of uint16, but has 1027'),
        ({'a.bin': struct.pack('<II', 20240520, 2)}, 'uint16 tokens have version 1, but a.bin has 2'),
        ({'a.bin': struct.pack('<II', 20240801, 1)}, 'uint32 tokens have version 7, but a.bin has 1'),
        ({'a.bin': struct.pack('<II', 20240522, 1)}, 'questions and answers of llm.c'),
        ({'a.u16': raw([1]), 'a.u16.index': b'123'}, 'numbers of 8 bytes, but 3 bytes'),
        ({'a.u16': raw([1]), 'a.u16.index': raw([1, 0, 1], '<u8')}, 'its numbers are others'),
        ({'a.u16': raw([1]), 'a.u16.index': raw([2], '<u8')}, 'its numbers are others'),
        ({'a.u16': raw([1]), 'a.u16.index': raw([1 << 63], '<u8')}, 'its numbers are others'),
        # Differences of these overflow, and are positive.
        ({'a.u16': raw([1]), 'a.u16.index': raw([3 << 61, 11 << 60, 1], '<u8')}, 'its numbers are others'),
        ({'a.u16': raw([1, 2]), 'a.u16.index': raw([1], '<u8')}, 'ends with the tokens, but at 1 of the 2'),
        ({'a.u16': raw([1, 2]), 'a.u16.index': b''}, 'ends with the tokens, but at 0 of the 2'),
        ({'a.ds': raw([1]), 'a.ds.metadata': b'gpt2\n1\n1'}, 'does not say of which dtype'),
        ({'a.ds': raw([1]), 'a.ds.metadata': b'gpt2|2\n3\n3'}, 'a.ds should have 6 bytes for 3 tokens of uint16'),
    ],
)
def test_damaged_files_are_refused(objects, message):
    with pytest.raises((FormatError, StreamError), match=message):
        index(tokens, objects)


@pytest.mark.parametrize('dtype', ['uint32', 'int32'])
def test_a_dtype_that_the_metadata_allow_is_taken(dtype):
    assert read(datatrove('a.ds', [[70_000, 2]], 'uint32'), token_dtype=dtype) == [[70_000, 2]]


def test_a_part_of_other_bytes_is_an_error():
    objects = datatrove('a.ds', [[1, 2], [3], [4, 5, 6]])
    source = index(tokens, objects)
    data = part_bytes(source, 0, objects)
    ends = [9, 8, 7], [3 << 61, 11 << 60, 6]
    for damaged in (data[:-1], data[:-2], data[:8], *(memoryview(raw(one, '<u8') + data[24:]) for one in ends)):
        with pytest.raises(ShardError, match='Restore the files'):
            list(source.batches(0, damaged))


@given(
    st.sampled_from([*FILES, 'ds']),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=8)), max_size=3),
)
@settings(max_examples=scaled(200), deadline=None)
def test_any_damage_is_an_error_of_ours(kind, edits):
    if kind == 'ds':
        objects = datatrove('a.ds', [[1, 2], [3], [4, 5, 6]])
    else:
        name, write = FILES[kind]
        objects = {name: write(range(9), 'uint16')}
    for name in objects:
        bad = bytearray(objects[name])
        for at, new in edits:
            bad[at % len(bad) : at % len(bad) + len(new)] = new
        damaged = {**objects, name: bytes(bad)}
        with contextlib.suppress(HeadraceError):
            read(damaged, keep_last=True)
        with contextlib.suppress(HeadraceError):
            read(damaged, token_dtype='uint16', end_of_document=2)


@pytest.mark.parametrize(
    ('names', 'found'),
    [
        (['train.bin', 'val.bin', 'meta.pkl', 'prepare.py', 'input.txt', 'readme.md'], {'tokens': 2}),
        (['a.ds', 'a.ds.index', 'a.ds.metadata', '.gitattributes'], {'tokens': 3}),
        (['a.bin', 'a.idx', 'b.npy'], {'megatron': 2}),
        (['a.bin', 'a.idx', 'b.bin'], {'megatron': 3}),
        (['a-0-of-2.bin', 'a-1-of-2.bin', 'a.idx'], {'megatron': 3}),
        (['index.json', 'chunk-0-0.bin', 'chunk-0-1.bin'], {'litdata': 3}),
        (['a.parquet', 'mean.npy', 'pytorch_model.bin'], {'parquet': 1}),
        (['a.tar', 'a.idx'], {'webdataset': 1}),
        (['cat/1.jpg', 'mean.npy'], {}),
        (['_old/a.bin', 'README.md'], {}),
        (['a.idx'], {}),
    ],
)
def test_what_a_listing_holds(names, found):
    assert formats_in([ObjectInfo(name, 1, '') for name in names]) == found
