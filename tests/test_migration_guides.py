"""The commands and programs of the migration guides run as they are written, and print what stands there."""

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
from tests.support.sources.sources_to_convert import make_images

DOCS = Path(__file__).parents[1] / 'docs'
pytestmark = pytest.mark.once


def chunks_of_litdata(folder: Path) -> None:
    """100 samples with 8 tokens each, by litdata's own writer."""
    cache = pytest.importorskip('litdata.streaming').Cache(str(folder), chunk_size=50)
    torch = pytest.importorskip('torch')
    for i in range(100):
        cache[i] = {'id': i, 'tokens': torch.arange(i, i + 8)}
    cache.done()
    cache.merge()


def make(folder: Path, page: str) -> None:
    """What a page reads."""
    if page == 'from_litdata':
        chunks_of_litdata(folder / 'lit-data')
    elif page == 'from_webdataset':
        webdataset = pytest.importorskip('webdataset')
        (folder / 'captions').mkdir()
        with webdataset.TarWriter(str(folder / 'captions' / '00000.tar')) as tar:
            for i in range(40):
                jpeg = io.BytesIO()
                Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(jpeg, 'JPEG')
                tar.write({'__key__': f'{i:05}', 'jpg': jpeg.getvalue(), 'txt': f'caption {i}'})
    else:
        pa, _ = pytest.importorskip('pyarrow'), pytest.importorskip('datasets')
        from pyarrow import parquet

        make_images(folder / 'pets', {'cat': 24, 'dog': 24})
        (folder / 'reviews').mkdir()
        rows = [{'text': f'review {i}', 'stars': 1 + i % 5} for i in range(500)]
        parquet.write_table(pa.Table.from_pylist(rows), folder / 'reviews' / 'train-0.parquet')


def without_figures(text: str) -> str:
    """Sizes, times and rates differ from machine to machine."""
    return re.sub(r'\d[\d,.]* ?(bytes|kB|MB|GB|s|rows/s|kB/s|MB/s)\b', '#', text)


@pytest.mark.parametrize('page', ['from_litdata', 'from_webdataset', 'from_image_folder'])
def test_a_guide_prints_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    make(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    if page == 'from_image_folder':
        monkeypatch.setattr('datasets.config.HF_DATASETS_CACHE', tmp_path / 'hf')
    text = (DOCS / f'{page}.md').read_text()
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
                exec(compile(block['program'], f'docs/{page}.md', 'exec'), names)
        assert without_figures(shown.getvalue()) == without_figures(block['shown'] or block['printed'])
