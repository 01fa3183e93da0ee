"""Items of litdata's chunks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from litdata_folders import write
from source_cases import index, rows

from headrace.errors import FormatError, ShardError
from headrace.sources import litdata as source_format


def test_rows_of_plain_values_that_litdata_stores_as_arrow_data(tmp_path):
    pytest.importorskip('pyarrow')
    samples: list[dict[str, Any]] = [
        {'text': f't{n}', 'tags': ['a'] * n, 'meta': {'k': n, 'deep': {'x': [n]}}, 'score': None if n == 3 else n / 2}
        for n in range(7)
    ]
    samples[5]['late'] = 'only here'
    for how in ({}, {'compression': 'zstd'}):
        objects = write(tmp_path / str(len(how)), samples, **how)
        source = index(source_format, objects)
        assert dict(source.columns) == {'text': 'str', 'tags': 'json', 'meta': 'json', 'score': 'json', 'late': 'json'}
        found = rows(source, objects)
        assert found == [{'late': None, **sample} for sample in samples]


def test_names_in_arrow_rows_that_are_not_utf8(tmp_path):
    pytest.importorskip('pyarrow')
    objects = write(tmp_path, [{'number': n, 'words': ['x'] * n} for n in range(4)])
    name = 'chunk-0-0.bin'
    objects[name] = objects[name].replace(b'number', b'\xffumber')
    with pytest.raises(ShardError, match='Arrow data in chunk-0-0.bin are damaged'):
        rows(index(source_format, objects), objects)


@pytest.mark.parametrize(
    ('chunk', 'message'),
    [
        ({'filename': '../chunk-0-0.bin'}, 'relative to its root'),
        ({'filename': 'chunk-0-7.bin'}, 'does not exist'),
        ({'chunk_size': 0}, '`chunk_size`'),
        ({'chunk_size': 1 << 70}, '`chunk_size`'),
        ({'chunk_size': 3}, 'has 4 items, but the index says 3'),
        ({'chunk_bytes': -1}, '`chunk_bytes`'),
    ],
)
def test_a_wrong_chunk(tmp_path, chunk, message):
    objects = write(tmp_path, [{'n': n, 's': np.arange(3)} for n in range(4)])
    value = json.loads(objects['index.json'])
    value['chunks'][0].update(chunk)
    objects['index.json'] = json.dumps(value).encode()
    with pytest.raises(FormatError, match=message):
        rows(index(source_format, objects), objects)


def test_a_bomb_is_refused(tmp_path):
    how = {'compression': 'zstd', 'compression_level': 'chunk'}
    objects = write(tmp_path, [{'n': n, 's': np.zeros(1 << 17, np.uint8)} for n in range(4)], **how)
    value = json.loads(objects['index.json'])
    value['chunks'][0]['chunk_bytes'] = 1000
    objects['index.json'] = json.dumps(value).encode()
    with pytest.raises(ShardError, match='at most [0-9]+ bytes'):
        rows(index(source_format, objects), objects)
