"""Loopback servers, once per session, and empty stores on them."""

import os
from pathlib import Path

import pytest

from tests.support.servers.s3 import have_rgw, rgw_server
from tests.support.stores.contract_rows import mark_slow_rows


@pytest.fixture(scope='session')
def s3_environment(tmp_path_factory):
    """Credentials that both servers accept; nothing of the user's own configuration."""
    names = ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_EC2_METADATA_DISABLED', 'AWS_CONFIG_FILE')
    saved = {name: os.environ.get(name) for name in (*names, 'S3_ENDPOINT_URL')}
    empty = tmp_path_factory.mktemp('aws') / 'config'
    empty.touch()
    os.environ.update(zip(names, ('testkey', 'testsecret', 'true', str(empty)), strict=True))
    os.environ.pop('S3_ENDPOINT_URL', None)
    yield
    for name, value in saved.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope='session')
def moto(s3_environment, moto):
    return moto


@pytest.fixture(scope='session')
def rgw(s3_environment):
    if not have_rgw() or os.geteuid():
        pytest.skip('needs root and: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd')
    with rgw_server() as server:
        yield server


@pytest.fixture(scope='session', params=['moto', 'rgw'])
def s3_server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / 'small'
    folder.mkdir()
    if os.geteuid() or os.system(f'mount -t tmpfs -o size=1m tmpfs {folder} 2>/dev/null'):
        pytest.skip('needs the right to mount a tmpfs')
    yield folder
    os.system(f'umount -l {folder}')  # what is mapped of it may be so still


@pytest.fixture(autouse=True)
def nothing_in_shared_memory():
    """No test leaves anything in /dev/shm."""
    shm = Path('/dev/shm')
    before = set(shm.glob('*headrace*'))
    yield
    assert set(shm.glob('*headrace*')) == before


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_slow_rows(items)
