"""S3 on the loopback interface.

``moto`` answers like S3, in memory; it accepts any credentials. Ceph's RADOS gateway is a real store. It needs Debian's
packages: ``apt-get install --no-install-recommends radosgw ceph-mon ceph-osd``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import secrets
import shutil
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError
from headrace.storage.protocol import StoreOptions
from headrace.storage.stores.s3 import S3Store
from tests.support.servers.process import START_TIMEOUT, free_port, quietly, running, wait_for_http, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['S3Server', 'have_rgw', 'moto_server', 'rgw_server']


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3 server."""

    name: str
    endpoint_url: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)

    def client(self) -> Any:
        """A boto3 client with the server's own credentials, for setting up buckets."""
        return _client(self)

    def environment(self) -> dict[str, str]:
        """Environment variables for ``s3://`` URLs of this server."""
        return {
            'S3_ENDPOINT_URL': self.endpoint_url,
            'AWS_ACCESS_KEY_ID': self.access_key,
            'AWS_SECRET_ACCESS_KEY': self.secret_key,
            'AWS_EC2_METADATA_DISABLED': 'true',
        }

    def new_bucket(self) -> str:
        """Make a bucket with a new name."""
        name = f'headrace-{secrets.token_hex(6)}'
        self.client().create_bucket(Bucket=name)
        return name

    def store(self, bucket: str, prefix: str = '', **options: Any) -> S3Store:
        """A store of this server; the credentials are taken from the environment."""
        return S3Store(
            bucket, prefix, StoreOptions(endpoint_url=options.pop('endpoint_url', self.endpoint_url), **options)
        )


@functools.cache
def _client(server: S3Server) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        's3',
        endpoint_url=server.endpoint_url,
        region_name='us-east-1',
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(request_checksum_calculation='when_required', response_checksum_validation='when_required'),
    )


@contextlib.contextmanager
def moto_server() -> Generator[S3Server]:
    """Run ``moto_server`` in a separate process.

    Raises:
        MissingDependencyError: moto is not installed.
    """
    if importlib.util.find_spec('moto') is None:
        raise MissingDependencyError("moto is not installed. Run: pip install 'moto[server]'")
    port = free_port()
    with running([sys.executable, '-m', 'moto.server', '-H', '127.0.0.1', '-p', str(port)]) as process:
        wait_for_http(port, process)
        yield S3Server('moto', f'http://127.0.0.1:{port}', 'testkey', 'testsecret')


def have_rgw() -> bool:
    """Whether Ceph's gateway and its dependencies are installed."""
    programs = ('radosgw', 'radosgw-admin', 'ceph', 'ceph-mon', 'ceph-osd', 'ceph-authtool', 'monmaptool')
    return all(shutil.which(program) for program in programs)


@contextlib.contextmanager
def rgw_server() -> Generator[S3Server]:
    """Run a Ceph cluster of one monitor, one in-memory OSD and one RADOS gateway; needs root."""
    if not have_rgw():
        raise MissingDependencyError(
            'The RADOS gateway is not installed. Run: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd'
        )
    with (
        tempfile.TemporaryDirectory(prefix='rgw-', ignore_cleanup_errors=True) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        port, monitor = free_port(), free_port()
        _write_ceph_files(folder, port, monitor)

        def run(*command: str) -> str:
            done = subprocess.run(
                [command[0], '-c', str(folder / 'ceph.conf'), *command[1:]],
                check=True,
                capture_output=True,
                text=True,
                timeout=START_TIMEOUT,
            )
            return done.stdout

        def start(*command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(running([command[0], '-c', str(folder / 'ceph.conf'), *command[1:], '-f']))

        keyring, monmap = str(folder / 'keyring'), str(folder / 'monmap')
        run('ceph-mon', '--mkfs', '-i', 'a', '--monmap', monmap, '--keyring', keyring)
        start('ceph-mon', '-i', 'a')
        wait_until(lambda: run('ceph', '--connect-timeout', '5', '-s') != '')
        osd = str(uuid.uuid4())
        run('ceph', 'osd', 'new', osd, '0')
        run('ceph-osd', '-i', '0', '--mkfs', '--osd-uuid', osd)
        start('ceph-osd', '-i', '0')
        wait_until(lambda: '1 up' in run('ceph', 'osd', 'stat'))
        gateway = start('radosgw', '-n', 'client.rgw.a')
        key, secret = 'testkey', 'testsecret'
        run(
            'radosgw-admin',
            'user',
            'create',
            '--uid=t',
            '--display-name=t',
            f'--access-key={key}',
            f'--secret={secret}',
        )
        wait_for_http(port, gateway)
        yield S3Server('rgw', f'http://127.0.0.1:{port}', key, secret)


def _write_ceph_files(folder: Path, port: int, monitor: int) -> None:
    fsid = str(uuid.uuid4())
    settings = {
        'fsid': fsid,
        'mon host': f'v1:127.0.0.1:{monitor}',
        'public addr': '127.0.0.1',
        'cluster addr': '127.0.0.1',
        'osd pool default size': 1,
        'osd pool default min size': 1,
        'osd pool default pg num': 4,
        'osd pool default pg autoscale mode': 'off',
        'osd crush chooseleaf type': 0,
        'mon allow pool size one': 'true',
        'mon max pg per osd': 1000,
        'mon data avail warn': 2,
        'mon data avail crit': 1,
        # Without a manager daemon the monitor would take 14 s to settle.
        'paxos propose interval': 0.05,
        'paxos min wait': 0.01,
        'osd objectstore': 'memstore',
        'memstore device bytes': 8 << 30,
        'run dir': folder,
        'admin socket': folder / '$name.asok',
        'log file': folder / '$name.log',
        'keyring': folder / 'keyring',
        'mon data': folder / 'mon',
        'osd data': folder / 'osd',
        'rgw data': folder / 'rgw',
        # Without the option, the last bytes of a small answer wait 40 ms for an acknowledgement.
        'rgw frontends': f'beast endpoint=127.0.0.1:{port} tcp_nodelay=1',
        'rgw run sync thread': 'false',
        # Otherwise replaced objects stay in memory for two hours.
        'rgw gc obj min wait': 1,
        'rgw gc processor period': 5,
    }
    (folder / 'ceph.conf').write_text('[global]\n' + ''.join(f'{name} = {value}\n' for name, value in settings.items()))
    for name in ('mon', 'osd', 'rgw'):
        (folder / name).mkdir()
    keyring = str(folder / 'keyring')
    users = {
        'mon.': ['--cap', 'mon', 'allow *'],
        'client.admin': ['--cap', 'mon', 'allow *', '--cap', 'osd', 'allow *', '--cap', 'mgr', 'allow *'],
        'client.rgw.a': ['--cap', 'mon', 'allow *', '--cap', 'osd', 'allow *'],
        'osd.0': ['--cap', 'mon', 'allow *', '--cap', 'osd', 'allow *'],
    }
    for number, (user, capabilities) in enumerate(users.items()):
        create = ['--create-keyring'] if not number else []
        quietly('ceph-authtool', *create, keyring, '--gen-key', '-n', user, *capabilities)
    address = f'[v1:127.0.0.1:{monitor}]'
    quietly('monmaptool', '--create', '--clobber', '--fsid', fsid, '--addv', 'a', address, str(folder / 'monmap'))
