"""index.json: what is accepted, what is refused, and that it is written again as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import scaled
from headrace.errors import EmptyDatasetError, FormatError, HeadraceError, IndexFileError
from headrace.format import JSONEncoder, MDSEncoder, XSVEncoder, dump_index, parse_index
from headrace.format import index as index_module


@pytest.fixture(autouse=True, scope='module', params=[math.inf, 0], ids=['one by one', 'fast path'])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to read an index follow the same rules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, 'LARGE', request.param)
        yield


def mds_entry(number: int = 0) -> dict[str, Any]:
    name = f'shard.{number:05}.mds'
    return {
        'column_encodings': ['int', 'str'],
        'column_names': ['id', 'text'],
        'column_sizes': [8, None],
        'compression': 'zstd:7',
        'format': 'mds',
        'hashes': ['sha1'],
        'raw_data': {'basename': name, 'bytes': 500, 'hashes': {'sha1': 'aa'}},
        'samples': 10,
        'size_limit': 67108864,
        'version': 2,
        'zip_data': {'basename': name + '.zstd', 'bytes': 30, 'hashes': {}},
    }


def csv_entry(number: int = 0) -> dict[str, Any]:
    name = f'shard.{number:05}.csv'
    return {
        'column_encodings': ['int', 'str'],
        'column_names': ['id', 'text'],
        'compression': None,
        'format': 'csv',
        'hashes': [],
        'newline': '\n',
        'raw_data': {'basename': name, 'bytes': 500, 'hashes': {}},
        'raw_meta': {'basename': name + '.meta', 'bytes': 500, 'hashes': {}},
        'samples': 10,
        'size_limit': None,
        'version': 2,
        'zip_data': None,
        'zip_meta': None,
    }


def index(*entries: Any, **extra: Any) -> bytes:
    return json.dumps({'shards': list(entries), 'version': 2, **extra}).encode()


def parse(data: bytes, **options: Any) -> Any:
    return parse_index(data, source='there/index.json', **options)


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


def test_shards_with_the_same_columns_share_their_schema() -> None:
    first, second, third, fourth = parse(index(mds_entry(0), mds_entry(1), csv_entry(2), mds_entry(3)))
    assert first.schema is second.schema is fourth.schema
    assert third.schema is not first.schema


def test_shards_travel_to_other_processes_and_still_share_their_schema() -> None:
    shards = parse(index(mds_entry(0), mds_entry(1)))
    copies = pickle.loads(pickle.dumps(shards))
    assert copies == shards
    assert copies[0].schema is copies[1].schema


@pytest.mark.parametrize('space', [None, 1, '\t'])
@pytest.mark.parametrize('keys', [['shards', 'version'], ['version', 'shards'], ['x', 'shards', 'y', 'version', 'z']])
def test_any_json_layout_is_read(space: Any, keys: list[str]) -> None:
    value = {'shards': [mds_entry(0), mds_entry(1)], 'version': 2, 'x': [1, {'a': ']'}], 'y': None, 'z': 'shards'}
    text = json.dumps({key: value[key] for key in keys}, indent=space)
    assert parse(f' \n{text}\r\n '.encode()) == parse(index(mds_entry(0), mds_entry(1)))


NOT_JSON = [
    b'',
    b'  \n',
    b'{',
    b'{"shards"',
    b'{"shards": ',
    b'{"shards": [',
    b'{"shards": [}',
    b'{"shards": [] "version": 2}',
    b'{"shards": [],}',
    b'{"shards": [], "version": 2',
    b'{"shards": [], "version": 2} x',
    b'{"version": 2, }',
    b'{version: 2}',
    b'{2: 2}',
    b'{} {}',
    b'nul',
    b'\xef\xbb\xbf{}',
    b'\xff',
    b'<html>',
]


@pytest.mark.parametrize('data', NOT_JSON)
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(json.JSONDecodeError, match='Index file at there/index.json is empty or corrupted'):
        parse(data)


@pytest.mark.parametrize('cut', range(0, 900, 7))
def test_a_truncated_index_is_not_json(cut: int) -> None:
    data = index(mds_entry(0), mds_entry(1))
    with pytest.raises(IndexFileError):
        parse(data[: min(cut, len(data) - 1)])


@pytest.mark.parametrize('data', [b'[]', b'null', b'3', b'"x"', b'{}', b'{"shards": []}', b'{"version": 2}'])
def test_json_that_is_no_index(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        parse(data)
    assert not isinstance(caught.value, IndexFileError)


@pytest.mark.parametrize('version', [1, 3, '2', None, True, 2.5, [2]])
def test_other_versions_are_refused(version: Any) -> None:
    with pytest.raises(FormatError, match='version 2'):
        parse(json.dumps({'shards': [mds_entry()], 'version': version}).encode())
    with pytest.raises(FormatError, match='`version` is 2'):
        parse(index(mds_entry() | {'version': version}))


def test_an_index_without_samples() -> None:
    empty = mds_entry() | {'samples': 0}
    for data in (index(), index(empty)):
        with pytest.raises(EmptyDatasetError, match='Stream contains no samples: there/index.json'):
            parse(data)
        assert parse(data, allow_empty=True)[:1] == parse(data, allow_empty=True)
    assert [shard.samples for shard in parse(index(empty, mds_entry(1)))] == [0, 10]


def test_pickles_are_refused_unless_they_are_allowed() -> None:
    unsafe = mds_entry() | {'column_encodings': ['int', 'pkl']}
    with pytest.raises(ValueError, match=r'contains an unsafe type.*allow_unsafe_types=True'):
        parse(index(unsafe))
    assert len(parse(index(unsafe), allow_unsafe_types=True)) == 1


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


def test_deep_nesting_and_long_numbers_are_refused() -> None:
    for extra in ('[' * 100_000, '{"a":' * 100_000):
        with pytest.raises(FormatError, match='nested too deeply'):
            parse(b'{"x": ' + extra.encode())
    with pytest.raises(FormatError):
        parse(b'{"version": ' + b'9' * 10_000 + b'}')


def test_garbage_collection_is_left_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            parse(index(mds_entry()))
            with pytest.raises(FormatError):
                parse(b'[]')
            assert gc.isenabled() == enabled
        finally:
            gc.enable()


def test_an_index_is_dumped_as_it_was() -> None:
    encoders = [
        MDSEncoder({'b': 'int', 'a': 'str'}, compression='gz', hashes=['md5', 'sha1']),
        JSONEncoder({'b': 'int', 'a': 'str'}, newline='\r\n', size_limit=None),
        XSVEncoder({'b': 'int', 'a': 'str'}, separator=';;', compression='bz2:1'),
        XSVEncoder({'b': 'int', 'a': 'str'}, shard_format='csv'),
        XSVEncoder({'b': 'int', 'a': 'str'}, shard_format='tsv'),
    ]
    shards = [shard.info for e in encoders for shard in [*e.add({'a': 'x', 'b': 1}), *e.finish()]]
    data = dump_index(shards)
    assert json.loads(data) == {'version': 2, 'shards': [shard.entry() for shard in shards]}
    assert data == json.dumps(json.loads(data), sort_keys=True).encode()
    assert parse(data) == shards
    assert dump_index(shards, version_first=True).startswith(b'{"version": 2, "shards": [{"column')
    assert parse(dump_index(shards, version_first=True)) == shards


def test_moving_a_shard_below_a_folder() -> None:
    (shard,) = parse(index(csv_entry()))
    moved = shard.moved('a/b')
    assert [file.raw.basename for file in moved.files] == ['a/b/shard.00000.csv', 'a/b/shard.00000.csv.meta']
    assert parse(dump_index([moved])) == [moved]
    (shard,) = parse(index(mds_entry()))
    assert shard.moved('a').files[0].zip.basename == 'a/shard.00000.mds.zstd'


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(['', '.', 'mds', 'int', '\ud800', 'x'])
)
values = st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))


@settings(max_examples=scaled(300))
@given(st.data())
def test_a_changed_index_is_read_or_refused(data: st.DataObject) -> None:
    entry = copy.deepcopy(data.draw(st.sampled_from([mds_entry(), csv_entry()])))
    target: Any = entry
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        if not isinstance(target[key], dict | list) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    target[key] = data.draw(values)
    try:
        shards = parse(index(mds_entry(7), entry))
    except HeadraceError:
        return
    assert sum(shard.samples for shard in shards) <= 1000


@settings(max_examples=scaled(200))
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_damaged_index_is_read_or_refused(at: int, damage: bytes) -> None:
    data = bytearray(index(mds_entry(), csv_entry(1)))
    at %= len(data)
    data[at : at + len(damage)] = damage
    with contextlib.suppress(HeadraceError):
        parse(bytes(data))
