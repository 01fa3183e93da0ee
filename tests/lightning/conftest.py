"""Data for training runs, and what their records must say."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headrace import MDSWriter

if TYPE_CHECKING:
    from tests.support.trainers.lightning_run import Run

# The marker lets a run leave these tests out; where Lightning is missing, their modules cannot even be imported.
collect_ignore_glob = ['test_*.py', '*/test_*.py'] if find_spec('lightning') is None else []


SIZES = {'even': (60, 36), 'uneven': (60, 41)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.lightning)


@pytest.fixture(autouse=True)
def first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process writes logs and warnings, whichever rank a test before had Lightning take it for."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, 'rank', 0)


@pytest.fixture(scope='session')
def mixes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Two mixes of two streams, 96 and 101 samples; `id` is the number of a sample in its mix."""
    root = tmp_path_factory.mktemp('streams')
    mixes: dict[str, dict[str, str]] = {}
    for name, sizes in SIZES.items():
        first = 0
        mixes[name] = {}
        for stream, size in zip('ab', sizes, strict=True):
            folder = root / name / stream
            columns = {'id': 'int', 'row': 'ndarray:float32:4'}
            with MDSWriter(out=str(folder), columns=columns, size_limit=600) as writer:
                for number in range(first, first + size):
                    writer.write({'id': number, 'row': np.full(4, number, np.float32)})
            mixes[name][stream] = str(folder)
            first += size
    return mixes


@pytest.fixture
def run(mixes: dict[str, dict[str, str]], tmp_path: Path) -> Run:
    from tests.support.trainers.lightning_run import Run

    return Run(name='run', out=str(tmp_path), streams=mixes['even'])


@pytest.fixture
def yaml(mixes: dict[str, dict[str, str]], tmp_path: Path) -> str:
    streams = '\n'.join(f'    {name}: {{local: {folder}}}' for name, folder in mixes['even'].items())
    path = tmp_path / 'mix.yaml'
    path.write_text(
        f'global_batch_size: 8\ntrain:\n  shuffle: true\n  streams:\n{streams}\n'
        f'eval:\n  small: {{local: {mixes["even"]["a"]}}}\n'
        f'  large: {{local: {mixes["even"]["b"]}, device_batch_size: 5}}\n'
    )
    return str(path)
