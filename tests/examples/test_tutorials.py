"""The tutorials end with the result that they promise, and each notebook is that of its script."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

TUTORIALS = Path(__file__).parents[2] / 'examples' / 'tutorials'
RESULTS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    'cifar10_lightning': ('simplejpeg', lambda found: found['right'] > 0.3),
    'face_landmarks': ('simplejpeg', lambda found: found['model'].error < 0.8 * found['without']),
    'number_words': ('zstandard', lambda found: found['right'] > 0.6),
    'gpt_mixture': ('tokenizers', lambda found: all(2 < loss < 5.8 for loss in found['losses'].values())),
    'parquet': ('pyarrow', lambda found: found['right'] > 0.8 and 0 < found['fetched'] < found['size'] / 4),
}
"""The package that each needs beside Lightning, and what its names must say at the end."""
PRINTED = {
    'cifar10_composer': ('composer', r'trained on 1,500 images in 3 epochs\n[3-9]\d\.\d% of the validation images'),
    'images_from_bucket': ('moto', r'Downloaded in each epoch: [1-9][\d,]+ kB, 0 kB, 0 kB, 0 kB\n([4-9]\d|100)\.\d%'),
    'resume': ('lightning', r'24 of 24 steps trained on the same ids. The losses differ by at most \d\.\de-0[4-9]'),
}
"""The package that each needs, and what it prints at the end, in a process of its own."""
LOGGERS = [
    f'lightning.{module}'
    for module in ('pytorch.utilities.rank_zero', 'fabric.utilities.rank_zero', 'fabric.utilities.distributed')
]


def cells(name: str) -> list[dict[str, Any]]:
    return json.loads((TUTORIALS / f'{name}.ipynb').read_text())['cells']


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A notebook's place, and nothing that it changes is left behind."""
    levels = [logging.getLogger(name).level for name in LOGGERS]
    threads = torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TUTORIALS))
    monkeypatch.setenv('HEADRACE_SMALL', '1')
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    for module in ('tutorial_data', 'tutorial_models'):
        sys.modules.pop(module, None)
    for name, level in zip(LOGGERS, levels, strict=True):
        logging.getLogger(name).setLevel(level)


@pytest.mark.once
@pytest.mark.lightning
@pytest.mark.filterwarnings('ignore')
@pytest.mark.usefixtures('small')
@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=() if name == 'parquet' else pytest.mark.slow) for name in RESULTS]
)
def test_a_notebook_ends_with_its_result(name: str) -> None:
    package, is_right = RESULTS[name]
    pytest.importorskip('lightning')
    pytest.importorskip(package)
    found: dict[str, Any] = {'__name__': '__main__'}
    for cell in cells(name):
        if cell['cell_type'] == 'code':
            exec(compile(''.join(cell['source']), f'{name}.ipynb', 'exec'), found)
    assert is_right(found)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize('name', PRINTED)
def test_a_script_ends_with_its_result(name: str, tmp_path: Path) -> None:
    package, ending = PRINTED[name]
    if find_spec(package) is None:
        pytest.skip(f'{package} is not installed')
    command = [sys.executable, str(TUTORIALS / f'{name}.py'), '--small']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert re.search(ending, done.stdout), done.stdout


@pytest.mark.once
def test_each_notebook_is_that_of_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('jupytext')
    monkeypatch.syspath_prepend(str(TUTORIALS))
    from make_notebooks import notebook_of, scripts

    assert {script.stem for script in scripts()} == RESULTS.keys() | PRINTED.keys()
    assert {path.stem for path in TUTORIALS.glob('*.ipynb')} == RESULTS.keys() | PRINTED.keys()
    for script in scripts():
        made = [(cell.cell_type, cell.source) for cell in notebook_of(script).cells]
        stored = [(cell['cell_type'], ''.join(cell['source'])) for cell in cells(script.stem)]
        assert stored == made, f'Run examples/tutorials/make_notebooks.py: {script.stem} has changed.'


def test_the_page_begins_each_tutorial_with_its_command() -> None:
    page = (TUTORIALS.parents[1] / 'docs' / 'tutorials.md').read_text()
    for name in (*RESULTS, *PRINTED):
        assert f'](../examples/tutorials/{name}.ipynb)' in page
        assert f'```\npython examples/tutorials/{name}.py\n```' in ''.join(cells(name)[0]['source'])
