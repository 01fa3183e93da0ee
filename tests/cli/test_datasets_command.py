"""Commands that write datasets: `cp`, `merge`, `reshard`, `rollback`, `convert` and `tokenize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace import StreamingDataset
from headrace.cli import main
from tests.support.sources.tokenized import TEXTS, byte_tokenizer, write_texts


def test_cp(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['cp', str(data), str(tmp_path / 'out')]) == 0
    assert '0 were there' in capsys.readouterr().out
    assert main(['cp', str(data), str(tmp_path / 'out'), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['copied'] == 0
    assert main(['verify', str(tmp_path / 'out')]) == 0
    (tmp_path / 'out' / 'index.json').write_text('{"version": 2, "shards": []}')
    assert main(['cp', str(data), str(tmp_path / 'out')]) == 1
    error = capsys.readouterr().err
    assert 'of another dataset already' in error
    assert error.count('\n') == 1
    assert main(['cp', str(data), str(tmp_path / 'out'), '--overwrite']) == 0


def test_merge(make_dataset: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(('b', 'a')):
        make_dataset(f'all/{name}', 30, first=30 * number)
    assert main(['merge', str(tmp_path / 'all')]) == 0
    assert 'with 60 samples' in capsys.readouterr().out
    assert main(['inspect', str(tmp_path / 'all'), '--json', '--samples', '1']) == 0
    assert json.loads(capsys.readouterr().out)['first_samples'][0]['id']['value'] == 30
    parts = [str(tmp_path / 'all' / name / 'index.json') for name in ('b', 'a')]
    assert main(['merge', str(tmp_path / 'all'), *parts, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['samples'] == 60
    assert main(['inspect', str(tmp_path / 'all'), '--json', '--samples', '1']) == 0
    assert json.loads(capsys.readouterr().out)['first_samples'][0]['id']['value'] == 0
    assert main(['verify', str(tmp_path / 'all'), '-j', '1']) == 0
    assert main(['merge', str(tmp_path / 'nothing')]) == 1


def test_reshard(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ['reshard', str(data), str(tmp_path / 'out')]
    assert main([*command, '--size-limit', '1kb', '--compression', 'zstd', '--columns', 'id']) == 0
    assert '100 samples with the columns id' in capsys.readouterr().out
    assert main(command) == 1
    assert 'not empty' in capsys.readouterr().err
    assert main([*command, '--overwrite', '--order', 'shuffled', '--hashes', 'none', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found['samples'], found['order'], found['columns']) == (100, 'shuffled', ['id', 'row'])
    assert main(['verify', str(tmp_path / 'out'), '-j', '1']) == 0


def test_rollback(make_dataset: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset('data', 20)
    make_dataset('data/day2', 10)
    data = str(tmp_path / 'data')
    assert main(['merge', data]) == 0
    capsys.readouterr()
    assert main(['rollback', data]) == 0
    assert 'index.00001.json: 20 samples in ' in capsys.readouterr().out
    assert len(StreamingDataset(local=data, batch_size=1)) == 30
    assert main(['rollback', data, '--to', 'index.00001.json']) == 0
    assert 'index.00002.json' in capsys.readouterr().out
    assert len(StreamingDataset(local=data, batch_size=1)) == 20
    assert main(['rollback', data, '--to', 'absent']) == 1
    assert main(['rollback', data, '--json']) == 0
    assert '"samples": 30' in capsys.readouterr().out
    assert main(['rollback', f'{data}/day2']) == 0
    assert 'has no index that was replaced' in capsys.readouterr().out


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(3)
    for name in ('cat', 'dog'):
        (tmp_path / 'pets' / name).mkdir(parents=True)
        for i in range(6):
            pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / 'pets' / name / f'{i}.jpg')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_printed_line_reads_the_dataset(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['convert', 'pets', 'out', '-j', '2', '--compression', 'zstd', '--size-limit', '2kb']) == 0
    shown = capsys.readouterr().out

    assert 'Found imagefolder with the columns image: jpeg, label: int.' in shown
    assert 'Wrote 12 rows in' in shown
    line = shown.splitlines()[-1].removeprefix('Read it with ').removesuffix('.')
    assert len(eval(line, {'StreamingDataset': StreamingDataset})) == 12


def test_json(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(['convert', 'pets', 'out', '--json', '--limit', '5', '--columns', 'label', '--hashes', 'xxh64,sha1']) == 0
    )
    report = json.loads(capsys.readouterr().out)

    assert (report['rows'], report['columns'], report['kind']) == (5, {'label': 'int'}, 'imagefolder')
    assert json.loads(Path('out/index.json').read_text())['shards'][0]['hashes'] == ['sha1', 'xxh64']


def test_bad_inputs(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / 'pets' / 'dog' / 'bad.jpg').write_bytes(b'')
    assert main(['convert', 'pets', 'out']) == 1
    assert 'pets/dog/bad.jpg cannot be converted' in capsys.readouterr().err
    assert main(['convert', 'pets', 'out', '--columns', 'image']) == 1
    assert 'with columns {"label": "int"}, and got {}' in capsys.readouterr().err
    assert main(['convert', 'pets', 'out', '--on-error', 'collect']) == 0
    assert 'Left out 1 bad input. The first: pets/dog/bad.jpg: FormatError' in capsys.readouterr().out
    assert main(['convert', 'pets', 'out']) == 1
    assert 'pass --exist-ok to have it emptied' in capsys.readouterr().err


def test_other_encodings(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['convert', 'pets', 'out', '--json', '--columns', 'image=bytes,label=uint8']) == 0
    assert json.loads(capsys.readouterr().out)['columns'] == {'image': 'bytes', 'label': 'uint8'}
    assert main(['convert', 'pets', 'out2', '--columns', 'image=bytes,label']) == 1
    assert "got 'label' without one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ('text', 'options', 'message'),
    [
        ('a,b\n', [], 'The csv files of rows.csv have no rows.'),
        (
            'a\n1\n',
            ['--format', 'parquet'],
            'A Parquet file ends with the bytes PAR1, but ./rows.csv (4 bytes) does not.',
        ),
        ('a\n1\n', ['--split', 'val'], 'or have its name, but rows.csv has the files rows.csv.'),
        ('a\n1\n', ['--columns', 'a=uint8', '--limit', '1'], None),
        ('a\n999\n', ['--columns', 'a=uint8'], 'rows.csv of rows.csv, rows 0 to 0, row 0 cannot'),
    ],
)
def test_a_single_file_is_named_as_it_was_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: list[str],
    message: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('rows.csv').write_text(text)
    assert main(['convert', 'rows.csv', 'out', *options]) == (message is not None)
    shown = capsys.readouterr().err
    assert (message or '') in shown
    assert '[' not in shown


def test_tokenize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_tokenizer().save(str(tmp_path / 'tokenizer.json'))
    write_texts(tmp_path / 'in', TEXTS)
    command = ['tokenize', str(tmp_path / 'in'), str(tmp_path / 'out'), '--tokenizer', str(tmp_path / 'tokenizer.json')]
    assert main([*command, '-j', '2']) == 0
    text = capsys.readouterr().out
    assert f'Found jsonl. The columns of {tmp_path}/out are tokens: ndarray:uint16, length: int32.' in text
    assert f'tokens of {len(TEXTS) - TEXTS.count("")} documents in 1 shard' in text
    assert f'Left out {TEXTS.count("")} documents without tokens.' in text
    assert f"Read it with PackedDataset(local='{tmp_path}/out', packing=" in text
    assert main(command) == 0
    assert 'Nothing to do' in capsys.readouterr().out
    assert main([*command, '--json']) == 0
    report = json.loads(capsys.readouterr().out)
    assert report['tasks'] == report['tasks_done_before'] == 1
    assert main([*command, '--library', 'tiktoken']) == 1
    assert 'of tiktoken cannot be loaded' in capsys.readouterr().err
    assert main([*command, '--column', 'body']) == 1
    assert 'body' in capsys.readouterr().err
