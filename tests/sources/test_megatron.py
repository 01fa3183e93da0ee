"""Megatron-LM's indexed datasets, as its builder writes them, and damaged ones."""

from __future__ import annotations

import contextlib
import struct
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources import megatron, token_source
from tests.support.sources.source_cases import MemoryStore, index, part_bytes, rows
from tests.support.sources.token_files import DTYPES, raw
from tests.support.sources.token_files import megatron as write
from tests.support.suite.example_counts import scaled

DOCUMENTS = [[[1, 2, 3]], [[4], [5, 6]], [[7, 8, 9, 10]], [[11]]]
documents = st.lists(st.lists(st.lists(st.integers(0, 100), max_size=6), max_size=4), max_size=12)


def named(data: tuple[bytes, bytes], name: str = 'a') -> dict[str, bytes]:
    return {f'{name}.bin': data[0], f'{name}.idx': data[1]}


def joined(found: list[list[list[int]]]) -> list[list[int]]:
    """What is read: sequences of a document as one, and none without tokens."""
    flat = ([token for sequence in document for token in sequence] for document in found)
    return [tokens for tokens in flat if tokens]


@given(documents, st.sampled_from(DTYPES), st.integers(8, 99), st.integers(1, 9), st.integers(1, 4))
@settings(max_examples=scaled(200), deadline=None)
def test_any_documents_are_read_as_they_were_written(found, dtype, part, step, pieces):
    data, idx = write(found, dtype)
    objects = named((data, idx))
    if pieces > 1:  # cut anywhere, also within a token
        del objects['a.bin']
        cuts = [len(data) * n // pieces for n in range(pieces + 1)]
        objects |= {f'a-{n:05}-of-{pieces:05}.bin': data[cuts[n] : cuts[n + 1]] for n in range(pieces)}
    small = patch.multiple(megatron, PART=part, read_numbers=_in_steps(step))
    with small, patch.multiple(token_source, PART=part, _BATCH=part):
        source = index(megatron, objects)
        expected = joined(found)
        assert [row['tokens'].tolist() for row in rows(source, objects)] == expected
    if expected:
        same = {len(tokens) for tokens in expected}
        shape = f':{same.pop()}' if len(same) == 1 else ''
        assert source.columns == {'tokens': f'ndarray:{dtype}{shape}'}


def _in_steps(step: int):
    """`read_numbers` in runs of so many."""
    return lambda *given, **named: token_source.read_numbers(*given, **named, step=step)


def test_a_part_reads_its_documents_and_their_lengths_only():
    found = [[[n % 50] * (1 + n % 7)] for n in range(4000)]
    data, idx = write(found)
    store = MemoryStore(named((data, idx)))
    with patch.object(megatron, 'PART', 1024):
        source = megatron.index(store, list(store.list('')), columns=None, allow_unsafe_types=False)
    assert all(key == 'a.idx' for key, _, _ in store.reads)
    assert sum(size for _, _, size in store.reads) == len(idx)
    assert len(source.parts) == -(-len(data) // 1024)
    assert len(source.to_bytes()) < len(idx) / 2
    for part in source.parts:
        lengths = sum(size for _, _, size in part.beside)
        assert lengths == 8 * (part.rows + 1) + 4 * part.rows
        assert part.ranges[0][1] < 1024 + 14


def test_several_files_and_empty_documents_are_said():
    objects = named(write([[[1, 2]], [[]], [[3]], []])) | named(write([[[4, 5]]]), 'b/c_text_document')
    store = MemoryStore(objects)
    source = megatron.index(store, list(store.list('')), columns=['tokens'], allow_unsafe_types=False)
    assert source.notes == ['Left out 2 documents without tokens.']
    assert [row['tokens'].tolist() for row in rows(source, objects)] == [[1, 2], [3], [4, 5]]


def edited(at: int, code: str, value: int) -> dict[str, bytes]:
    data, idx = write(DOCUMENTS)
    new = bytearray(idx)
    struct.pack_into(code, new, at, value)
    return {'a.bin': data, 'a.idx': bytes(new)}


DATA, IDX = write(DOCUMENTS)
LENGTHS, OFFSETS, PLACES = 34, 34 + 5 * 4, 34 + 5 * 12


@pytest.mark.parametrize(
    ('objects', 'message'),
    [
        ({'a.bin': DATA, 'a.idx': b'TNTIDX\0\0' + IDX}, r'TNTIDX\), which is not read. Write the data again'),
        ({'a.bin': DATA, 'a.idx': IDX + b'\0' * 5}, 'a mode for each sequence: multimodal data'),
        ({'a.bin': DATA, 'a.idx': IDX[:-8]}, 'should have 134 bytes for 5 sequences and 5 places .* but has 126'),
        ({'a.bin': DATA, 'a.idx': IDX[:20]}, 'begins with MMIDIDX'),
        ({'a.bin': DATA, 'a.idx': b''}, 'begins with MMIDIDX'),
        ({'a.bin': DATA[:-2], 'a.idx': IDX}, 'uint16 tokens one after another, 10 in all'),
        ({'a.bin': DATA + b'\0', 'a.idx': IDX}, 'have the 23 bytes of the .bin'),
        ({'a.bin': DATA, 'a.idx': IDX, 'b.bin': DATA}, 'are a .bin and a .idx of one name, but b.bin are not'),
        ({'a.bin': DATA, 'a.idx': IDX, 'b.idx': IDX}, 'are a .bin and a .idx of one name, but b.idx are not'),
        ({'a.bin': DATA, 'a.idx': IDX, 'a-0-of-1.bin': DATA}, 'of one name, but a-0-of-1.bin, a.bin, a.idx are not'),
        (edited(9, '<Q', 2), 'version 1 and a dtype from 1 to 8, but a.idx has 2 and 8'),
        (edited(17, '<B', 9), 'a dtype from 1 to 8, but a.idx has 1 and 9'),
        (edited(18, '<Q', 1 << 62), 'should have .* bytes for 4611686018427387904 sequences'),
        (edited(26, '<Q', 1 << 63), 'should have .* and 9223372036854775808 places'),
        (edited(LENGTHS, '<i', -1), 'tokens one after another'),
        (edited(LENGTHS, '<i', (1 << 31) - 1), 'tokens one after another'),
        (edited(OFFSETS + 8, '<q', 8), 'tokens one after another'),
        (edited(PLACES, '<q', 1), 'begins with the first sequence'),
        (edited(PLACES + 8, '<q', 4), 'begin one after another, up to sequence 5'),
        (edited(PLACES + 32, '<q', 1 << 40), 'begin one after another, up to sequence 5'),
        (edited(PLACES + 32, '<q', 4), 'ends with the last of 5 sequences'),
    ],
)
def test_damaged_files_are_refused(objects, message):
    with pytest.raises(FormatError, match=message):
        index(megatron, objects)


def test_columns_are_chosen():
    with pytest.raises(StreamError, match="asks for 'text', but megatron data has the columns tokens"):
        index(megatron, named((DATA, IDX)), columns=['text'])


def test_a_part_of_other_bytes_is_an_error():
    source = index(megatron, named((DATA, IDX)))
    data = part_bytes(source, 0, named((DATA, IDX)))
    for damaged in (data[:-1], data[:-2], memoryview(raw([7] * (len(data) // 2)))):
        with pytest.raises(ShardError, match='Restore the files'):
            list(source.batches(0, damaged))


@given(documents, st.lists(st.tuples(st.integers(0, 1 << 12), st.binary(min_size=1, max_size=8)), max_size=3))
@settings(max_examples=scaled(200), deadline=None)
def test_any_damage_is_an_error_of_ours(found, edits):
    objects = named(write(found))
    damaged = bytearray(objects['a.idx'])
    for at, new in edits:
        damaged[at % len(damaged) : at % len(damaged) + len(new)] = new
    bad = {**objects, 'a.idx': bytes(damaged)}
    with contextlib.suppress(HeadraceError):
        rows(index(megatron, bad), bad)
    source = index(megatron, objects)
    for number in range(len(source.parts)):
        with contextlib.suppress(HeadraceError):
            list(
                source.batches(
                    number, part_bytes(source, number, bad | {'a.idx': bytes(damaged[: len(objects['a.idx'])])})
                )
            )


def test_values_of_all_dtypes():
    for dtype in DTYPES:
        most = 0.5 if dtype.startswith('float') else np.iinfo(dtype).max
        objects = named(write([[[0, most]], [[most]]], dtype))
        (first, second) = (row['tokens'] for row in rows(index(megatron, objects), objects))
        assert first.dtype == dtype
        assert [*first.tolist(), *second.tolist()] == [0, most, most]
