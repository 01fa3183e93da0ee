"""Fixtures of several packages."""

from __future__ import annotations

import fcntl
import functools
import gc
import importlib.util
import os
import resource
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Processes of tests share the cores: several threads of each would wait for each other. Read where torch is imported.
os.environ.setdefault('OMP_NUM_THREADS', '1')

from headrace import MDSWriter
from headrace.errors import redaction
from headrace.storage import resolve
from headrace.storage.transfer.retry import Retry
from tests.support.programs.forking import prepare_forks
from tests.support.stores.downloads import brief_sleep
from tests.support.suite.example_counts import USUAL

if TYPE_CHECKING:
    from tests.support.servers.s3 import S3Server

# Pauses between tries would take 3 to 8 s of a test of a bad index or shard. Programs that tests start have whole ones.
Retry.__init__.__kwdefaults__['sleep'] = brief_sleep

# Servers of tests are on this machine, where no proxy is needed. All else that a developer's machine sets stays: users
# have such variables, too. `.ci/run` runs the tests without any.
for _name in 'no_proxy', 'NO_PROXY':
    os.environ[_name] = ','.join(filter(None, [os.environ.get(_name), 'localhost', '127.0.0.1']))

# A process runs thousands of tests, whose clients keep connections until garbage is collected: together more than the
# 1,024 descriptors that a login shell allows.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_descriptors = 1 << 14 if _hard == resource.RLIM_INFINITY else min(_hard, 1 << 14)
if _soft != resource.RLIM_INFINITY and _soft < _descriptors:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors, _hard))

pytest_plugins = ['tests.support.suite.durations']

REPOSITORY = Path(__file__).parents[1]
SHARED = REPOSITORY.parent / 'shared'
_SHARED_MEMORY = Path('/dev/shm')

# How long an example takes says something about the machine, which may be busy, and nothing about the code.
# The examples are the same in each run, so that a change fails by what it does; `make test-all` looks for new ones.
settings.register_profile(
    'headrace', deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=USUAL, derandomize=True
)
settings.register_profile('few', settings.get_profile('headrace'), max_examples=10)
settings.register_profile('many', settings.get_profile('headrace'), max_examples=300, derandomize=False)
settings.load_profile('headrace')

MakeDataset = Callable[..., Path]


@pytest.fixture(autouse=True)
def forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords of one test, such as "another", are words in the messages of others in the same process."""
    monkeypatch.setattr(redaction, '_kept', set(redaction._kept))


@pytest.fixture
def own_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that the test registers with `register_store` are removed when it ends."""
    monkeypatch.setattr(resolve, '_factories', dict(resolve._factories))


@pytest.fixture
def golden() -> Path:
    """The reference vectors beside the repository."""
    if not (SHARED / 'golden').is_dir():
        pytest.skip('the reference vectors (../shared/golden) are not beside this repository')
    return SHARED / 'golden' / 'open'


@pytest.fixture
def mosaicml_streaming_lock() -> Iterator[None]:
    """One test of this machine at a time: two programs may choose the same names in shared memory."""
    if not importlib.util.find_spec('streaming'):
        pytest.skip('mosaicml-streaming is not installed')
    # The folder of shared memory itself: a file of its own would belong to one user, and shut out the others.
    shared = os.open(_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(shared, fcntl.LOCK_EX)
        yield
    finally:
        os.close(shared)


@pytest.fixture
def mosaicml_streaming(mosaicml_streaming_lock: None) -> Any:
    """The module, for one test at a time."""
    return importlib.import_module('streaming')


@pytest.fixture(scope='session')
def moto() -> Iterator[S3Server]:
    """S3 in memory, one server for all tests of a process: to start one takes two CPU seconds."""
    from tests.support.servers.s3 import moto_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('MOTO_S3_DEFAULT_MAX_KEYS', '50')  # of a page of a listing: more than one takes few objects
        with moto_server() as server:
            yield server


@pytest.fixture(scope='module')
def s3_server(moto: S3Server) -> Iterator[S3Server]:
    """That, whose address and credentials are in the environment of a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in moto.environment().items():
            patch.setenv(name, value)
        yield moto


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported is garbage to no test: else each collection of one would look through all of the trainers.

    Python looks for garbage after 700 new objects, which takes a twentieth of the time of all tests. 10,000 are enough.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        prepare_forks()
        gc.set_threshold(10_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have no test's time run while it waits for another to be done with `mosaicml_streaming`.

    And spawn workers for one format of the contract only in the quick suite: each has to import torch.
    """
    for item in items:
        if item.name == 'test_workers_read_it[spawn]' and 'Jsonl' not in item.nodeid:
            item.add_marker(pytest.mark.slow)
        if any(name.startswith('mosaicml_streaming') for name in getattr(item, 'fixturenames', ())):
            own = item.get_closest_marker('timeout')
            args, kwargs = (own.args, own.kwargs) if own else ((), {})
            item.add_marker(pytest.mark.timeout(*args, **{**kwargs, 'func_only': True}), append=False)


@pytest.fixture(scope='session')
def make_dataset_in() -> MakeDataset:
    """Write a small MDS dataset with an `id` column that equals the sample's number plus `first`, below a folder."""

    def make(
        root: Path, name: str = 'data', samples: int = 100, *, per_shard: int = 10, first: int = 0, **options: object
    ) -> Path:
        folder = root / name
        # 8 bytes of id, 16 of row, 4 of offset for each sample; the header and its config stay below 500 bytes.
        limit = options.pop('size_limit', 500 + 28 * per_shard)
        columns = {'id': 'int', 'row': 'ndarray:float32:4'}
        with MDSWriter(out=str(folder), columns=columns, size_limit=limit, **options) as writer:
            for i in range(samples):
                writer.write({'id': first + i, 'row': np.full(4, first + i, np.float32)})
        return folder

    return make


@pytest.fixture
def make_dataset(tmp_path: Path, make_dataset_in: MakeDataset) -> MakeDataset:
    """The same, below a folder of the test's own."""
    return functools.partial(make_dataset_in, tmp_path)
