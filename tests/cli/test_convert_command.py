"""``headrace convert``: the report of a conversion, its line of code, and errors without a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace import StreamingDataset
from headrace.cli import main


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
        ('a\n1\n', ['--format', 'parquet'], "No object at rows.csv is of the format 'parquet'."),
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
