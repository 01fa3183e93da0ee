"""The ledger of a reader or a conversion; tests/sources/test_mixed_formats.py reads files of all formats."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path

import pytest

from headrace import Stream, StreamingDataset
from headrace.convert import convert
from headrace.convert.report import report_lines
from headrace.sources.ledger import Ledger, ledger_of
from headrace.storage import ObjectInfo


def test_each_reason_has_its_files_and_data_among_them_are_suspect() -> None:
    names = ['_SUCCESS', 'empty.csv', 'LICENSE', 'test.csv', 'train.csv', 'more.csv.xz', 'index.json']
    listed = [ObjectInfo(name, int(name != 'empty.csv'), '') for name in names]
    texts = [info for info in listed if info.key.endswith('.csv')]
    ledger = ledger_of(listed, texts, [texts[0], texts[2]], with_rows=['train.csv'], columns=['a'])
    assert ledger.files == 1
    assert [(one.reason, one.files, one.example, one.may_be_data) for one in ledger.left_out] == [
        ("whose name begins with '.' or '_'", 1, '_SUCCESS', False),
        ('without rows', 1, 'empty.csv', True),
        ('of no known format', 2, 'LICENSE', False),
        ('of another split', 1, 'test.csv', False),
        ('of another format', 1, 'more.csv.xz', True),
    ]
    assert ledger.is_suspect
    assert not ledger_of(texts, texts, texts[1:], with_rows=['test.csv', 'train.csv'], columns=['a']).is_suspect


def test_keys_of_hive_partitions_and_nulls_are_said(tmp_path: Path, caplog) -> None:
    folder = tmp_path / 'data' / 'year=2024' / 'id=3'
    folder.mkdir(parents=True)
    (folder / 'a.jsonl').write_text('{"id": 3}\n{"id": null}\n{"id": null}\n')
    report = convert(str(tmp_path / 'data'), tmp_path / 'out', progress_bar=False)
    assert (report.ledger.keys, report.ledger.nulls) == (('year',), {'id': 2})
    assert convert([{'id': None}], tmp_path / 'rows', columns={'id': 'json'}, progress_bar=False).ledger.nulls == {
        'id': 1
    }
    assert 'Folders name the keys year, which are no columns of the data.' in caplog.text


def write_lines(folder: Path, name: str, separator: str) -> None:
    rows = [['id', 'text', 'label'], *([str(n), f'text {n}', str(n % 2)] for n in range(3))]
    (folder / f'a.{name}').write_text(''.join(separator.join(row) + '\n' for row in rows))


def test_files_are_counted_though_nothing_is_left_out(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger='headrace')
    source = tmp_path / 'data'
    source.mkdir()
    for name in 'ab':
        (source / f'{name}.csv').write_text('id\n3\n')
    StreamingDataset(remote=str(source), local=str(tmp_path / 'cache'), batch_size=1)
    (said,) = [record for record in caplog.records if record.message.startswith('Read 2 files')]
    assert said.message == f'Read 2 files of {source} as csv. Nothing was left out.'
    assert said.levelno == logging.DEBUG
    lines = report_lines(convert(str(source), tmp_path / 'out', progress_bar=False))
    assert lines[1] == 'Read 2 files.'
    assert lines[2].startswith('Wrote 2 rows in 1 shard')
    assert not any(
        'Read' in line for line in report_lines(convert([{'id': 1}], tmp_path / 'rows', progress_bar=False))[:-1]
    )


def write_jsonl(folder: Path) -> None:
    (folder / 'a.jsonl').write_text(''.join(f'{{"id": {n}, "text": "t", "label": {n}}}\n' for n in range(3)))


def write_tar(folder: Path) -> None:
    with tarfile.open(folder / 'a.tar', 'w') as file:
        for n in range(3):
            for name in ('id', 'text', 'label'):
                info = tarfile.TarInfo(f'{n}.{name}')
                info.size = 1
                file.addfile(info, io.BytesIO(b'1'))


def write_table(folder: Path, name: str) -> None:
    pa = pytest.importorskip('pyarrow')
    import pyarrow.parquet

    table = pa.table({'id': [1, 2, 3], 'text': ['a', 'b', 'c'], 'label': [0, 1, 0]})
    if name == 'parquet':
        pyarrow.parquet.write_table(table, folder / 'a.parquet')
        return
    with pa.OSFile(str(folder / 'a.arrow'), 'wb') as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def write_litdata(folder: Path) -> None:
    pytest.importorskip('litdata')
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_size=25)
    for n in range(3):
        writer.add_item(n, {'id': n, 'text': 't', 'label': n})
    writer.done()
    writer.merge()


WRITERS = {
    'csv': lambda folder: write_lines(folder, 'csv', ','),
    'tsv': lambda folder: write_lines(folder, 'tsv', '\t'),
    'jsonl': write_jsonl,
    'webdataset': write_tar,
    'arrow': lambda folder: write_table(folder, 'arrow'),
    'parquet': lambda folder: write_table(folder, 'parquet'),
    'litdata': write_litdata,
}


@pytest.mark.parametrize('name', WRITERS)
def test_columns_that_are_not_read_are_named_by_reader_and_conversion(name: str, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    source = tmp_path / 'source'
    source.mkdir()
    WRITERS[name](source)
    dropped = ('__key__',) * (name == 'webdataset') + ('label', 'text')
    told = f'Left out {len(dropped)} columns: '
    stream = Stream(remote=str(source), local=str(tmp_path / 'cache'), columns=['id'])
    samples = StreamingDataset(streams=[stream], batch_size=1)
    assert [list(sample) for sample in samples] == [['id']] * 3
    (said,) = [record.message for record in caplog.records if told in record.message]
    assert said.count('text') == said.count('label') == 1
    report = convert(str(source), tmp_path / 'out', columns=['id'], progress_bar=False)
    assert tuple(sorted(report.ledger.dropped)) == dropped
    assert told in '\n'.join(report_lines(report))
    assert not convert(str(source), tmp_path / 'whole', progress_bar=False).ledger.dropped


def test_columns_of_a_program_s_samples_that_are_not_converted_are_named(tmp_path: Path) -> None:
    rows = [{'id': 1, 'text': 'a'}, {'id': 2, 'label': 1}]
    for number, source in enumerate([rows, iter(rows)]):
        report = convert(source, tmp_path / str(number), columns={'id': 'int'}, progress_bar=False)
        assert report.ledger.dropped == ('text', 'label')
        assert 'Left out 2 columns: text, label.' in report_lines(report)


def test_columns_of_images_that_are_not_converted_are_named(tmp_path: Path) -> None:
    (tmp_path / 'data' / 'cat').mkdir(parents=True)
    (tmp_path / 'data' / 'cat' / '1.png').write_bytes(b'\x89PNG')
    report = convert(str(tmp_path / 'data'), tmp_path / 'out', columns=['label'], progress_bar=False)
    assert report.ledger.dropped == ('image',)


def test_many_columns_are_counted() -> None:
    (line,) = Ledger(dropped=tuple(map(str, range(1000)))).lines()
    assert line.startswith('Left out 1,000 columns: 0, 1, ')
    assert line.endswith('30, 31 and 968 more.')
