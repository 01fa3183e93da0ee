"""Records of lines: their ends, and lines that are no rows."""

from __future__ import annotations

import json

import pytest

from headrace.errors import FormatError
from headrace.sources.lines import CSV, JSONL
from tests.support.sources.line_files import jsonl, table
from tests.support.sources.source_cases import index, rows


def test_ends_of_lines():
    data = b'\xef\xbb\xbf' + jsonl([{'a': 1}, {'a': 2}], '\r\n') + b'\n  \n' + b'{"a": 3}'
    assert rows(index(JSONL, {'a.jsonl': data}), {'a.jsonl': data}) == [{'a': n} for n in (1, 2, 3)]
    data = b'\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,"4"'
    assert rows(index(CSV, {'a.csv': data}), {'a.csv': data}) == [{'a': 1, 'b': 2}, {'a': 3, 'b': 4}]


def test_objects_without_keys_are_no_rows():
    with pytest.raises(FormatError, match=r'all rows of .* are empty, such as the first one of b.jsonl'):
        index(JSONL, {'a.jsonl': b'', 'b.jsonl': b'{}\n{}\n'})
    assert index(JSONL, {'a.jsonl': b'{}\n{"x": 1}\n'}).columns == {'x': 'json'}


@pytest.mark.parametrize(
    ('values', 'encoding'),
    [
        ([1, -(1 << 63), (1 << 63) - 1], 'int'),
        ([1, 1 << 63], 'json'),
        ([1, 2.5], 'float64'),
        ([1 << 60, 2.5], 'json'),
        ([True, False], 'uint8'),
        ([True, 1], 'json'),
        (['a', 'b'], 'str'),
        (['a', '\ud800'], 'json'),
        (['a', None], 'json'),
        (['a', 1], 'json'),
        ([[1], [2]], 'json'),
    ],
)
def test_types_of_json(values, encoding):
    objects = {'a.jsonl': ''.join(json.dumps({'x': value}) + '\n' for value in values).encode()}
    source = index(JSONL, objects)
    assert dict(source.columns) == {'x': encoding}
    assert [row['x'] for row in rows(source, objects)] == values


@pytest.mark.parametrize(
    ('texts', 'encoding', 'values'),
    [
        (['1', '-9223372036854775808'], 'int', [1, -(1 << 63)]),
        (['1', '9223372036854775808'], 'str', None),
        (['5', '12345678901234567890'], 'str', None),
        (['+12345678901234567', '+1'], 'str', None),
        (['+5', '2.0'], 'float64', [5, 2]),
        (['1e999', '1.5'], 'str', None),
        (['007', '1'], 'str', None),
        (['1', '2.5', '1e-3', '.5', '-0.25'], 'float64', [1, 2.5, 1e-3, 0.5, -0.25]),
        (['1', '00.5'], 'str', None),
        (['9007199254740993', '2.5'], 'str', None),
        (['-0', '1'], 'str', None),
        (['1', 'nan'], 'str', None),
        (['1', ''], 'str', None),
        (['1_0', '٣'], 'str', None),
        (['True', 'False'], 'str', None),
    ],
)
def test_types_of_csv(texts, encoding, values):
    objects = {'a.csv': table(['x', 'y'], [[text, 'y'] for text in texts])}
    source = index(CSV, objects)
    assert source.columns['x'] == encoding
    assert [row['x'] for row in rows(source, objects)] == (values or texts)


@pytest.mark.parametrize('field', ['7' * 2_000_000, '1.' + '0' * 2_000_000, '-' + '9' * 299, '3' * 299 + 'e7'])
def test_a_long_row_of_digits_is_text(field):
    # Read as a number, 200,000 digits took five seconds, and ten times as many a hundred times as long.
    objects = {'a.csv': f'id,long\n1,{field}\n2,5\n'.encode()}
    source = index(CSV, objects)
    assert dict(source.columns) == {'id': 'int', 'long': 'str'}
    assert rows(source, objects) == [{'id': 1, 'long': field}, {'id': 2, 'long': '5'}]
