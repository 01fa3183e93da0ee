"""The README's examples are short, and run as they are written, one after the other in one folder."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import runpy
import string
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support.pages.transcripts import with_transcripts

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')

README = (Path(__file__).parents[1] / 'README.md').read_text()
BLOCKS = re.findall(r'^```(\w+)\n(.*?)^```$', README, flags=re.MULTILINE | re.DOTALL)
LOOP, MIXED, LIGHTNING, COMPOSER = (text for language, text in BLOCKS if language == 'python')
(MIX,) = (text for language, text in BLOCKS if language == 'yaml')


def write_bytes(folder: Path, module: ModuleType) -> None:
    """Parquet files of a reader, with rows of 65 tokens."""
    text = np.frombuffer(inspect.getsource(module).encode(), np.uint8)
    rows = pa.FixedSizeListArray.from_arrays(text[: len(text) // 65 * 65], 65)
    folder.mkdir()
    pq.write_table(pa.table({'tokens': rows}), folder / 'part.parquet')


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and the mix of the README."""
    path = tmp_path_factory.mktemp('readme')
    write_bytes(path / 'prose', string)
    write_bytes(path / 'code', argparse)
    (path / 'mix.yaml').write_text(MIX)
    return path


def run(program: str, folder: Path) -> None:
    # From a file, as a user's; in this process, which has imported the trainers.
    path = folder / 'program.py'
    path.write_text(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path(str(path), run_name='__main__')


def steps(checkpoint: Path) -> int:
    """Optimizer steps of one whole epoch of the mix, as the checkpoint's name says."""
    match = re.search(r'(?:step=|-ba)(\d+)', checkpoint.name)
    assert match
    return int(match[1])


def test_the_first_screen_is_short() -> None:
    """The loop takes five lines, and the mixture fourteen; all are readable on half a screen."""
    assert len(re.findall('^.', LOOP, re.MULTILINE)) <= 5
    assert sum(len(example.splitlines()) for example in (MIX, MIXED)) <= 14
    assert all(len(line) <= 75 for _, block in BLOCKS for line in block.splitlines())


def test_init_writes_a_script_that_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_transcripts(README, folder) == README
    script = folder / 'train.py'
    run(script.read_text().replace('STEPS = 100', 'STEPS = 4'), folder)

    assert capsys.readouterr().out.splitlines()[-1].startswith('Step 4 of 4 is done.')


def test_the_loops_run_as_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pq.read_table(folder / 'prose').num_rows
    run(LOOP, folder)
    assert capsys.readouterr().out.count('\n') == -(-rows // 64)

    run(MIXED, folder)
    assert capsys.readouterr().out.splitlines()[:-1] == ['torch.Size([64, 65])'] * 62  # and 32 of the 4,000 samples


@pytest.mark.lightning
def test_the_lightning_example_runs_as_written(folder: Path) -> None:
    if importlib.util.find_spec('lightning') is None:
        pytest.skip('lightning is not installed')
    run(LIGHTNING, folder)

    (checkpoint,) = folder.glob('lightning_logs/version_0/checkpoints/*.ckpt')
    assert steps(checkpoint) == 63  # 4000 samples in batches of 64


@pytest.mark.composer
def test_the_composer_example_runs_as_written(folder: Path) -> None:
    if importlib.util.find_spec('composer') is None:
        pytest.skip('composer is not installed')
    run(COMPOSER, folder)

    (checkpoint,) = folder.glob('checkpoints/ep1-*.pt')
    assert steps(checkpoint) == 63


def test_links_lead_to_files_that_are_there() -> None:
    targets = re.findall(r'\]\(([^)]+)\)', README)

    links = [target for target in targets if not target.endswith('.svg')]
    assert 1 < len(links) <= 6
    assert all((Path(__file__).parents[1] / target.partition('#')[0]).exists() for target in targets)
