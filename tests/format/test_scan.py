"""The JSON of an index: any layout is read, and what is no JSON object is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import FormatError, IndexFileError
from tests.support.formats.both_ways import way_of_parsing  # noqa: F401
from tests.support.formats.index_entries import index, mds_entry, parse


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
