"""Shards of an index: keys, values and file names, accepted and refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import FormatError
from tests.support.formats.both_ways import way_of_parsing  # noqa: F401
from tests.support.formats.index_entries import csv_entry, index, mds_entry, parse


def test_what_is_in_an_entry() -> None:
    (shard,) = parse(index(mds_entry()))
    assert (shard.format, shard.samples, shard.compression, shard.size_limit) == ('mds', 10, 'zstd:7', 67108864)
    assert shard.hashes == ('sha1',)
    (file,) = shard.files
    assert (file.raw.basename, file.raw.bytes, dict(file.raw.hashes)) == ('shard.00000.mds', 500, {'sha1': 'aa'})
    assert file.zip is not None
    assert file.zip.basename == 'shard.00000.mds.zstd'
    assert shard.schema.columns == {'id': 'int', 'text': 'str'}
    assert shard.schema.sizes == (8, None)
    (shard,) = parse(index(csv_entry()))
    assert [file.raw.basename for file in shard.files] == ['shard.00000.csv', 'shard.00000.csv.meta']
    assert (shard.schema.separator, shard.schema.newline) == (',', '\n')


@pytest.mark.parametrize('key', sorted(mds_entry()))
def test_every_key_of_a_shard_is_required(key: str) -> None:
    entry = mds_entry(1)
    del entry[key]
    with pytest.raises(FormatError, match='Shard 1 of the index there/index.json'):
        parse(index(mds_entry(0), entry))


@pytest.mark.parametrize('make', [mds_entry, csv_entry])
def test_unknown_keys_are_refused(make: Any) -> None:
    with pytest.raises(FormatError, match="has the unknown 'surprise'"):
        parse(index(make() | {'surprise': 1}))
    with pytest.raises(FormatError, match="has the unknown 'url'"):
        parse(index(make() | {'raw_data': make()['raw_data'] | {'url': 'x'}}))


WRONG = [
    {'samples': -1},
    {'samples': 10**13},
    {'samples': 2**62},
    {'samples': 10.0},
    {'samples': '10'},
    {'samples': None},
    {'samples': True},
    {'samples': 50},
    {'column_names': ['id']},
    {'column_names': ['id', 'id']},
    {'column_names': 'ab'},
    {'column_names': {'id': 1, 'text': 2}},
    {'column_names': ['id', 3]},
    {'column_names': ['id', ['x']]},
    {'column_names': None},
    {'column_encodings': ['int', 'nosuch']},
    {'column_encodings': ['int', 'ndarray:uint8:' + '9' * 50]},
    {'column_encodings': ['int', 5]},
    {'column_encodings': 'xy'},
    {'column_encodings': None},
    {'column_sizes': [4, None]},
    {'column_sizes': [None, None]},
    {'column_sizes': [8, 8]},
    {'column_sizes': [8]},
    {'column_sizes': [8, None, None]},
    {'column_sizes': ['8', None]},
    {'column_sizes': [True, None]},
    {'column_sizes': None},
    {'column_sizes': [8.5, None]},
    {'compression': 'lz4'},
    {'compression': 'zstd:99'},
    {'compression': 'zstd:' + '9' * 5000},
    {'compression': ''},
    {'compression': 3},
    {'compression': ['zstd']},
    {'compression': None},
    {'hashes': 'sha1'},
    {'hashes': None},
    {'hashes': [3]},
    {'hashes': {}},
    {'size_limit': -1},
    {'size_limit': 'lots'},
    {'size_limit': 1.5},
    {'size_limit': []},
    {'size_limit': True},
    {'format': 'json'},
    {'format': 'parquet'},
    {'format': None},
    {'format': ['mds']},
    {'raw_data': None},
    {'raw_data': []},
    {'raw_data': {}},
    {'zip_data': 'x'},
    {'zip_data': {}},
]


@pytest.mark.parametrize('change', WRONG, ids=str)
def test_wrong_values_are_refused(change: dict[str, Any]) -> None:
    for entries in ([mds_entry() | change], [mds_entry(1), mds_entry() | change]):
        with pytest.raises(FormatError, match=f'Shard {len(entries) - 1} of the index'):
            parse(index(*entries))


WRONG_FILES = [
    {'basename': name}
    for name in (
        '',
        '.',
        '..',
        '/etc/passwd',
        '../x',
        'a/../../x',
        'a/..',
        'a/./b',
        './a',
        'a//b',
        'a/',
        'a\\b',
        '..\\x',
        'a\0b',
        'index.json',
        'a/index.json',
        'INDEX.JSON',
        'a/Index.json',
        'index.j\u017fon',
        '.headrace-remote',
        '.headrace',
        '.headrace/ledger',
        '.HEADRACE/ledger',
        'a/.Headrace-Index',
        '.headrace-epochs/x/shard.mds',
        '.head\u200crace-remote',
        '\ud800',
        7,
        None,
        ['a'],
    )
] + [
    {'bytes': size} for size in (-1, '500', None, 500.0, True, 10, 2**32, 2**70)
] + [
    {'hashes': hashes} for hashes in (None, [], 'sha1', 0, {'sha1': 3}, {'sha1': None})
]  # fmt: skip


@pytest.mark.parametrize('change', WRONG_FILES, ids=repr)
def test_wrong_files_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match='Shard 0 of the index'):
        parse(index(mds_entry() | {'raw_data': mds_entry()['raw_data'] | change}))
    if change not in ({'bytes': 10}, {'bytes': 2**32}):
        with pytest.raises(FormatError, match='Shard 0 of the index'):
            parse(index(mds_entry() | {'zip_data': mds_entry()['zip_data'] | change}))


@pytest.mark.parametrize(
    'name',
    [
        'sub/shard.mds',
        'a/b/c-d.mds',
        '.hidden',
        'ünïcode.mds',
        'a b',
        '...',
        'x..y',
        '-',
        'headrace',
        'x.headrace',
        'my-index.json',
        'ü-Index.json',
        'üindex.json',
    ],
)
def test_odd_names_are_allowed(name: str) -> None:
    entry = mds_entry() | {'raw_data': mds_entry()['raw_data'] | {'basename': name}}
    assert parse(index(entry))[0].files[0].raw.basename == name


def test_no_file_is_named_twice() -> None:
    with pytest.raises(FormatError, match="'shard.00000.mds' is used twice"):
        parse(index(mds_entry(), mds_entry()))
    entry = mds_entry() | {'zip_data': mds_entry()['raw_data']}
    with pytest.raises(FormatError, match='is used twice'):
        parse(index(entry))
