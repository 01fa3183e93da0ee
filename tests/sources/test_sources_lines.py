"""JSONL, CSV and TSV, as Python's json and csv write them, read value by value."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import StreamingDataset
from headrace.errors import FormatError, HeadraceError, ShardError, StreamError
from headrace.sources.line_records import read_array
from headrace.sources.lines import CSV, JSONL, TSV
from headrace.sources.source_bytes import dump_index
from tests.support.sources.line_files import jsonl, table
from tests.support.sources.source_cases import MemoryStore, index, part_bytes, rows
from tests.support.suite.example_counts import scaled

COMPRESSIONS = {
    '': lambda data: data,
    '.gz': gzip.compress,
    '.zst': zstandard.ZstdCompressor().compress,
    '.bz2': bz2.compress,
}


SAMPLES: list[dict[str, Any]] = [
    {'id': n, 'text': f'"ä"\n{n}', 'score': n / 3, 'good': n % 2 == 0, 'meta': {'n': [n, None]}, 'maybe': None}
    for n in range(100)
]


@pytest.mark.parametrize('ending', COMPRESSIONS)
def test_jsonl(ending):
    compress = COMPRESSIONS[ending]
    objects = {f'{n}.jsonl{ending}': compress(jsonl(SAMPLES[50 * n : 50 * n + 50])) for n in range(2)}
    source = index(JSONL, objects)
    assert dict(source.columns) == {
        'id': 'int',
        'text': 'str',
        'score': 'float64',
        'good': 'uint8',
        'meta': 'json',
        'maybe': 'json',
    }
    assert [part.ranges == () for part in source.parts] == [ending != ''] * 2
    assert rows(source, objects) == SAMPLES


@pytest.mark.parametrize('ending', COMPRESSIONS)
@pytest.mark.parametrize(('kind', 'separator'), [(CSV, ','), (TSV, '\t')])
def test_csv_and_tsv(kind, separator, ending):
    lines = [[str(n), f'a{separator}"b"\r\n{n}', f'{n / 4}', f'0{n}', '' if n == 3 else '5'] for n in range(60)]
    data = table(['id', 'text', 'score', 'code', 'gap'], lines, delimiter=separator)
    objects = {f'a.{kind.NAME}{ending}': COMPRESSIONS[ending](data)}
    source = index(kind, objects)
    assert dict(source.columns) == {'id': 'int', 'text': 'str', 'score': 'float64', 'code': 'str', 'gap': 'str'}
    expected = [[int(line[0]), line[1], float(line[2]), *line[3:]] for line in lines]
    assert [list(row.values()) for row in rows(source, objects)] == expected


def test_names_of_files():
    names = ['a.jsonl', 'b/c.NDJSON', 'c4.json.gz', 'state.json', 'a.csv', 'b.tsv.zst', '.a.jsonl', '_b/x.csv', 'x.tab']
    store = MemoryStore(dict.fromkeys(names, b''))
    found = {kind.NAME: [info.key for info in kind.find(list(store.list('')))] for kind in (JSONL, CSV, TSV)}
    assert found == {'jsonl': ['a.jsonl', 'b/c.NDJSON', 'c4.json.gz'], 'csv': ['a.csv'], 'tsv': ['b.tsv.zst', 'x.tab']}


@pytest.mark.parametrize('ending', COMPRESSIONS)
def test_an_array_of_objects(ending):
    texts = [json.dumps(SAMPLES[:50], indent=2), '\ufeff' + json.dumps(SAMPLES[50:], ensure_ascii=False)]
    objects = {f'{n}.json{ending}': COMPRESSIONS[ending](text.encode()) for n, text in enumerate(texts)}
    objects[f'2.json{ending}'] = COMPRESSIONS[ending](jsonl(SAMPLES[:3]))
    objects[f'3.json{ending}'] = COMPRESSIONS[ending](b' [ ] ')
    source = index(JSONL, objects)
    assert rows(source, objects) == SAMPLES + SAMPLES[:3]
    assert rows(source, objects) == rows(JSONL.load(source.to_bytes()), objects)


def test_an_array_is_read_in_parts(monkeypatch):
    monkeypatch.setattr('headrace.sources.ranges._PART', 100)
    values = [{'n': n, 'text': 'ä' * (n % 60)} for n in range(40)]
    objects = {'a.json': json.dumps(values, ensure_ascii=False).encode()}
    source = index(JSONL, objects)
    assert len(source.parts) > 10
    assert rows(source, objects) == values
    spans = [objects['a.json'][at : at + size] for part in source.parts for at, size in part.ranges]
    assert [value for span in spans for value in json.loads(b'[' + span + b']')] == values


def test_keys_that_some_objects_lack():
    objects = {'a.jsonl': jsonl([{'a': 1, 'b': 'x'}, {'a': 2}, {'c': 1.5, 'a': 3}])}
    source = index(JSONL, objects)
    assert dict(source.columns) == {'a': 'int', 'b': 'json', 'c': 'json'}
    assert rows(source, objects) == [
        {'a': 1, 'b': 'x', 'c': None},
        {'a': 2, 'b': None, 'c': None},
        {'a': 3, 'b': None, 'c': 1.5},
    ]


@pytest.mark.parametrize('kind', [JSONL, CSV])
def test_parts_are_runs_of_32_mib(kind):
    texts = [f'{n} "quoted",\n' + 'x' * (5 << 20) for n in range(8)]
    objects = {
        'a.jsonl': jsonl([{'text': text} for text in texts]),
        'a.csv': table(['text'], [[text] for text in texts]),
    }
    source = index(kind, {f'a.{kind.NAME}': objects[f'a.{kind.NAME}']})
    assert [part.rows for part in source.parts] == [6, 2]
    found = [batch['text'] for n in range(2) for batch in source.batches(n, part_bytes(source, n, objects))]
    assert [text for batch in found for text in batch] == texts


def test_files_of_csv_may_order_their_columns_as_they_like():
    objects = {'a.csv': b'a,b\n1,x\n', 'b.csv': b'b,a\ny,2\n', 'c.csv': b'a,b\n'}
    assert rows(index(CSV, objects), objects) == [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]
    objects['b.csv'] = b'b,a\ny,2.5\n'
    assert rows(index(CSV, objects), objects) == [{'a': 1.0, 'b': 'x'}, {'a': 2.5, 'b': 'y'}]
    objects['b.csv'] = b'b,a\ny,z\n'
    assert rows(index(CSV, objects), objects) == [{'a': '1', 'b': 'x'}, {'a': 'z', 'b': 'y'}]
    with pytest.raises(FormatError, match='same columns'):
        index(CSV, {**objects, 'b.csv': b'b,c\n1,2\n'})


@pytest.mark.parametrize('ending', ['', '.gz'])
@pytest.mark.parametrize(
    ('data', 'options', 'expected'),
    [
        ('a;b\n1;"x;y"\n', {'delimiter': ';'}, [{'a': 1, 'b': 'x;y'}]),
        ('a,b\tc\n1,x\t2\n', {'delimiter': '\\t'}, [{'a,b': '1,x', 'c': 2}]),
        ("a,b\n1,'x,''y'\n", {'quoting': "'"}, [{'a': 1, 'b': "x,'y"}]),
        ('a,b\n1,"x\n2,y"\n', {'quoting': 'none'}, [{'a': 1, 'b': '"x'}, {'a': 2, 'b': 'y"'}]),
        ('1,x\n2,y\n', {'header': False}, [{'0': 1, '1': 'x'}, {'0': 2, '1': 'y'}]),
        ('0,1\n5,6\n0,1\n', {'header': False}, [{'0': 0, '1': 1}, {'0': 5, '1': 6}, {'0': 0, '1': 1}]),
        ('1,x\n2,y\n', {'header': ['n', 'text']}, [{'n': 1, 'text': 'x'}, {'n': 2, 'text': 'y'}]),
        ('1|x\n', {'header': ['n', 't'], 'delimiter': '|', 'quoting': '"'}, [{'n': 1, 't': 'x'}]),
        ('a;b\n1\n', {'delimiter': ','}, [{'a;b': 1}]),
        ('a,b\n1,x\n', {'header': True, 'delimiter': None}, [{'a': 1, 'b': 'x'}]),
    ],
)
def test_options_of_csv(data, options, expected, ending):
    objects = {f'a.csv{ending}': COMPRESSIONS[ending](data.encode())}
    assert rows(index(CSV, objects, **options), objects) == expected


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'delimiter': ';;'}, "`delimiter` of csv is one character, .* but is ';;'"),
        ({'delimiter': 7}, 'but is 7'),
        ({'delimiter': '"'}, '`delimiter` of csv is one character'),
        ({'quoting': 'all'}, "`quoting` of csv is the character around fields, or 'none', but is 'all'"),
        ({'quoting': ','}, "but is ','"),
        ({'header': 'no'}, "`header` of csv is true, false, or the list .* but is 'no'"),
        ({'header': 0}, 'but is 0'),
        ({'header': ['a', 'a']}, 'different names'),
        ({'header': ['a', 1]}, 'different names'),
        ({'header': []}, 'different names'),
    ],
)
def test_values_of_options_are_checked(options, message):
    with pytest.raises(StreamError, match=message):
        index(CSV, {'a.csv': b'a,b\n1,2\n'}, **options)


def test_names_that_do_not_fit_the_rows_are_refused():
    with pytest.raises(FormatError, match='has the 3 fields .* that at byte 0 of a.csv has 2'):
        index(CSV, {'a.csv': b'1,2\n'}, header=['a', 'b', 'c'])
    with pytest.raises(FormatError, match='row at byte 0 of a.csv does so again.* needs no `header`'):
        index(CSV, {'a.csv': b'a,b\n1,2\n'}, header=['a', 'b'])
    with pytest.raises(FormatError, match='the same columns'):
        index(CSV, {'a.csv': b'1,2\n', 'b.csv': b'1,2,3\n'}, header=False)


def test_the_index_of_an_older_version_is_read():
    objects = {'a.csv': b'a,b\n1,x\n', 'a.jsonl': b'{"a": 1}\n'}
    for kind, name in ((CSV, 'a.csv'), (JSONL, 'a.jsonl')):
        source = index(kind, {name: objects[name]})
        headers = [['a', 'b']] if kind is CSV else []
        old = dump_index(kind.NAME, source.columns, source.parts, {'headers': headers, 'header_of': {}})
        assert rows(kind.load(old), objects) == rows(source, objects)


def test_columns_are_chosen():
    objects = {'a.jsonl': jsonl(SAMPLES)}
    assert rows(index(JSONL, objects, columns=['id']), objects) == [{'id': n} for n in range(100)]
    with pytest.raises(StreamError, match="asks for 'x'"):
        index(JSONL, objects, columns=['x'])


@pytest.mark.parametrize(
    ('name', 'data', 'message'),
    [
        ('a.jsonl', b'{"a": 1}\n{"a": \n', r'Line 2 \(byte 9\) of a.jsonl is not JSON'),
        ('a.jsonl', b'{"a": 1}\n[1]\n', 'line 2 .* is a list'),
        ('a.jsonl', b'{"a":\n1}\n', 'is not JSON: .*Write each object in one line, such as with `jq -c`'),
        ('a.json', b'[1]\n', "An array of JSON holds objects, .* byte 1 of a.json has '1'"),
        ('a.json', b'[{"a": 1} {"a": 2}]', "byte 10 of a.json has '{'"),
        ('a.json', b'[{"a": 1},]', "byte 10 of a.json has ']'"),
        ('a.json', b'[{"a": 1}] {"a": 2}', "byte 11 of a.json has '{'"),
        ('a.json', b'[{"a": 1},\n', r'ends with "\]", but a.json ends at byte 11'),
        ('a.json', b'[', r'ends with "\]", but a.json ends at byte 1'),
        ('a.json', b'[{"a": 1}, {"a": "x', 'The object at byte 11 of a.json is not JSON: Unterminated string'),
        ('a.json', b'[{"a": 1}, {"a": tru}]', 'The object at byte 11 of a.json is not JSON'),
        ('a.json', b'[{"a": ' + b'[' * 100_000, 'The object at byte 1 of a.json is not JSON: '),
        ('a.json', b'[{"a": "\xff"}]', 'is UTF-8, but byte 8 of a.json is 0xff'),
        ('a.json', b'[{"a": "' + 'ä'.encode()[:1], 'is UTF-8, but byte 8 of a.json is 0xc3: unexpected end'),
        ('a.csv', b'a;b\n1;2\n', r'one column only, .a;b.\. .*delimiter, such as format_options={"delimiter": ";"}'),
        ('a.tsv', b'a,b\n1,2\n', r'format_options={"delimiter": ","}'),
        ('a.jsonl', b'{"a": 1}\n{"a": "\xff"}\n', r'is UTF-8, but byte 16 of a.jsonl is 0xff: .* again in UTF-8'),
        ('a.jsonl', '{"a": 1}\n'.encode('utf-16'), r'a.jsonl is UTF-16 from byte 0 on. .* --from-code=UTF-16 '),
        ('a.jsonl.gz', gzip.compress('{"a": 1}\n'.encode('utf-32-be'), mtime=0), 'a.jsonl.gz is UTF-32BE from byte 0'),
        ('a.jsonl', b'{"a": ' + b'[' * 100_000 + b'\n', 'is not JSON'),
        ('a.jsonl', b'{"a": ' + b'1' * 5000 + b'}\n', 'is not JSON'),
        ('a.csv', b'a,b\n1,2\n3\n', 'has the 2 fields that the first row names.*byte 8 of a.csv has 1'),
        ('a.csv', b'a,a\n1,2\n', 'all different'),
        ('a.csv', b'a,b\n1,"2\n', 'is not a row of CSV'),
        ('a.csv', b'a,b\n1,"2"x\n', 'is not a row of CSV'),
        ('a.csv', b'a,b\n1,\xff\n', r'is UTF-8, but byte 6 of a.csv is 0xff'),
        ('a.csv', 'a,b\n1,2\n'.encode('utf-16'), 'a.csv is UTF-16 from byte 0'),
        ('a.csv', 'a,b\n1,2\n'.encode('utf-16-le'), 'a.csv is UTF-16LE from byte 0'),
        ('a.csv', b'a,b\n1,2\na,b\n3,4\n', 'the row at byte 8 of a.csv does so again, as in joined files'),
        ('a.jsonl.gz', gzip.compress(b'{"a": 1}\n', mtime=0)[:-4], 'not a complete gz file'),
        ('a.jsonl.zst', b'no zstd', 'Line 1 .byte 0. of a.jsonl.zst is not JSON'),
    ],
)
def test_damaged_files(name, data, message):
    kind = {'csv': CSV, 'tsv': TSV}.get(name.split('.')[1], JSONL)
    with pytest.raises(FormatError, match=message):
        index(kind, {name: data})


def test_marks_of_utf8_are_no_text():
    mark = b'\xef\xbb\xbf'
    objects = {'a.jsonl': (mark + b'{"a": 1}\n') * 2}
    assert rows(index(JSONL, objects), objects) == [{'a': 1}] * 2
    objects = {'a.csv': mark + b'a,b\n1,2\n'}
    assert rows(index(CSV, objects), objects) == [{'a': 1, 'b': 2}]


def test_many_keys_are_refused():
    with pytest.raises(FormatError, match='at most 10000 different keys'):
        index(JSONL, {'a.jsonl': jsonl([{f'k{n}': 1} for n in range(10_002)])})


def test_a_part_of_other_bytes_is_an_error():
    objects = {'a.jsonl': jsonl([{'a': n + 0.5} for n in range(10)])}
    source = index(JSONL, objects)
    with pytest.raises(ShardError, match='differs from what was indexed'):
        list(source.batches(0, memoryview(jsonl([{'a': 'x'}] * 10))))
    with pytest.raises(ShardError, match='has 9 rows, but the index says 10'):
        list(source.batches(0, memoryview(jsonl([{'a': 1}] * 9))))
    objects = {'a.csv': b'a,b\n1,2\n3,4\n'}
    source = index(CSV, objects)
    for other in (b'1,2\n3,4,5\n', b'1,x\n3,4\n', b'"1,2'):
        with pytest.raises(ShardError, match='differs from what was indexed'):
            list(source.batches(0, memoryview(other)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.sampled_from('abc'), json_values, min_size=1), min_size=1, max_size=6))
@settings(max_examples=scaled(100), deadline=None)
def test_any_objects(values):
    objects = {'a.jsonl': ''.join(json.dumps(value) + '\n' for value in values).encode()}
    keys = {key for value in values for key in value}
    assert rows(index(JSONL, objects), objects) == [{key: value.get(key) for key in keys} for value in values]


@given(
    st.lists(st.dictionaries(st.sampled_from('abc'), json_values, min_size=1), max_size=6),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.integers(1, 9),
)
@settings(max_examples=scaled(100), deadline=None)
def test_any_array(values, indent, escaped, size):
    data = json.dumps(values, indent=indent, ensure_ascii=escaped).encode()
    records = list(read_array((data[at : at + size] for at in range(0, len(data), size)), 'x'))
    assert [record.value for record in records] == values
    assert [json.loads(data[record.start : record.end]) for record in records] == values
    run = data[records[0].start : records[-1].end] if records else b''
    assert [record.value for record in read_array([run], 'x')] == values


fields = st.text(st.characters(exclude_categories=['Cs'], exclude_characters='\0'), max_size=6)


@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=6))
@settings(max_examples=scaled(100), deadline=None)
def test_any_rows(values):
    names = ['column a', 'column b']  # longer than any field: no row is the header again
    objects = {'a.csv': table(names, [list(value) for value in values], quoting=csv.QUOTE_ALL)}
    source = index(CSV, objects)
    for row, value in zip(rows(source, objects), values, strict=True):
        for name, text in zip(names, value, strict=True):
            assert row[name] == (text if source.columns[name] == 'str' else float(text))


@given(
    st.lists(st.tuples(fields, fields), min_size=1, max_size=6),
    st.sampled_from(',;|\t:'),
    st.sampled_from('"\'~'),
    st.booleans(),
)
@settings(max_examples=scaled(100), deadline=None)
def test_any_dialect(values, delimiter, quote, has_header):
    names = ['column a', 'column b']
    lines = [[f'x{text}' for text in value] for value in values]
    data = table(names, lines, delimiter=delimiter, quotechar=quote, quoting=csv.QUOTE_ALL)
    if not has_header:
        data = data[data.index(b'\n') + 1 :]
    objects = {'a.csv': data}
    header = True if has_header else names
    source = index(CSV, objects, delimiter=delimiter, quoting=quote, header=header)
    assert [list(row.values()) for row in rows(source, objects)] == lines


SEEDS = {
    'a.json': json.dumps(SAMPLES[:5], indent=1).encode(),
    'b.json.gz': gzip.compress(json.dumps(SAMPLES[:5]).encode()),
    'a.jsonl': jsonl(SAMPLES[:5]),
    'a.csv': b'a,b\n1,"x ""y"", \n z"\n2,3\n',
    'a.jsonl.gz': gzip.compress(jsonl(SAMPLES[:5])),
    'a.csv.zst': zstandard.ZstdCompressor().compress(b'a,b\n1,"x"\n2,3\n'),
    'b.jsonl.bz2': bz2.compress(jsonl(SAMPLES[:5])),
}


changes = st.lists(st.tuples(st.integers(0, 1 << 10), st.binary(min_size=1, max_size=6)), max_size=3)


def check_damaged(name: str, edits: list[tuple[int, bytes]], end: int) -> None:
    data = bytearray(SEEDS[name])
    kind = CSV if '.csv' in name else JSONL
    source = index(kind, {name: SEEDS[name]})
    for at, new in edits:
        start = at % len(data)
        data[start : start + len(new)] = new
    objects = {name: bytes(data[: max(0, len(data) - end)])}
    with contextlib.suppress(HeadraceError):
        rows(index(kind, objects), objects)
    part = source.parts[0]
    changed = objects[name] if not part.ranges else objects[name][part.ranges[0][0] :]
    with contextlib.suppress(HeadraceError):  # against an index that knew it undamaged
        list(source.batches(0, memoryview(changed)))


@given(st.sampled_from(sorted(SEEDS)), changes, st.just(0) | st.integers(0, 100))
@settings(max_examples=scaled(100), deadline=None)
def test_any_damage_is_an_error_of_ours(name, edits, end):
    check_damaged(name, edits, end)


@pytest.mark.slow
@given(st.sampled_from(sorted(SEEDS)), changes, st.just(0) | st.integers(0, 100))
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_damage_is_an_error_of_ours_at_length(name, edits, end):
    check_damaged(name, edits, end)


@pytest.mark.parametrize('text', ['{"x": 1}\n{"x": 2}\n', '[{"x": 1},\n{"x": 2}]\n', '{"x": "a,b", "y": 1}\n'])
def test_json_is_no_header_of_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / 'a.csv').write_text(text)
    with pytest.raises(FormatError, match=r"a\.csv is (a JSON object.*`format='jsonl'`|no row of CSV)"):
        StreamingDataset(remote=str(tmp_path / 'a.csv'), local=str(tmp_path / 'cache'), batch_size=1)
