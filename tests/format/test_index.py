"""index.json: what is accepted, what is refused, and that it is written again as it was."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import EmptyDatasetError, FormatError, HeadraceError, IndexFileError
from headrace.format import IndexFile, JSONEncoder, MDSEncoder, XSVEncoder, dump_index
from headrace.format.index import before_erasure
from tests.support.formats.both_ways import way_of_parsing  # noqa: F401
from tests.support.formats.index_entries import csv_entry, index, mds_entry, parse
from tests.support.suite.example_counts import scaled


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


@pytest.mark.parametrize('version_first', [False, True])
def test_meanings_of_columns_are_kept(version_first: bool) -> None:
    encoder = MDSEncoder({'t': 'int64', 'x': 'int64'}, size_limit=150)
    shards = [shard.info for n in range(9) for shard in encoder.add({'t': n, 'x': n})]
    plain = dump_index(shards, version_first=version_first)
    assert b'meanings' not in plain
    named = [replace(shard, schema=replace(shard.schema, meanings=('timestamp[us]', ''))) for shard in shards]
    data = dump_index([shards[0], *named[1:]], version_first=version_first)
    assert data == b'{"meanings": {"t": "timestamp[us]"}, ' + plain[1:]
    found = parse(data)
    assert found == named  # of all shards of the index
    assert found != parse(plain) == shards
    assert [schema.meaning_of for schema in found.schemas] == [{'t': 'timestamp[us]'}]
    behind = plain[:-1] + b', "meanings": {"t": "timestamp[us]", "other": "bool"}}'
    assert parse(behind) == named


@pytest.mark.parametrize('meanings', [None, [], 'x', {'a': 1}, {'a': None}, {'a': 'bell \x07'}, {'a': '\ud800'}])
def test_meanings_are_printable_texts_by_column(meanings: Any) -> None:
    with pytest.raises(FormatError, match='`meanings` of an index are texts by column'):
        parse(json.dumps({'meanings': meanings, **json.loads(index(mds_entry()))}).encode())


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


def test_deep_nesting_and_long_numbers_are_refused() -> None:
    for extra in ('[' * 100_000, '{"a":' * 100_000):
        with pytest.raises(FormatError, match='nested too deeply'):
            parse(b'{"x": ' + extra.encode())
    with pytest.raises(FormatError):
        parse(b'{"version": ' + b'9' * 10_000 + b'}')


def test_of_an_index_that_was_read_only_the_table_stays_in_memory(tmp_path: Path) -> None:
    data = index(*map(mds_entry, range(2_000)))
    assert before_erasure(data) is data  # a copy would be the peak
    (tmp_path / 'index.json').write_bytes(data)
    file = IndexFile('there', allow_unsafe_types=False)
    tracemalloc.start()
    try:
        file.read(tmp_path / 'index.json')
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(file.shards) == 2_000
    assert after < 0.7 * len(data)
