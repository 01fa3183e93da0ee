"""Planted secrets are in nothing that people, logs and files are shown."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headrace.errors
from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.cli import main
from headrace.errors import ConfigError, HeadraceError, StorageError
from headrace.errors.redaction import redact, redact_value
from headrace.format import get_mds_encodings
from headrace.mixing import build_loader, load_config
from headrace.storage import StoreOptions, open_store, split_url
from headrace.storage.resolve import backends
from tests.support.servers.in_process import Handler, serving
from tests.support.servers.paramiko_server import paramiko_server
from tests.support.suite.planted import (
    PASSWORD,
    SIGNATURE,
    TOKEN,
    USER,
    VARIABLE,
    found_in,
    found_in_error,
    found_in_files,
    planted_url,
    register_planted_store,
)

VARIABLES = {
    'AWS_ACCESS_KEY_ID': 'AKIDEXAMPLE',
    'AWS_SECRET_ACCESS_KEY': VARIABLE,
    'AZURE_STORAGE_SAS_TOKEN': f'sv=2024&sig={SIGNATURE}',
    'DATABRICKS_TOKEN': VARIABLE,
    'GOOGLE_CLOUD_PROJECT': 'project',
    'HEADRACE_SFTP_PASSWORD': VARIABLE,
    'HF_TOKEN': VARIABLE,
}


STORES: dict[str, tuple[str, str, dict[str, Any]]] = {
    's3': ('boto3', 's3://bucket/x', {}),
    's3 unsigned': ('boto3', 's3://bucket/x', {'anonymous': True}),
    'gs': ('google.cloud.storage', 'gs://bucket/x', {'anonymous': True}),
    'azure': ('azure.storage.blob', 'azure://container/x', {'extra': {'account_name': 'account'}}),
    'oci': ('oci', 'oci://bucket@namespace/x', {'anonymous': True}),
    'hf': ('huggingface_hub', 'hf://datasets/org/repo/x', {}),
    'dbfs': ('databricks.sdk', 'dbfs:/Volumes/a/b/c/x', {}),
}


REFUSED_URLS = [
    f's3://AKID:{PASSWORD}@bucket/x',
    f's3://{USER}@bucket/x',
    f'gs://{USER}@bucket/x',
    f'oci://{USER}@bucket/x',
    f'sftp://{USER}@host/x',
    f'azure://account.blob.core.windows.net/container/x?sv=2024&sig={SIGNATURE}',
    f's3://bucket/x?X-Amz-Signature={SIGNATURE}',
    f'unknown://{USER}@host/x',
]


class _Echo(Handler):
    """Refuses, and tells all that it was sent."""

    def handle_any(self, body: bytes) -> None:
        if self.server.hangs_up:
            self.close_connection = True
            return
        told = f'{self.path} {" ".join(f"{name}: {value}" for name, value in self.headers.items())}'
        text = f'<Error><Code>AccessDenied</Code><Message>{told}</Message></Error>'
        self.answer(self.server.status, {'x-error-message': told.replace('\n', ' ')}, text.encode())


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with serving(_Echo) as server:
        server.status, server.hangs_up = 403, False
        yield server


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, make_dataset: Any, tmp_path: Path) -> Path:
    """A data set that can be read at `planted_url`, and a configuration that reads it."""
    for name in ('planted', 'code'):
        make_dataset(name, 40)
    register_planted_store(monkeypatch)
    monkeypatch.setenv('PLANTED_PASSWORD', USER.partition(':')[2])
    monkeypatch.setenv('PLANTED_TOKEN', TOKEN)
    (tmp_path / 'mix.yaml').write_text(
        f"""
        global_batch_size: 4
        train:
          remote: planted://reader:${{oc.env:PLANTED_PASSWORD}}@host{tmp_path}/planted
          local: {tmp_path}/cache
          endpoint_url: http://reader:${{oc.env:PLANTED_PASSWORD}}@host:9000/?sig={SIGNATURE}
          store_options: {{api_token: "${{oc.env:PLANTED_TOKEN}}"}}
        """
    )
    return tmp_path


def verbs(store: Any) -> list[Callable[[], object]]:
    return [
        lambda: store.get('key', io.BytesIO()),
        lambda: store.put('key', io.BytesIO(b'1'), size=1),
        lambda: store.head('key'),
        lambda: list(store.list('')),
        lambda: store.delete('key'),
    ]


@pytest.mark.parametrize('name', STORES)
def test_errors_of_stores(name: str, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages and tracebacks, whatever the server does."""
    package, url, options = STORES[name]
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f'{package} is not installed')
    for variable, value in VARIABLES.items():
        monkeypatch.setenv(variable, value)
    query, user = (f'/?sv=2024&sig={SIGNATURE}', '') if name == 'azure' else ('', f'{USER}@')
    for place, most in ((f'127.0.0.1:{server.server_port}', 5), ('127.0.0.1:9', 1)):
        store = open_store(url, StoreOptions(endpoint_url=f'http://{user}{place}{query}', **options))
        assert not found_in(repr(store) + repr(store.options))
        for server.status, server.hangs_up in [(403, False), (500, False), (403, True)][:most]:
            for verb in verbs(store)[:most]:
                failure: Exception | None = None
                try:
                    verb()
                except Exception as error:  # OCI's SDK refuses the user in an URL by an error of its own
                    failure = error
                assert failure is not None
                assert not found_in_error(failure)


@pytest.fixture
def ssh_server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A server that greets with the password, and lets nobody but `other` in: its port, and a file with its key."""
    paramiko = pytest.importorskip('paramiko')

    class Greeter(paramiko.ServerInterface):
        def get_banner(self) -> tuple[str, str]:
            return f'You sent {VARIABLE}', 'en'

        def check_auth_password(self, username: str, password: str) -> int:
            is_right = (username, password) == ('other', VARIABLE)
            return paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED

    with paramiko_server(tmp_path, Greeter) as started:
        yield started


def test_errors_of_sftp(
    ssh_server: tuple[int, Path], server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port, known = ssh_server
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.delenv('SSH_AUTH_SOCK', raising=False)
    monkeypatch.setenv('HEADRACE_SFTP_PASSWORD', VARIABLE)
    options = StoreOptions(extra={'known_hosts': str(known)})
    for user, place, reason in (
        ('reader', port, 'the password of HEADRACE_SFTP_PASSWORD'),
        ('other', port, 'has no SFTP for this user'),
        ('reader', server.server_port, 'no SSH session'),
        ('reader', 9, 'no connection'),
    ):
        store = open_store(f'sftp://{user}@127.0.0.1:{place}/x', options)
        assert not found_in(repr(store))
        for verb in verbs(store):
            with pytest.raises(StorageError, match=reason) as failure:
                verb()
            assert not found_in_error(failure.value)


def test_errors_of_webhdfs(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('requests')
    monkeypatch.setenv('HEADRACE_WEBHDFS_PASSWORD', VARIABLE)
    store = open_store(f'webhdfs://reader@127.0.0.1:{server.server_port}/x')
    for server.status, server.hangs_up in [(403, False), (500, False), (403, True)]:
        for verb in verbs(store):
            with pytest.raises(StorageError, match='webhdfs') as failure:
                verb()
            assert not found_in(repr(store) + repr(store.options))
            assert not found_in_error(failure.value)


def test_every_store_is_tried() -> None:
    tried = {split_url(url)[0] for _, url, _ in STORES.values()} | {'sftp', 'webhdfs'}
    modules = {backend.module: split_url(backend.example)[0] in tried for backend in reversed(backends())}
    assert [module for module, is_tried in modules.items() if not is_tried] == ['local']  # sends no secrets


@pytest.mark.parametrize('url', REFUSED_URLS)
def test_a_url_with_credentials_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)
    assert not found_in_error(refused.value)
    with pytest.raises(ConfigError) as refused:
        StreamingDataset(remote=url, local=str(tmp_path / 'cache'))
    assert not found_in_error(refused.value)


@pytest.mark.parametrize(
    'url',
    ['s3://bucket/a:b@c', 'oci://bucket@namespace/x', 'hf://datasets/o/r@main/x', 's3://bucket/what?x=1', 'dbfs:/x'],
)
def test_a_url_that_only_looks_like_it_is_opened(url: str) -> None:
    assert redact(url) == url
    open_store(url)


def test_reprs_states_files_and_logs_of_a_run(planted: Path, caplog, capsys, recwarn) -> None:
    caplog.set_level(logging.DEBUG, logger='headrace')
    first = sorted((planted / 'planted').glob('*.mds'))[0]
    whole = first.read_bytes()
    shown = []
    for number, (key, data) in enumerate(
        [('train.on_bad_sample=skip', b'x' * len(whole)), ('train.where={id: {at_least: 2}}', whole)]
    ):
        first.write_bytes(data)
        config = load_config(planted / 'mix.yaml', overrides=[key, f'train.local={planted}/cache/{number}'])
        shown += [repr(config), repr(config.train)]
        loader = build_loader(config.train)
        assert len(list(loader)) > 8
    dataset = loader.dataset
    shown += [repr(each) for each in (loader, dataset, *dataset.streams, dataset.pool.streams[0].cache.store)]
    shown += [json.dumps(loader.state_dict()), str(dataset.state_dict(4, False)), str(loader.stats())]
    shown += [caplog.text, *(str(each.message) for each in recwarn), *capsys.readouterr()]
    assert 'where keeps' in caplog.text
    assert 'cannot be read' in caplog.text
    assert 'planted://reader:***@host' in caplog.text
    assert not found_in('\n'.join(shown))
    assert (planted / 'cache' / '1' / '.headrace-remote').exists()
    assert not found_in_files(planted / 'cache')


def test_the_commands(planted: Path, capsys) -> None:
    config = str(planted / 'mix.yaml')
    assert main(['explain', config]) == 0
    assert main(['explain', config, '--json']) == 0
    assert main(['explain', config, '--sample', '3']) == 0
    assert main(['skip', config, '--step', '3']) == 0
    assert main(['skip', config, '--step', '3', '--json']) == 0
    assert main(['skip', config, '--step', '3', '--write', str(planted / 'out.yaml')]) == 0
    assert main(['explain', config, f'train.remote=planted://{USER}@host/nowhere', f'train.local={planted}/c']) == 1
    foundry = {
        'global_train_batch_size': 4,
        'train_loader': {'name': 'text', 'dataset': {'remote': planted_url(planted)}},
    }
    (planted / 'foundry.yaml').write_text(json.dumps(foundry))
    assert main(['convert-config', str(planted / 'foundry.yaml')]) == 0
    out, err = capsys.readouterr()
    assert 'planted://reader:***@host' in out
    assert 'planted://reader:***@host' in err
    assert 'Secrets are left out' in err
    assert not found_in(out + err)
    assert not found_in((planted / 'out.yaml').read_text())


def test_the_commands_that_look_inside(planted: Path, capsys) -> None:
    url, other = planted_url(planted / 'planted'), planted_url(planted / 'code')
    assert main(['inspect', url]) == 0
    assert main(['inspect', url, '--json']) == 0
    assert main(['cp', url, planted_url(planted / 'copy')]) == 0
    assert main(['cp', url, planted_url(planted / 'copy'), '--json']) == 0
    (planted / 'code' / 'index.json').write_text('{"version": 2, "shards": []}')
    assert main(['cp', url, other]) == 1
    assert main(['reshard', url, planted_url(planted / 'again')]) == 0
    assert main(['reshard', url, other]) == 1
    assert main(['reshard', url, planted_url(planted / 'third'), '--json']) == 0
    assert main(['merge', planted_url(planted), planted_url(planted / 'planted' / 'index.json')]) == 0
    (planted / 'planted' / 'shard.00000.mds').unlink()
    for more in ([], ['--json'], ['--fast']):
        assert main(['verify', url, '-j', '1', *more]) == 1
    assert main(['cp', url, planted_url(planted / 'fourth')]) == 1
    assert main(['inspect', planted_url(planted / 'nothing')]) == 1
    out, err = capsys.readouterr()
    assert 'planted://' in out
    assert 'planted://' in err
    assert not found_in(out + err)
    assert not found_in_files(planted / 'copy')


def test_an_error_of_a_worker(planted: Path) -> None:
    dataset = StreamingDataset(remote=planted_url(planted / 'planted'), local=f'{planted}/c', batch_size=4)
    for shard in (planted / 'planted').glob('*.mds'):
        shard.unlink()
    with pytest.raises(HeadraceError, match=r'planted://reader:\*\*\*@host') as failed:
        list(StreamingDataLoader(dataset, num_workers=1))
    assert not found_in_error(failed.value)


def test_a_dataset_whose_cache_is_of_another_remote(planted: Path) -> None:
    first, second = (Stream(remote=planted_url(planted / name), local=f'{planted}/c') for name in ('planted', 'code'))
    StreamingDataset(streams=[first], batch_size=4)
    with pytest.raises(HeadraceError, match='is the cache of') as refused:
        StreamingDataset(streams=[second], batch_size=4)
    assert not found_in_error(refused.value)


def test_another_password_is_the_same_remote(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords change; a cache stays."""
    url = planted_url(planted / 'planted')
    StreamingDataset(remote=url, local=f'{planted}/c', batch_size=4)
    StreamingDataset(remote=url.replace(USER, 'reader:another'), local=f'{planted}/c', batch_size=4)


@pytest.mark.parametrize('name', headrace.errors.__all__)
def test_every_error(name: str) -> None:
    error = getattr(headrace.errors, name)(f'at http://{USER}@host: x?sig={SIGNATURE}')
    copy = pickle.loads(pickle.dumps(error))
    for each in (error, copy):
        assert 'http://reader:***@host' in str(each)
        assert not found_in_error(each)


@pytest.mark.parametrize('encoding', [*sorted(get_mds_encodings()), 'ndarray:uint16:2,3'])
def test_columns_that_are_called_tokens_keep_their_encodings(encoding: str) -> None:
    columns = {'token': encoding, 'num_token': 5, 'label': 'int'}
    assert redact(f'got {columns}') == f'got {columns}'
    assert redact_value(columns) == columns
