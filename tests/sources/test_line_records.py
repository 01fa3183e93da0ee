"""Records of lines: their ends, and lines that are no rows."""

from __future__ import annotations

import pytest
from line_files import jsonl
from source_cases import index, rows

from headrace.errors import FormatError
from headrace.sources.lines import CSV, JSONL


def test_ends_of_lines():
    data = b'\xef\xbb\xbf' + jsonl([{'a': 1}, {'a': 2}], '\r\n') + b'\n  \n' + b'{"a": 3}'
    assert rows(index(JSONL, {'a.jsonl': data}), {'a.jsonl': data}) == [{'a': n} for n in (1, 2, 3)]
    data = b'\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,"4"'
    assert rows(index(CSV, {'a.csv': data}), {'a.csv': data}) == [{'a': 1, 'b': 2}, {'a': 3, 'b': 4}]


def test_objects_without_keys_are_no_rows():
    with pytest.raises(FormatError, match=r'all rows of .* are empty, such as the first one of b.jsonl'):
        index(JSONL, {'a.jsonl': b'', 'b.jsonl': b'{}\n{}\n'})
    assert index(JSONL, {'a.jsonl': b'{}\n{"x": 1}\n'}).columns == {'x': 'json'}
