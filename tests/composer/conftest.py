from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

try:
    import composer.core  # noqa: F401 - this folder alone would pass for a package of that name
except ImportError:
    collect_ignore_glob = ['*']
else:
    from tests.support.trainers import composer_machine  # noqa: F401
    from tests.support.trainers.composer_runs import make_data


@pytest.fixture(scope='session')
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith('popen-') else base) / 'composer'
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope='session')
def data(shared: Path) -> str:
    """96 samples: 12 global batches of 8."""
    return _once(shared, 'data', lambda folder: make_data(folder, 96))


@pytest.fixture(scope='session')
def uneven(shared: Path) -> str:
    """101 samples: the last of 13 global batches of 8 has 5."""
    return _once(shared, 'uneven', lambda folder: make_data(folder, 101))


def _once(shared: Path, name: str, make: Callable[[Path], object]) -> str:
    """The folder that `make` fills; the first process of the test run that needs it calls `make`."""
    with open(shared / f'{name}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shared / f'{name}.done'
        if not done.exists():
            make(shared / name)
            done.touch()
    return str(shared / name)
