"""JSONL and separated shards: against the format's description, damage, and their encodings."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, ShardError
from headrace.format import JSONEncoder, XSVEncoder, dump_index, open_shard, parse_index
from tests.support.formats.line_shards import COLUMNS, encode, encoder_of, opened
from tests.support.suite.example_counts import scaled

plain = st.text(st.characters(exclude_categories=['Cs'], exclude_characters=',;|\t\r\n'), max_size=10)
rows = st.fixed_dictionaries({'n': st.integers(), 'x': st.floats(allow_nan=False), 'text': plain})


def slow_line(kind: str, sample: dict[str, Any], newline: str) -> bytes:
    if kind == 'json':
        return (json.dumps(sample, sort_keys=True) + newline).encode()
    separator = {'csv': ',', 'tsv': '\t', 'xsv': '||'}[kind]
    return (separator.join(str(sample[name]) for name in sorted(sample)) + newline).encode()


@settings(max_examples=scaled(100))
@given(
    st.sampled_from(['json', 'csv', 'tsv', 'xsv']),
    st.lists(rows),
    st.sampled_from(['\n', '\r\n', '<eol>\n']),
    st.none() | st.integers(1, 300),
)
def test_shards_are_what_the_format_says(kind: str, samples: list[Any], newline: str, limit: int | None) -> None:
    done = encode(kind, samples, newline=newline, size_limit=limit)
    config = json.dumps(encoder_of(kind, newline=newline, size_limit=limit).get_config(), sort_keys=True).encode()
    header = b'' if kind == 'json' else slow_line(kind, {name: name for name in COLUMNS}, newline)
    rest = list(samples)
    infos = parse_index(dump_index([shard.info for shard in done]), source='index', allow_empty=True)
    for number, (info, shard) in enumerate(zip(infos, done, strict=True)):
        mine, rest = rest[: info.samples], rest[info.samples :]
        lines = [slow_line(kind, sample, newline) for sample in mine]
        offsets = [len(header) + sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
        assert shard.files == (
            (f'shard.{number:05}.{kind}', header + b''.join(lines)),
            (f'shard.{number:05}.{kind}.meta', struct.pack(f'<{len(offsets) + 1}I', len(mine), *offsets) + config),
        )
        if limit is not None:
            assert sum(map(len, lines)) <= limit or len(lines) == 1
        reader = open_shard(info, [memoryview(data) for _, data in shard.files], source='here')
        assert [reader.sample(i) for i in range(info.samples)] == mine
        batch = info.schema.allocate(len(mine))
        reader.gather(np.arange(len(mine)), np.arange(len(mine))[::-1].copy(), batch)
        assert batch.columns == {name: [sample[name] for sample in mine[::-1]] for name in COLUMNS}
        for i in (-1, info.samples):
            with pytest.raises(IndexError):
                reader.sample(i)
            with pytest.raises(IndexError):
                reader.gather(np.array([i]), np.array([0]), info.schema.allocate(1))
    assert not rest


@settings(max_examples=scaled(200))
@given(st.sampled_from(['json', 'csv', 'tsv', 'xsv']), st.lists(rows, min_size=1), st.data())
def test_damaged_shards_are_read_or_refused(kind: str, samples: list[Any], data: st.DataObject) -> None:
    (shard,) = encode(kind, samples, size_limit=None)
    files = [bytearray(content) for _, content in shard.files]
    file = data.draw(st.sampled_from(files))
    file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        reader = open_shard(shard.info, [memoryview(content) for content in files], source='here')
    except ShardError:
        return
    for i in range(len(samples)):
        try:
            sample = reader.sample(i)
        except ShardError as error:
            assert f'sample {i}' in str(error)  # noqa: PT017
        else:
            assert set(sample) == set(COLUMNS)


def test_a_wrong_table_or_header_is_refused() -> None:
    good = encode('csv', [{'n': i, 'x': 0.5, 'text': 'abc'} for i in range(3)])[0].files
    data, meta = good[0][1], good[1][1]
    for position, value, message in [
        (0, 4, 'the meta file counts 4'),
        (4, 8, 'lines go from byte 9'),
        (4 + 4 * 3, 5, 'to the end of the data file'),
        (8, 0, 'gives line 0 -9 bytes'),
        (8, 2**32 - 1, 'gives line 1'),
    ]:
        table = bytearray(meta)
        struct.pack_into('<I', table, position, value)
        with pytest.raises(ShardError, match=message):
            opened('csv', data, bytes(table))
    with pytest.raises(ShardError, match='needs 20 bytes'):
        opened('csv', data, meta[:19])
    with pytest.raises(ShardError, match='the first line of the data file is'):
        opened('csv', b'n,text,y\n' + data[9:])
    with pytest.raises(ShardError, match='does not end with the newline'):
        opened('csv', data[:-1] + b'x').sample(2)


@pytest.mark.parametrize('kind', ['json', 'csv', 'tsv', 'xsv'])
def test_config_of_a_writer(kind: str) -> None:
    config = encoder_of(kind, compression='gz', hashes=['md5'], size_limit='1kb', newline='\r\n').get_config()
    wanted = {
        'version': 2,
        'format': kind,
        'compression': 'gz',
        'hashes': ['md5'],
        'size_limit': 1024,
        'newline': '\r\n',
    }
    if kind == 'json':
        wanted['columns'] = COLUMNS
    else:
        wanted |= {'column_names': ['n', 'text', 'x'], 'column_encodings': ['int', 'str', 'float']}
    if kind == 'xsv':
        wanted['separator'] = '||'
    assert config == wanted
    encoder = encoder_of(kind)
    encoder.add({'n': 1, 'text': 'a', 'x': 0.5})
    (shard,) = encoder.finish()
    assert [name for name, _ in shard.files] == [f'shard.00000.{kind}', f'shard.00000.{kind}.meta']


def test_wrong_values_are_refused() -> None:
    for text in ('a,b', 'a\nb'):
        with pytest.raises(ValueError, match='nothing is quoted'):
            XSVEncoder({'t': 'str'}, shard_format='csv').add({'t': text})
        with pytest.raises(ValueError, match='nothing is quoted'):
            XSVEncoder({text: 'str'}, shard_format='csv')
    XSVEncoder({'t': 'str'}, shard_format='tsv').add({'t': 'a,b'})
    for make in (lambda e: JSONEncoder({'t': e}), lambda e: XSVEncoder({'t': e}, shard_format='csv')):
        with pytest.raises(ConfigError, match='unsupported encoding `bytes`'):
            make('bytes')
        for encoding, obj in (('int', '1'), ('int', 1.0), ('float', 1), ('str', 3), ('str', None)):
            with pytest.raises(AttributeError, match=f'encoding `{encoding}`'):
                make(encoding).add({'t': obj})
        with pytest.raises(KeyError, match='lacks'):
            make('int').add({'u': 1})
    for options in ({'separator': ''}, {'separator': None}, {'separator': '|', 'newline': ''}):
        with pytest.raises(ConfigError, match='at least one character'):
            XSVEncoder({'t': 'str'}, **options)
    with pytest.raises(ConfigError, match='at least one character'):
        JSONEncoder({'t': 'str'}, newline='')
    with pytest.raises(ConfigError, match='csv, tsv, xsv'):
        XSVEncoder({'t': 'str'}, shard_format='psv')


def test_bools_in_int_columns() -> None:
    (shard,) = encode('csv', [{'n': True, 'x': 0.5, 'text': ''}])
    reader = open_shard(shard.info, [memoryview(data) for _, data in shard.files], source='here')
    assert reader.sample(0)['n'] == 1
    (shard,) = encode('json', [{'n': True, 'x': 0.5, 'text': ''}])
    reader = open_shard(shard.info, [memoryview(data) for _, data in shard.files], source='here')
    assert reader.sample(0)['n'] is True
