"""The commands and programs of docs/convert.md run as they are written, and print what stands there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace import MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.packing import PackedDataset, Packing
from tests.support.sources.sources_to_convert import make_images
from tests.support.sources.tokenized import byte_tokenizer

DOC_FOLDER = Path(__file__).parents[2] / 'docs'
DOC = (DOC_FOLDER / 'convert.md').read_text()
ROWS = [{'id': i, 'text': f'chat number {i}', 'stars': 1 + i % 5} for i in range(2000)]


def make_sources(folder: Path) -> None:
    """What the page converts."""
    pa, webdataset = pytest.importorskip('pyarrow'), pytest.importorskip('webdataset')
    from pyarrow import parquet

    make_images(folder / 'pets', {'cat': 24, 'dog': 24})
    (folder / 'reviews').mkdir()
    parquet.write_table(pa.Table.from_pylist(ROWS), folder / 'reviews' / 'train-0.parquet')
    (folder / 'captions').mkdir()
    with webdataset.TarWriter(str(folder / 'captions' / '00000.tar')) as tar:
        for i in range(40):
            jpeg = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(jpeg, 'JPEG')
            tar.write({'__key__': f'{i:05}', 'jpg': jpeg.getvalue(), 'txt': f'caption {i}'})
    (folder / 'chats.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in ROWS))
    byte_tokenizer().save(str(folder / 'tokenizer.json'))
    (folder / 'books').mkdir()
    for i in range(6):
        (folder / 'books' / f'{i}.txt').write_text('\n\n'.join(f'Paragraph {k} of {i}.' for k in range(5)))
    for part in range(3):
        with MDSWriter(out=str(folder / 'parts' / f'part-{part}'), columns={'id': 'int'}) as writer:
            writer.write({'id': part})


def without_figures(text: str) -> str:
    """Sizes, times and rates differ from machine to machine."""
    text = re.sub(r'\d[\d,.]*( ?(bytes|kB|MB|GB|s|rows/s|tokens/s|kB/s|MB/s))\b', r'#\1', text).replace('#  ', '# ')
    return re.sub('(bytes|kB|MB|GB)', 'B', text)


def run(command: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main(shlex.split(command)[1:]) == 0
    return shown.getvalue()


def test_commands_print_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    transcripts = re.findall(r'```console\n\$ (.*?)\n(.*?)```', DOC, re.DOTALL)
    assert len(transcripts) == 5
    for command, output in transcripts:
        shown = run(command)
        assert without_figures(shown) == without_figures(output)
        line = shown.splitlines()[-1].removeprefix('Read it with ').removesuffix('.')
        rows = int(re.search(r'Wrote .*?([\d,]+) (?:rows|documents) in', shown)[1].replace(',', ''))
        assert (
            eval(line, {kind.__name__: kind for kind in (StreamingDataset, PackedDataset, Packing)}).num_samples == rows
        )


def test_programs_print_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('datasets')
    make_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HF_DATASETS_CACHE', str(tmp_path / 'hf'))
    programs = re.findall(r'```python\n(.*?)```(?:\n\n```text\n(.*?)```)?', DOC, re.DOTALL)
    assert len(programs) == 3
    for program, output in programs:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(program, 'docs/convert.md', 'exec'), {'__name__': '__main__'})
        assert shown.getvalue() == output
    assert len(StreamingDataset(local='parts', batch_size=1)) == 3


def test_an_append_prints_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sources(tmp_path)
    shutil.copy(tmp_path / 'chats.jsonl', tmp_path / 'more.jsonl')
    monkeypatch.chdir(tmp_path)
    run('headrace convert chats.jsonl chats-jsonl-mds')
    ((command, output),) = re.findall(r'```text\n\$ (.*?)\n(.*?)```', DOC, re.DOTALL)
    assert without_figures(run(command)) == without_figures(output)
    assert len(StreamingDataset(local='chats-jsonl-mds', batch_size=1)) == 4000


def test_the_advice_of_the_questions_on_adding_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = re.search(r'\*\*Can I add samples later\?\*\*(.*?)\n\n', (DOC_FOLDER / 'faq.md').read_text(), re.DOTALL)[1]
    commands = re.findall(r'`(headrace [^`]*)`', answer)
    assert [command.split()[1] for command in commands] == ['convert', 'merge', 'rollback']
    Path('more.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in ROWS[:10]))

    def write(out: str, rows: list[dict[str, object]], **options: bool) -> None:
        with MDSWriter(out=out, columns={'id': 'int', 'text': 'str', 'stars': 'int'}, **options) as writer:
            for row in rows:
                writer.write(row)

    write('data', ROWS[:100])
    write('data', ROWS[100:120], append=True)
    run(commands[0])
    assert len(StreamingDataset(local='data', batch_size=1)) == 130
    write('data/day2', ROWS[:5])
    run(commands[1])
    assert len(StreamingDataset(local='data', batch_size=1)) == 135
    names = re.findall(r'index\.\d+\.json', run(commands[2]))
    assert names == ['index.00001.json', 'index.00002.json']
    for name, samples in zip(names, (120, 130), strict=True):
        run(f'{commands[2]} --to {name}')
        assert len(StreamingDataset(local='data', batch_size=1)) == samples
