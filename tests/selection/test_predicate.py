"""Conditions and functions of `where`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamingDataset, Where
from headrace.errors import StreamError
from headrace.mixing import build_dataset, load_config, to_yaml
from tests.support.datasets.selected import bits
from tests.support.packings.no_tokens import no_tokens  # noqa: F401


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'name': ''}, 'text that is not empty'),
        ({'name': 5}, 'text that is not empty'),
        ({'name': 'a', 'columns': 'id'}, 'list of names'),
        ({'name': 'a', 'columns': []}, 'list of names'),
        ({'name': 'a', 'columns': [5]}, 'list of names'),
        ({'function': 5, 'name': 'a'}, 'takes a function'),
    ],
)
def test_a_where_that_breaks_a_rule(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        Where(**{'function': len, **options})


def test_the_error_of_a_function_comes_out(data: Path, private: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        StreamingDataset(local=str(data), where=Where(lambda s: 1 / (s['id'] - 50), name='odd', columns=['id']))
    assert bits(private) == []


def test_the_same_predicate_in_other_words_is_the_same(data: Path, private: Path) -> None:
    for where in (
        {'lang': {'in': ['fr', 'de']}, 'id': {'at_least': 5, 'not': {'equals': 7}}},
        {'id': {'not': 7, 'at_least': 5}, 'lang': ['de', 'fr', 'de']},
    ):
        dataset = StreamingDataset(local=str(data), where=where)
        assert 'where {"id": {"at_least": 5, "not": 7}, "lang": ["de", "fr"]} (' in dataset.streams[0].fingerprint
    assert len(bits(private)) == 1


def _with_nulls(folder: Path, suffix: str) -> str:
    """A dataset with nulls in a column of text and in one of numbers."""
    rows = [
        {'text': 'a long one', 'score': 1, 'id': 0},
        {'text': None, 'score': 2, 'id': 1},
        {'text': '', 'score': None, 'id': 2},
        {'text': 'b', 'score': None, 'id': 3},
    ]
    folder.mkdir()
    if suffix == 'jsonl':
        (folder / 'a.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        return str(folder)
    pa = pytest.importorskip('pyarrow')
    import pyarrow.parquet

    table = pa.Table.from_pylist(rows)
    if suffix == 'parquet':
        pyarrow.parquet.write_table(table, folder / 'a.parquet')
    else:
        with pa.OSFile(str(folder / 'a.arrow'), 'wb') as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return str(folder)


@pytest.mark.parametrize('suffix', ['jsonl', 'parquet', 'arrow'])
@pytest.mark.parametrize(
    ('where', 'ids'),
    [
        ({'text': {'not': None}}, [0, 2, 3]),
        ({'text': {'equals': None}}, [1]),
        ({'text': {'not': [None, '']}}, [0, 3]),
        ({'text': [None, 'b']}, [1, 3]),
        ({'text': {'not': None, 'length': {'at_least': 2}}}, [0]),
        ({'text': {'not': ['', None], 'below': 'b'}}, [0]),
        ({'score': {'not': None, 'at_least': 2}}, [1]),
        ({'score': {'not': {'not': None}}}, [2, 3]),
        ({'score': {'not': None}, 'text': {'not': None}}, [0]),
        ({'id': {'not': None}}, [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_nulls_are_left_out(tmp_path: Path, suffix: str, where: dict[str, Any], ids: list[int]) -> None:
    remote, local = _with_nulls(tmp_path / 'in', suffix), str(tmp_path / 'cache')
    dataset = StreamingDataset(remote=remote, local=local, where=where, batch_size=1)
    assert sorted(sample['id'] for sample in dataset) == ids
    config = load_config({'global_batch_size': 1, 'train': {'remote': remote, 'local': local, 'where': where}})
    (tmp_path / 'again.yaml').write_text(to_yaml(config))
    again = build_dataset(load_config(tmp_path / 'again.yaml').train)
    assert again.streams[0].fingerprint == dataset.streams[0].fingerprint


def test_a_null_that_a_test_does_not_expect(tmp_path: Path) -> None:
    remote = _with_nulls(tmp_path / 'in', 'jsonl')
    for where in ({'text': {'not': 'b'}}, {'text': {'length': 3}}, {'score': {'at_least': 1}}, {'score': [1, 2]}):
        with pytest.raises(StreamError, match='holds NoneType values such as None.*`not: null` beside the other tests'):
            StreamingDataset(remote=remote, local=str(tmp_path / 'cache'), where=where)
    with pytest.raises(StreamError, match='at_least takes a text or a finite number'):
        StreamingDataset(remote=remote, local=str(tmp_path / 'cache'), where={'score': {'at_least': None}})
