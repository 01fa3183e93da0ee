"""The ledger of a reader or a conversion; tests/sources/test_mixed_formats.py reads files of all formats."""

from __future__ import annotations

from pathlib import Path

from headrace.convert import convert
from headrace.sources.ledger import ledger_of
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
