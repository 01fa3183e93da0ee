"""Conditions and functions of `where`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from headrace import AudioTensor, StreamingDataLoader, StreamingDataset, Where
from headrace.convert import convert
from headrace.errors import FormatError, StreamError
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


def _with_nulls_among_files(folder: Path, ending: str) -> str:
    """Rows 0 to 5, of which 1 and 3 have no files."""
    folder.mkdir()
    image = pa.struct([('bytes', pa.binary()), ('path', pa.string())])
    clip = io.BytesIO()
    soundfile.write(clip, np.zeros(80), 8000, format='WAV')
    files: list[Any] = [{'bytes': clip.getvalue(), 'path': f'{n}.wav'} for n in range(6)]
    files[1], files[3] = None, {'bytes': None, 'path': None}
    raw = [None if n in (1, 3) else bytes([n]) * n for n in range(6)]
    table = pa.table({
        'id': range(6),
        'file': pa.array(files, image),
        'raw': pa.array(raw, pa.large_binary()),
        'fixed': pa.array([None if n in (1, 3) else b'ab' for n in range(6)], pa.binary(2)),
        'has_file': [int(n not in (1, 3)) for n in range(6)],
    })  # fmt: skip
    if ending == 'lance':  # its threads do not stay in this process
        pq.write_table(table, folder.parent / 'table.parquet')
        code = (
            'import sys, lance, pyarrow.parquet as pq\n'
            'lance.write_dataset(pq.read_table(sys.argv[1]), sys.argv[2], data_storage_version="2.1")'
        )
        command = [sys.executable, '-c', code, str(folder.parent / 'table.parquet'), str(folder)]
        subprocess.run(command, check=True, timeout=120)
    elif ending == 'parquet':
        pq.write_table(table, folder / 'a.parquet', row_group_size=3)
    else:
        with pa.ipc.new_file(folder / 'a.arrow', table.schema) as writer:
            writer.write_table(table, 4)
    return str(folder)


@pytest.mark.parametrize('ending', ['parquet', 'arrow', 'lance'])
def test_rows_without_a_file_are_left_out(tmp_path: Path, ending: str) -> None:
    remote = _with_nulls_among_files(tmp_path / 'in', ending)

    def ids(number: int, where: Any, columns: list[str] | None = None) -> list[int]:
        cache = str(tmp_path / f'cache-{number}')
        dataset = StreamingDataset(remote=remote, local=cache, where=where, columns=columns, batch_size=1)
        return sorted(sample['id'] for sample in dataset)

    wheres: list[Any] = [{name: {'not': None}} for name in ('file', 'raw', 'fixed')]
    wheres += [{'has_file': 1}, {'raw': {'not': None, 'length': {'below': 9}}}]
    wheres += [Where(lambda sample: sample['file'] is not None, name='all'),
               Where(lambda sample: sample['raw'] is not None, name='raw', columns=['raw'])]  # fmt: skip
    for number, where in enumerate(wheres):
        assert ids(number, where) == [0, 2, 4, 5]
    assert ids(20, {'file': {'equals': None}}, ['id']) == [1, 3]
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / 'raw'), where={'raw': {'not': None}}, batch_size=1)
    assert [dataset[n]['raw'] for n in range(4)] == [b'', b'\2\2', b'\4' * 4, b'\5' * 5]
    clips = StreamingDataset(
        remote=remote, local=str(tmp_path / 'clips'), where={'file': {'not': None}}, batch_size=2,
        decode={'file': AudioTensor(sample_rate=8000)}, columns=['file'],
    )  # fmt: skip
    assert sum(len(batch['file']) for batch in StreamingDataLoader(clips, batch_size=2)) == 4


@pytest.mark.parametrize('ending', ['parquet', 'arrow', 'lance'])
def test_nulls_among_files_that_stay_are_refused(tmp_path: Path, ending: str) -> None:
    remote = _with_nulls_among_files(tmp_path / 'in', ending)
    with pytest.raises(FormatError, match=r"'file'.*holds some\. Give the stream `where=\{'file': \{'not': None\}\}`"):
        StreamingDataset(remote=remote, local=str(tmp_path / 'cache'), columns=['file'])
    kept = StreamingDataset(remote=remote, local=str(tmp_path / 'cache'), columns=['raw'], where={'id': {'below': 2}})
    assert kept[0]['raw'] == b''
    with pytest.raises(FormatError, match=r"'raw'.*null.*where=\{COLUMN: \{'not': None\}\}"):
        kept[1]
    with pytest.raises(FormatError, match=r"'raw'.*holds some.*A conversion has no `where`"):
        convert(remote, str(tmp_path / 'out'), columns=['raw'])
    assert not (tmp_path / 'out' / 'index.json').exists()


def test_images_of_hugging_face_that_are_null_are_left_out(tmp_path: Path) -> None:
    (tmp_path / 'in').mkdir()
    out = io.BytesIO()
    Image.new('RGB', (4, 4)).save(out, 'PNG')
    image = pa.struct([('bytes', pa.binary()), ('path', pa.string())])
    picture = {'bytes': out.getvalue(), 'path': None}
    features = {'image': {'_type': 'Image'}, 'images': [{'_type': 'Image'}]}
    table = pa.table({
        'id': range(4),
        'image': pa.array([picture, None, picture, picture], image),
        'images': pa.array([[picture], [picture, picture], None, []], pa.list_(image)),
    }).replace_schema_metadata({'huggingface': json.dumps({'info': {'features': features}})})  # fmt: skip
    pq.write_table(table, tmp_path / 'in' / 'a.parquet')
    for number, (where, ids) in enumerate((
        ({'image': {'not': None}, 'images': {'not': None}}, [0, 3]),
        ({'images': {'not': None, 'length': {'at_least': 1}}, 'image': {'not': None}}, [0]),
    )):  # fmt: skip
        dataset = StreamingDataset(
            remote=str(tmp_path / 'in'), local=str(tmp_path / f'c{number}'), where=where, batch_size=1
        )
        samples = sorted(dataset, key=lambda sample: sample['id'])
        assert [sample['id'] for sample in samples] == ids
        assert samples[0]['image'].size == samples[0]['images'][0].size == (4, 4)


def test_files_elsewhere_are_not_null(tmp_path: Path) -> None:
    (tmp_path / 'in').mkdir()
    image = pa.struct([('bytes', pa.binary()), ('path', pa.string())])
    values = [{'bytes': b'x', 'path': 'a.png'}, {'bytes': None, 'path': 'b.png'}, None]
    pq.write_table(pa.table({'image': pa.array(values, image)}), tmp_path / 'in' / 'a.parquet')
    with pytest.raises(FormatError, match=r"the file 'b\.png' is elsewhere"):
        StreamingDataset(remote=str(tmp_path / 'in'), local=str(tmp_path / 'c'), where={'image': {'not': None}})


@pytest.mark.parametrize(
    ('test', 'ids'),
    [
        (0.1, [0]), ({'not': 0.1}, [1, 2]), ([0.1, 2], [0, 1]), (2, [1]), ({'at_least': 0.1, 'below': 30.5}, [0, 1]),
        ({'at_least': 30.5}, [2]),
    ],
    ids=str,
)  # fmt: skip
def test_decimals_are_numbers(tmp_path: Path, test: Any, ids: list[int]) -> None:
    (tmp_path / 'in').mkdir()
    prices = [Decimal('0.10'), Decimal('2.00'), Decimal('30.50')]
    pq.write_table(pa.table({'id': [0, 1, 2], 'price': prices}), tmp_path / 'in' / 'a.parquet')
    dataset = StreamingDataset(
        remote=str(tmp_path / 'in'), local=str(tmp_path / 'c'), where={'price': test}, batch_size=1
    )
    assert sorted(sample['id'] for sample in dataset) == ids
    with pytest.raises(StreamError, match='Compare text with text'):
        StreamingDataset(remote=str(tmp_path / 'in'), local=str(tmp_path / 'c'), where={'price': '2'})


@pytest.mark.parametrize(
    ('test', 'ids'),
    [
        ({'at_least': 9, 'not': None}, [1, 3]),
        ({'at_least': 9.5, 'not': None}, [1, 3]),
        ({'equals': 9.5, 'not': None}, [3]),
        ({'below': 9.5, 'not': None}, [0]),
    ],
)
def test_decimals_beside_nulls_are_numbers(tmp_path: Path, test: Any, ids: list[int]) -> None:
    prices = pa.array([Decimal('1.10'), Decimal('10.00'), None, Decimal('9.50')])
    (tmp_path / 'data').mkdir()
    pq.write_table(pa.table({'id': range(4), 'price': prices}), tmp_path / 'data/a.parquet')
    where = {'remote': str(tmp_path / 'data'), 'local': str(tmp_path / 'cache'), 'batch_size': 1}
    dataset = StreamingDataset(**where, where={'price': test})
    assert [int(dataset[row]['id']) for row in range(len(dataset))] == ids
    with pytest.raises(StreamError, match="column 'price', of decimal of scale 2, holds Decimal .* the text '9.5'"):
        StreamingDataset(**where, where={'price': {'at_least': '9.5', 'not': None}})


def test_a_text_is_compared_with_no_time(tmp_path: Path) -> None:
    (tmp_path / 'data').mkdir()
    pq.write_table(pa.table({'day': [date(2024, 1, 1), None]}), tmp_path / 'data/a.parquet')
    where = {'remote': str(tmp_path / 'data'), 'local': str(tmp_path / 'cache'), 'batch_size': 1}
    with pytest.raises(StreamError, match=r"'day', of date32\[day\], holds int .* whole numbers, .* since 1970"):
        StreamingDataset(**where, where={'day': {'at_least': '2024-01-01', 'not': None}})
    assert len(StreamingDataset(**where, where={'day': {'at_least': 19723, 'not': None}})) == 1
