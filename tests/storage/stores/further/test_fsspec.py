"""File systems of fsspec: WebHDFS."""

from __future__ import annotations

import pickle
import secrets
import threading
from typing import ClassVar

import pytest

from headrace.errors import AccessDeniedError, ConfigError, StorageError, TransferError
from headrace.storage import StoreOptions, fsspec_store, open_store, register_store, resolve
from headrace.storage.stores.further.fsspec import Connection
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import DATA, ProxiedStore, StoreFaultContract
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.servers.webhdfs import webhdfs_server

pytestmark = pytest.mark.cloud


@pytest.fixture(scope='module')
def name_node():
    pytest.importorskip('requests', reason='needs: pip install "headrace[fsspec]"')
    with webhdfs_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch):
    for name in ('HEADRACE_WEBHDFS_PASSWORD', 'HEADRACE_WEBHDFS_TOKEN'):
        monkeypatch.delenv(name, raising=False)


class TestFsspecStore(StoreContract):
    ROW = '`webhdfs://`: our own server'

    @pytest.fixture
    def store(self, name_node):
        return open_store(name_node.url(name_node.new_folder() + '/some/folder'))


class TestMemory(StoreContract):
    """A file system that headrace knows nothing of."""

    @pytest.fixture
    def store(self, monkeypatch):
        monkeypatch.setattr(resolve, '_factories', dict(resolve._factories))
        register_store('memory', fsspec_store)
        return open_store(f'memory://{secrets.token_hex(6)}/some/folder')


class TestFsspecFaults(StoreFaultContract):
    ROW = '`webhdfs://`: our own server'

    # A read asks for the status first.
    BROKEN_BODIES: ClassVar = {
        'reset': lambda after: Fault(match='GET /data', reset_after=after, times=1),
        'truncated': lambda after: Fault(match='GET /data', close_after=after, times=1),
        'stalled': lambda after: Fault(match='GET /data', stall_after=after, times=1),
    }

    @pytest.fixture
    def direct(self, name_node):
        return open_store(name_node.url(name_node.new_folder()))

    @pytest.fixture
    def proxied(self, name_node, direct, read_timeout):
        with FaultProxy(f'http://127.0.0.1:{name_node.port}') as proxy:
            port = proxy.endpoint_url.rpartition(':')[2]
            options = StoreOptions(read_timeout=read_timeout, connect_timeout=read_timeout)
            yield ProxiedStore(
                open_store(
                    f'webhdfs://someone@127.0.0.1:{port}/{direct.url.partition("://")[2].partition("/")[2]}', options
                ),
                proxy,
            )


class TestConnection:
    def test_a_call_that_does_not_answer_is_given_up_and_the_connection_with_it(self):
        released = threading.Event()
        connection = Connection(object, 0.05)
        with pytest.raises(TimeoutError, match='no answer for 0.05 s'):
            connection.call(released.wait)
        assert not connection.is_usable
        with pytest.raises(TimeoutError, match='given up'):
            connection.call(int)
        released.set()

    @pytest.mark.parametrize(('error', 'is_usable'), [(FileNotFoundError, True), (OSError, False), (ValueError, False)])
    def test_it_is_used_again_after_a_refusal_only(self, error, is_usable):
        connection = Connection(object, 60.0)

        def fail():
            raise error('no')

        with pytest.raises(error):
            connection.call(fail)
        assert connection.call(int) == 0
        assert connection.is_usable is is_usable


class TestErrors:
    @pytest.fixture
    def store(self, name_node):
        store = open_store(name_node.url(name_node.new_folder()))
        store.root = f'/{store.url.rpartition("/")[2]}'
        return store

    @pytest.fixture
    def token(self, name_node, monkeypatch):
        monkeypatch.setattr(name_node, 'token', 'a-secret-token')
        return 'a-secret-token'

    def test_a_token_comes_from_the_environment_and_stays_there(self, name_node, token, monkeypatch):
        url = name_node.url(name_node.new_folder()).replace('someone@', '')
        store = open_store(url)
        with pytest.raises(AccessDeniedError, match=r'made with the user of the URL and no secret'):
            put_bytes(store, 'x', b'1')
        monkeypatch.setenv('HEADRACE_WEBHDFS_TOKEN', token)
        store = open_store(url)
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'
        assert token.encode() not in pickle.dumps(store)
        monkeypatch.setattr(name_node, 'token', 'another')
        with pytest.raises(AccessDeniedError, match='HEADRACE_WEBHDFS_TOKEN') as caught:
            read_bytes(store, 'x')
        assert token not in repr((caught.value, caught.value.__cause__, caught.value.__context__))

    def test_arguments_that_do_not_go_together_are_a_configuration_error(self, name_node, monkeypatch):
        monkeypatch.setenv('HEADRACE_WEBHDFS_TOKEN', 'a-token')
        with pytest.raises(ConfigError, match='must not set user or proxy_to'):
            read_bytes(open_store(name_node.url('/x')), 'x')

    def test_a_missing_folder_is_named(self, store):
        with pytest.raises(FileNotFoundError, match=f'the folder {store.root}/a does not exist at'):
            store.head('a/b/x')
        put_bytes(store, 'a/x', b'1')
        with pytest.raises(FileNotFoundError, match='it is no regular file, but a directory'):
            store.head('a')

    def test_a_file_that_grows_while_it_is_read_is_refused(self, name_node, store, monkeypatch):
        put_bytes(store, 'x', DATA)

        class Replacing:
            def write(self, data):
                name_node.create(f'{store.root}/x', DATA + b'1')
                return len(data)

        with pytest.raises(TransferError, match='changed'):
            store.get('x', Replacing())

    def test_an_error_of_a_data_node_is_not_taken_for_the_file(self, name_node, store):
        put_bytes(store, 'x', DATA)
        with FaultProxy(f'http://127.0.0.1:{name_node.port}') as proxy:
            proxy.faults = [Fault(match='GET /data', status=500, times=1)]
            port = proxy.endpoint_url.rpartition(':')[2]
            through = open_store(f'webhdfs://someone@127.0.0.1:{port}{store.root}')
            with pytest.raises(TransferError, match='500 Server Error'):
                read_bytes(through, 'x')
            assert read_bytes(through, 'x') == DATA

    def test_a_file_that_cannot_be_replaced_stays(self, name_node, store, monkeypatch):
        put_bytes(store, 'x', b'1')
        rename, calls = name_node.rename, []

        def failing(old, new):
            calls.append(new)
            return rename(old, new) if len(calls) != 2 else False  # the new file's turn

        monkeypatch.setattr(name_node, 'rename', failing)
        with pytest.raises((StorageError, FileNotFoundError)):
            put_bytes(store, 'x', b'2')
        assert read_bytes(store, 'x') == b'1'
        assert [info.key for info in store.list('')] == ['x']

    def test_a_file_system_that_does_not_tell_changes_is_refused(self, store):
        with pytest.raises(StorageError, match='does not say when'):
            store._info('x', {'type': 'file', 'size': 1})

    def test_a_scheme_that_fsspec_does_not_know_is_a_configuration_error(self, monkeypatch):
        monkeypatch.setattr(resolve, '_factories', dict(resolve._factories))
        register_store('unknown', fsspec_store)
        with pytest.raises(ConfigError, match="no scheme 'unknown'"):
            read_bytes(open_store('unknown://host/x'), 'x')

    def test_an_upload_that_fails_leaves_nothing_behind(self, name_node, store):
        put_bytes(store, 'x', b'1')
        name_node.rename = lambda old, new: False
        try:
            with pytest.raises(StorageError, match='is not what was sent|No such file'):
                put_bytes(store, 'y', b'2')
        finally:
            del name_node.rename
        assert [path for path in name_node.files if path.startswith(store.root)] == [f'{store.root}/x']

    def test_a_folder_that_holds_itself_is_refused(self, name_node, store, monkeypatch):
        monkeypatch.setattr(
            name_node, 'status', lambda path, suffix='': {'type': 'DIRECTORY', 'length': 0} | {'pathSuffix': suffix}
        )
        monkeypatch.setattr(name_node, 'children', lambda path: [name_node.status('', 'again')])
        with pytest.raises(StorageError, match='holds itself'):
            list(store.list(''))

    def test_uploads_of_killed_processes_are_removed_from_named_folders(self, name_node, store):
        put_bytes(store, 'a/x', b'1')
        names = {f'{store.root}/{name}.headrace-put-left' for name in ('', 'a/', 'b/')}
        for name in names:
            name_node.create(name, b'1')
        store.remove_unfinished(['', 'a', 'gone'])
        assert names & set(name_node.files) == {f'{store.root}/b/.headrace-put-left'}
        assert [info.key for info in store.list('')] == ['a/x']


class TestUrls:
    def test_forms(self):
        store = open_store('webhdfs://me@node:9870/a b/c/')
        assert store.url == 'webhdfs://me@node:9870/a b/c'
        assert repr(store) == "FsspecStore('webhdfs://me@node:9870/a b/c')"

    @pytest.mark.parametrize('url', ['webhdfs://', 'webhdfs:///a'])
    def test_one_without_a_host_is_refused(self, url):
        pytest.importorskip('requests', reason='needs: pip install "headrace[fsspec]"')
        with pytest.raises(ConfigError, match='makes no file system.*host'):
            read_bytes(open_store(url), 'x')

    def test_a_password_is_refused(self):
        with pytest.raises(ConfigError, match='holds no password') as caught:
            open_store('webhdfs://me:secret@node:9870/a')
        assert 'secret' not in str(caught.value)

    @pytest.mark.parametrize('name', ['token', 'password', 'port'])
    def test_other_options_are_refused(self, name):
        pytest.importorskip('requests', reason='needs: pip install "headrace[fsspec]"')
        store = open_store('webhdfs://node:9870/a', StoreOptions(extra={name: '1'}))
        with pytest.raises(ConfigError, match=r"Extra options of a store of webhdfs:// are .*'use_https'"):
            read_bytes(store, 'x')
