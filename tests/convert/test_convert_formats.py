"""Data of other formats, made by their own libraries: converted value by value, by any number of workers."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import StreamingDataset
from headrace.cli import main
from headrace.convert import convert as convert_with_bar
from headrace.errors import ConversionError, HeadraceError, ObjectNotFoundError
from headrace.inspect.content import open_content
from headrace.sources.formats import FORMATS
from headrace.storage import open_store
from tests.support.servers.s3 import S3Server
from tests.support.sources.sources_to_convert import digests, rows_of

convert = partial(convert_with_bar, progress_bar=False)
ROWS = [{'id': i, 'text': f'text {i} ' * (i % 7), 'score': i / 4} for i in range(300)]


def write_parquet(folder: Path) -> None:
    pa = pytest.importorskip('pyarrow')
    from pyarrow import parquet

    folder.mkdir()
    for number in range(3):
        rows = ROWS[number * 100 : (number + 1) * 100]
        table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
        parquet.write_table(table, folder / f'part-{number}.parquet', row_group_size=30)


def write_webdataset(folder: Path) -> None:
    webdataset = pytest.importorskip('webdataset')
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / '%05d.tar'), maxcount=70, verbose=0) as writer:
        for row in ROWS:
            key = f'{row["id"]:06}'
            writer.write({'__key__': key, 'id': row['id'], 'text.txt': row['text'], 'score.json': row['score']})


def write_jsonl(folder: Path) -> None:
    folder.mkdir()
    for number in range(3):
        lines = (json.dumps(row) + '\n' for row in ROWS[number * 100 : (number + 1) * 100])
        (folder / f'{number}.jsonl').write_text(''.join(lines))


def write_csv(folder: Path) -> None:
    folder.mkdir()
    with open(folder / 'rows.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)


def write_litdata(folder: Path) -> None:
    litdata = pytest.importorskip('litdata')
    litdata.optimize(fn=dict, inputs=ROWS, output_dir=str(folder), num_workers=1, chunk_size=50, verbose=False)


def write_arrow(folder: Path) -> None:
    pytest.importorskip('datasets').Dataset.from_list(ROWS).save_to_disk(folder, num_shards=2)


WRITERS = {
    'parquet': write_parquet,
    'webdataset': write_webdataset,
    'jsonl': write_jsonl,
    'csv': write_csv,
    'litdata': write_litdata,
    'arrow': write_arrow,
}
KINDS = [
    pytest.param(kind, marks=pytest.mark.slow) if kind == 'litdata' else kind for kind in WRITERS if kind in FORMATS
]


def plain(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    if kind == 'webdataset':
        return {'id': row['id'], 'text': row['text.txt'], 'score': row['score.json']}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}


@pytest.mark.parametrize('kind', KINDS)
def test_rows_and_equal_bytes(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / 'data')
    found = []
    for workers in (1, 3):
        out = tmp_path / f'out-{workers}'
        report = convert(tmp_path / 'data', out, workers=workers, size_limit=2000)
        found.append(digests(out))

    assert report.kind == kind
    assert [plain(kind, row) for row in rows_of(out)] == ROWS
    assert found[0] == found[1]
    assert report.shards > 3


@pytest.mark.parametrize('kind', KINDS)
def test_the_first_rows_of_some_columns(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path / 'data')
    report = convert(tmp_path / 'data', tmp_path / 'out', columns=['id'], limit=117)

    assert [row['id'] for row in rows_of(tmp_path / 'out')] == list(range(117))
    assert list(report.columns) == ['id']


def test_a_file_a_glob_and_other_encodings(tmp_path: Path) -> None:
    write_parquet(tmp_path / 'da[t]a')
    convert(tmp_path / 'da[t]a' / 'part-1.parquet', tmp_path / 'file')
    assert [row['id'] for row in rows_of(tmp_path / 'file')] == list(range(100, 200))
    write_parquet(tmp_path / 'data')
    report = convert(f'{tmp_path}/data/part-[02].parquet', tmp_path / 'glob', columns={'id': 'uint16', 'text': 'str'})
    assert report.columns == {'id': 'uint16', 'text': 'str'}
    assert [row['id'] for row in rows_of(tmp_path / 'glob')] == [*range(100), *range(200, 300)]


def test_a_split(tmp_path: Path) -> None:
    write_parquet(tmp_path / 'data')
    (tmp_path / 'data' / 'part-1.parquet').rename(tmp_path / 'data' / 'test-00000-of-00001.parquet')
    convert(tmp_path / 'data', tmp_path / 'out', split='test')
    assert [row['id'] for row in rows_of(tmp_path / 'out')] == list(range(100, 200))


def test_images_that_describe_other_data(tmp_path: Path) -> None:
    write_parquet(tmp_path / 'data')
    (tmp_path / 'data' / 'assets').mkdir()
    (tmp_path / 'data' / 'assets' / 'logo.png').write_bytes(b'\x89PNG')
    assert convert(tmp_path / 'data', tmp_path / 'out').kind == 'parquet'


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / 'data')
    path = tmp_path / 'data' / 'part-1.parquet'
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=r'^part-1\.parquet of .*data, rows 100 to 129 cannot be converted'):
        convert(tmp_path / 'data', tmp_path / 'out', workers=2)
    report = convert(tmp_path / 'data', tmp_path / 'other', on_error='collect')

    assert [error.input for error in report.errors] == [f'part-1.parquet of {tmp_path}/data, rows 100 to 129']
    assert [row['id'] for row in rows_of(tmp_path / 'other')] == [*range(100), *range(130, 300)]


def test_rows_that_do_not_fit_are_left_out_one_by_one(tmp_path: Path) -> None:
    write_parquet(tmp_path / 'data')
    report = convert(tmp_path / 'data', tmp_path / 'out', columns={'id': 'uint8', 'text': 'str'}, on_error='skip')
    assert [row['id'] for row in rows_of(tmp_path / 'out')] == list(range(256))
    assert report.num_errors == 300 - 256


def test_mds_and_formats_that_are_not_there(tmp_path: Path) -> None:
    convert([{'i': 1}], tmp_path / 'mds')
    with pytest.raises(ObjectNotFoundError, match='headrace cp'):
        convert(tmp_path / 'mds', tmp_path / 'out')
    with pytest.raises(HeadraceError, match='parquet'):
        convert(tmp_path / 'mds', tmp_path / 'out', format='parquet')
    with pytest.raises(HeadraceError, match='format'):
        convert(tmp_path / 'mds', tmp_path / 'out', format='no such format')
    with pytest.raises(ObjectNotFoundError, match='holds none'):
        convert(tmp_path / 'mds', tmp_path / 'out', format='imagefolder')


@pytest.mark.s3
def test_options_of_csv(tmp_path: Path) -> None:
    (tmp_path / 'x').mkdir()
    (tmp_path / 'x' / 'a.csv').write_text("1;'x;y'\n2;z\n")
    options = {'delimiter': ';', 'quoting': "'", 'header': ['id', 'text']}
    for source in (tmp_path / 'x', tmp_path / 'x' / 'a.csv'):
        convert(source, tmp_path / 'out', format='csv', format_options=options, exist_ok=True)
        assert rows_of(tmp_path / 'out') == [{'id': 1, 'text': 'x;y'}, {'id': 2, 'text': 'z'}]
    texts = ['delimiter=;', "quoting='", 'header=["id", "text"]']
    flags = [part for text in texts for part in ('--format-option', text)]
    assert main(['convert', str(tmp_path / 'x' / 'a.csv'), str(tmp_path / 'again'), '--format', 'csv', *flags]) == 0
    assert digests(tmp_path / 'again') == digests(tmp_path / 'out')


def test_one_file_of_a_store(tmp_path: Path, s3_server: S3Server) -> None:
    bucket, lines = s3_server.new_bucket(), [json.dumps(row) for row in ROWS]
    objects = {
        'x/a[1].jsonl': '\n'.join(lines[:3]),
        'x/a1.jsonl': lines[3],
        'x/b.json': f'[{",".join(lines[:5])}]',
        'x/c.jsonl/part-0.jsonl': lines[7],
        'x/c.jsonl/_SUCCESS': '',
    }
    for key, text in objects.items():
        s3_server.client().put_object(Bucket=bucket, Key=key, Body=text.encode())
    for key, expected in (('a[1].jsonl', ROWS[:3]), ('b.json', ROWS[:5]), ('c.jsonl', ROWS[7:8])):
        url = f's3://{bucket}/x/{key}'
        convert(url, tmp_path / key)
        assert rows_of(tmp_path / key) == expected
        dataset = StreamingDataset(remote=url, local=str(tmp_path / f'cache {key}'), batch_size=1)
        assert [dataset[n] for n in range(len(dataset))] == expected
        assert open_content(url, None).shards.samples.sum() == len(expected)


def test_from_a_store(tmp_path: Path, s3_server: S3Server) -> None:
    write_parquet(tmp_path / 'data')
    url = f's3://{s3_server.new_bucket()}/data'
    for path in (tmp_path / 'data').iterdir():
        with open(path, 'rb') as file:
            open_store(url).put(path.name, file, size=path.stat().st_size)
    convert(url, tmp_path / 'out', workers=2)
    assert [plain('parquet', row) for row in rows_of(tmp_path / 'out')] == ROWS
