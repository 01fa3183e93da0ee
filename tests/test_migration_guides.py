"""The commands and programs of docs/other_loaders.md run as they are written, and print what stands there."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace.cli import main
from tests.support.sources import token_files
from tests.support.sources.sources_to_convert import make_images

PAGE = (Path(__file__).parents[1] / 'docs' / 'other_loaders.md').read_text()
SECTIONS = dict(re.findall(r'^## From (.+?)\n(.*?)(?=^## |\Z)', PAGE, re.MULTILINE | re.DOTALL))
pytestmark = pytest.mark.once


def chunks_of_litdata(folder: Path) -> None:
    """100 samples with 8 tokens each, by litdata's own writer."""
    cache = pytest.importorskip('litdata.streaming').Cache(str(folder), chunk_size=50)
    torch = pytest.importorskip('torch')
    for i in range(100):
        cache[i] = {'id': i, 'tokens': torch.arange(i, i + 8)}
    cache.done()
    cache.merge()


def make(folder: Path, section: str) -> None:
    """What a section reads."""
    if section == 'litdata':
        chunks_of_litdata(folder / 'lit-data')
    elif section == 'WebDataset':
        webdataset = pytest.importorskip('webdataset')
        (folder / 'captions').mkdir()
        with webdataset.TarWriter(str(folder / 'captions' / '00000.tar')) as tar:
            for i in range(40):
                jpeg = io.BytesIO()
                Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(jpeg, 'JPEG')
                tar.write({'__key__': f'{i:05}', 'jpg': jpeg.getvalue(), 'txt': f'caption {i}'})
    elif section == 'Megatron-LM and NeMo':
        (folder / 'corpus').mkdir()
        data, idx = token_files.megatron([[[number] * (1 + number % 40)] for number in range(200)])
        (folder / 'corpus/wiki_text_document.bin').write_bytes(data)
        (folder / 'corpus/wiki_text_document.idx').write_bytes(idx)
    elif section == 'an ImageFolder':
        make_images(folder / 'pets', {'cat': 24, 'dog': 24})
    else:
        pa, _ = pytest.importorskip('pyarrow'), pytest.importorskip('datasets')
        from pyarrow import parquet

        (folder / 'reviews').mkdir()
        rows = [{'text': f'review {i}', 'stars': 1 + i % 5} for i in range(500)]
        parquet.write_table(pa.Table.from_pylist(rows), folder / 'reviews' / 'train-0.parquet')


def without_figures(text: str) -> str:
    """Sizes, times and rates differ from machine to machine."""
    return re.sub(r'\d[\d,.]* ?(bytes|kB|MB|GB|s|rows/s|kB/s|MB/s)\b', '#', text)


@pytest.mark.parametrize('section', SECTIONS)
def test_a_guide_prints_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    make(tmp_path, section)
    monkeypatch.chdir(tmp_path)
    if section == 'Hugging Face':
        monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path / 'hf')
    text = SECTIONS[section]
    command = r'```console\n\$ (?P<command>.*?)\n(?P<shown>.*?)```'
    program = r'```python\n(?P<program>.*?)```\n\n```text\n(?P<printed>.*?)```'
    blocks = list(re.finditer(f'{command}|{program}', text, re.DOTALL))
    assert len(blocks) == text.count('```console') + text.count('```python') >= 2
    for block in blocks:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            if block['command']:
                assert main(shlex.split(block['command'])[1:]) == 0
            else:
                names: dict[str, Any] = {'__name__': '__main__'}
                exec(compile(block['program'], 'docs/other_loaders.md', 'exec'), names)
        assert without_figures(shown.getvalue()) == without_figures(block['shown'] or block['printed'])
