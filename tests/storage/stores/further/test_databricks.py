"""Volumes of a Databricks workspace, and DBFS, its file system before them."""

from __future__ import annotations

import os
import time
from typing import ClassVar

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import Retry, StoreOptions, download, open_store, split_url
from headrace.storage.stores.further.databricks import DbfsStore, VolumeStore
from headrace.testing.proxy import Fault
from headrace.testing.store_faults import DATA, OPERATIONS
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.stores.databricks_faults import DatabricksFaults
from tests.support.stores.store_environments import databricks_environment  # noqa: F401

pytestmark = pytest.mark.cloud


@pytest.fixture(params=['volume', 'dbfs'])
def folder(request, workspace):
    return workspace.new_volume() if request.param == 'volume' else workspace.new_folder()


class TestVolumeStore(StoreContract):
    ROW = '`dbfs:/Volumes`: our own server'

    @pytest.fixture
    def store(self, workspace):
        return open_store(f'dbfs:{workspace.new_volume()}/some/folder')


class TestVolumeFaults(DatabricksFaults):
    ROW = '`dbfs:/Volumes`: our own server'

    @pytest.fixture
    def direct(self, workspace):
        return open_store(f'dbfs:{workspace.new_volume()}')


class TestErrors:
    def test_a_missing_file_says_that_its_volume_exists(self, workspace):
        volume = workspace.new_volume()
        store = open_store(f'dbfs:{volume}/p')
        for call in (store.head, lambda key: read_bytes(store, key)):
            with pytest.raises(ObjectNotFoundError, match=f'dbfs:{volume}/p/x: the volume {volume} exists'):
                call('x')

    def test_a_missing_volume_is_named(self):
        store = open_store('dbfs:/Volumes/a/b/c/p')
        calls = (lambda: store.head('x'), lambda: read_bytes(store, 'x'), lambda: list(store.list('')))
        for call in (*calls, lambda: put_bytes(store, 'x', b'1')):
            with pytest.raises(ObjectNotFoundError, match='the volume /Volumes/a/b/c does not exist'):
                call()

    def test_a_missing_folder_of_dbfs_is_named(self, workspace):
        folder = workspace.new_folder()
        with pytest.raises(ObjectNotFoundError, match=f'the folder {folder} exists'):
            open_store(f'dbfs:{folder}').head('x')
        with pytest.raises(ObjectNotFoundError, match=f'the folder {folder}/a does not exist'):
            read_bytes(open_store(f'dbfs:{folder}/a'), 'x')
        with pytest.raises(ObjectNotFoundError, match='it is a folder'):
            open_store('dbfs:/').head(folder.strip('/'))

    def test_a_wrong_token_names_its_source_and_the_workspace(self, workspace, folder, monkeypatch):
        monkeypatch.setenv('DATABRICKS_TOKEN', 'wrong-token')
        store = open_store(f'dbfs:{folder}')
        calls = (lambda: read_bytes(store, 'x'), lambda: store.head('x'), lambda: list(store.list('')))
        for call in (*calls, lambda: put_bytes(store, 'x', b''), lambda: store.delete('x')):
            with pytest.raises(AccessDeniedError, match=rf"{workspace.host}.*'pat' credentials.*TOKEN") as caught:
                call()
            assert 'wrong-token' not in str(caught.value)

    def test_no_credentials_at_all(self, folder, monkeypatch):
        monkeypatch.delenv('DATABRICKS_TOKEN')
        with pytest.raises(AccessDeniedError, match='databricks-sdk found none that work'):
            read_bytes(open_store(f'dbfs:{folder}'), 'x')

    def test_an_unknown_profile_is_a_configuration_error(self, folder, tmp_path):
        (tmp_path / '.databrickscfg').write_text('[other]\nhost = x\n')
        with pytest.raises(ConfigError, match='no-such-profile'):
            read_bytes(open_store(f'dbfs:{folder}', StoreOptions(extra={'profile': 'no-such-profile'})), 'x')

    def test_two_kinds_of_credentials_are_a_configuration_error(self, folder, monkeypatch):
        monkeypatch.setenv('DATABRICKS_CLIENT_ID', 'a-client')
        monkeypatch.setenv('DATABRICKS_CLIENT_SECRET', 'a-secret')
        with pytest.raises(ConfigError, match='more than one authorization method') as caught:
            read_bytes(open_store(f'dbfs:{folder}'), 'x')
        assert 'a-secret' not in str(caught.value)

    def test_no_one_listens(self, folder, monkeypatch):
        from databricks.sdk.clock import RealClock

        slept, sleep = [], RealClock.sleep

        def noted(clock, seconds):
            slept.append(seconds)
            sleep(clock, seconds)

        monkeypatch.setattr(RealClock, 'sleep', noted)
        with pytest.raises(TransferError, match='127.0.0.1'):
            read_bytes(open_store(f'dbfs:{folder}', StoreOptions(endpoint_url='http://127.0.0.1:9')), 'x')
        assert 0 < sum(slept) < 5

    def test_an_impossible_host_is_a_configuration_error(self, folder):
        with pytest.raises(ConfigError, match='address of the workspace'):
            read_bytes(open_store(f'dbfs:{folder}', StoreOptions(endpoint_url='http://:0:0')), 'x')

    def test_a_redirect_means_that_the_host_is_no_workspace(self, folder, databricks_proxy):
        store = open_store(f'dbfs:{folder}', StoreOptions(endpoint_url=databricks_proxy.endpoint_url))
        databricks_proxy.faults = [Fault(match='/api', status=302)]
        with pytest.raises(ConfigError, match='redirects.*DATABRICKS_HOST'):
            read_bytes(store, 'x')

    def test_an_answer_that_is_no_json(self, folder, databricks_proxy):
        store = open_store(f'dbfs:{folder}', StoreOptions(endpoint_url=databricks_proxy.endpoint_url))
        databricks_proxy.faults = [Fault(match='/api', flip_at=0)]
        with pytest.raises(StorageError, match='something else than JSON'):
            list(store.list(''))

    def test_uploads_of_killed_processes_are_removed_from_named_folders(self, workspace):
        store = open_store(f'dbfs:{workspace.new_folder()}')
        put_bytes(store, 'a/x', b'1')
        folder = next(path for path in workspace.files if path.endswith('/a/x')).removesuffix('/a/x')
        file = workspace.files[f'{folder}/a/x']
        names = {f'{folder}/{name}.headrace-put-left' for name in ('', 'a/', 'b/')}
        workspace.files.update(dict.fromkeys(names, file))
        store.remove_unfinished(['', 'a', 'gone'])
        assert names & set(workspace.files) == {f'{folder}/b/.headrace-put-left'}
        assert [info.key for info in store.list('')] == ['a/x']


class TestCredentials:
    def test_a_profile(self, workspace, folder, monkeypatch, tmp_path):
        put_bytes(open_store(f'dbfs:{folder}'), 'x', b'1')
        monkeypatch.delenv('DATABRICKS_TOKEN')
        monkeypatch.delenv('DATABRICKS_HOST')
        (tmp_path / '.databrickscfg').write_text(f'[mine]\nhost = {workspace.host}\ntoken = {workspace.token}\n')
        store = open_store(f'dbfs:{folder}', StoreOptions(extra={'profile': 'mine'}))
        assert read_bytes(store, 'x') == b'1'
        assert store._credentials() == "'pat' credentials from the profile 'mine'"
        monkeypatch.setenv('DATABRICKS_CONFIG_PROFILE', 'mine')
        assert read_bytes(open_store(f'dbfs:{folder}'), 'x') == b'1'

    @pytest.fixture
    def oauth(self, workspace, monkeypatch):
        monkeypatch.delenv('DATABRICKS_TOKEN')
        monkeypatch.setenv('DATABRICKS_CLIENT_ID', 'a-client')
        monkeypatch.setenv('DATABRICKS_CLIENT_SECRET', workspace.client_secret)

    def test_tokens_of_oauth_are_refreshed_when_they_expire(self, workspace, folder, oauth, monkeypatch):
        store = open_store(f'dbfs:{folder}')
        monkeypatch.setattr(workspace, 'token_seconds', 1.0)
        before = workspace.tokens_made
        put_bytes(store, 'x', b'1')
        assert workspace.tokens_made > before
        time.sleep(1.1)
        workspace.expire_tokens()
        before = workspace.tokens_made
        assert read_bytes(store, 'x') == b'1'
        assert workspace.tokens_made > before

    def test_a_wrong_secret_is_denied(self, folder, oauth, monkeypatch):
        monkeypatch.setenv('DATABRICKS_CLIENT_SECRET', 'wrong-secret')
        with pytest.raises(AccessDeniedError, match='needs credentials') as caught:
            read_bytes(open_store(f'dbfs:{folder}'), 'x')
        assert 'wrong-secret' not in str(caught.value)

    def test_a_netrc_is_not_asked(self, workspace, folder, monkeypatch, tmp_path):
        (tmp_path / '.netrc').write_text('machine 127.0.0.1 login a password b\n')
        put_bytes(open_store(f'dbfs:{folder}'), 'x', b'1')


class TestRequests:
    def test_a_small_file_of_a_volume_is_one_request(self, workspace, databricks_proxy):
        store = open_store(f'dbfs:{workspace.new_volume()}', StoreOptions(endpoint_url=databricks_proxy.endpoint_url))
        put_bytes(store, 'x', b'1')
        databricks_proxy.requests.clear()
        for operation in ('get', 'head', 'list', 'put', 'delete'):
            OPERATIONS[operation](store)
        assert [request.method for request in databricks_proxy.requests] == ['GET', 'HEAD', 'GET', 'PUT', 'DELETE']
        assert 'headrace/' in databricks_proxy.requests[0].headers['user-agent']

    def test_listing_goes_beyond_one_page(self, workspace):
        store = open_store(f'dbfs:{workspace.new_volume()}')
        put_bytes(store, 'k0000', b'')
        file = workspace.files[f'{store.root}/k0000']
        workspace.files.update({f'{store.root}/k{i:04d}': file for i in range(2005)})
        assert [info.key for info in store.list('')] == [f'k{i:04d}' for i in range(2005)]

    def test_only_folders_that_can_hold_the_prefix_are_listed(self, workspace, folder, databricks_proxy):
        store = open_store(f'dbfs:{folder}', StoreOptions(endpoint_url=databricks_proxy.endpoint_url))
        for key in ('a/b/x', 'a/c/x', 'd/x'):
            put_bytes(store, key, b'1')
        databricks_proxy.requests.clear()
        assert [info.key for info in store.list('a/b')] == ['a/b/x']
        assert len(databricks_proxy.requests) == 2

    @pytest.mark.parametrize('kind', ['close_after', 'stall_after'])
    def test_a_broken_body_is_resumed_where_it_broke(self, workspace, databricks_proxy, tmp_path, kind):
        seconds = 2.0 if kind == 'stall_after' else 30.0
        options = StoreOptions(endpoint_url=databricks_proxy.endpoint_url, read_timeout=seconds)
        store = open_store(f'dbfs:{workspace.new_volume()}', options)
        put_bytes(store, 'x', DATA)
        databricks_proxy.requests.clear()
        databricks_proxy.faults = [Fault(match='GET', times=1, **{kind: 2_500_000})]
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(store, 'x', out, Retry(attempts=2, first_delay=0.01))
        assert (tmp_path / 'out').read_bytes() == DATA
        assert (
            2 << 20
            <= int(databricks_proxy.requests[1].headers['range'].removeprefix('bytes=').rstrip('-'))
            <= 2_500_000
        )
        assert databricks_proxy.requests[1].headers['if-unmodified-since']

    def test_a_file_replaced_in_between_is_read_anew(self, workspace, folder, databricks_proxy, tmp_path):
        store = open_store(f'dbfs:{folder}', StoreOptions(endpoint_url=databricks_proxy.endpoint_url))
        put_bytes(store, 'x', DATA)
        databricks_proxy.faults = [Fault(match='GET.*(files|read)', skip=0, times=1, close_after=1_300_000)]
        new = os.urandom(len(DATA) + 1)
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(store, 'x', out, Retry(attempts=3, sleep=lambda _: put_bytes(store, 'x', new)))
        assert (tmp_path / 'out').read_bytes() == new

    def test_a_file_of_dbfs_replaced_between_two_blocks_is_refused(self, workspace):
        store = open_store(f'dbfs:{workspace.new_folder()}')
        put_bytes(store, 'x', DATA)

        class Replacing:
            def write(self, data):
                put_bytes(store, 'x', DATA + b'1')
                return len(data)

        with pytest.raises(TransferError, match='changed'):
            store.get('x', Replacing())

    def test_an_upload_to_dbfs_leaves_nothing_behind_when_it_fails(self, workspace, databricks_proxy):
        folder = workspace.new_folder()
        store = open_store(f'dbfs:{folder}', StoreOptions(endpoint_url=databricks_proxy.endpoint_url))
        put_bytes(store, 'x', b'1')
        databricks_proxy.faults = [Fault(match='add-block', status=500)]
        with pytest.raises(TransferError):
            put_bytes(store, 'x', b'2')
        assert [path for path in workspace.files if path.startswith(folder)] == [f'{folder}/x']
        assert read_bytes(store, 'x') == b'1'


class TestUrls:
    @pytest.mark.parametrize(
        ('url', 'kind', 'expected'),
        [
            ('dbfs:/Volumes/c/s/v', VolumeStore, 'dbfs:/Volumes/c/s/v'),
            ('dbfs:/Volumes/c/s/v/a/b/', VolumeStore, 'dbfs:/Volumes/c/s/v/a/b'),
            ('dbfs:///Volumes/c/s/v//a', VolumeStore, 'dbfs:/Volumes/c/s/v/a'),
            ('DBFS:/Volumes/c/s/v', VolumeStore, 'dbfs:/Volumes/c/s/v'),
            ('dbfs:/mnt/x', DbfsStore, 'dbfs:/mnt/x'),
            ('dbfs:///mnt/x y', DbfsStore, 'dbfs:/mnt/x y'),
            ('dbfs:/', DbfsStore, 'dbfs:/'),
        ],
    )
    def test_forms(self, url, kind, expected):
        store = open_store(url)
        assert isinstance(store, kind)
        assert store.url == expected
        assert repr(store) == f'{kind.__name__}({expected!r})'

    @pytest.mark.parametrize('url', ['dbfs:/Volumes', 'dbfs:/Volumes/c/s', 'dbfs:///Volumes/c//s/'])
    def test_a_volume_without_its_name_is_refused(self, url):
        with pytest.raises(ConfigError, match='names catalog, schema and volume'):
            open_store(url)

    @pytest.mark.parametrize('url', ['dbfs://Volumes/c/s/v', 'dbfs://x', 'dbfs:/x/../y'])
    def test_other_bad_ones_are_refused(self, url):
        with pytest.raises(ConfigError, match='names an absolute path'):
            open_store(url)

    def test_extra_options_of_another_backend_are_refused(self):
        with pytest.raises(ConfigError, match='profil'):
            open_store('dbfs:/x', StoreOptions(extra={'profil': 'x'}))

    def test_one_slash_makes_a_url(self):
        assert split_url('dbfs:/Volumes/c') == split_url('dbfs:///Volumes/c') == ('dbfs', '/Volumes/c')
        assert split_url('dbfs:x') == ('', 'dbfs:x')


class TestDbfsStore(StoreContract):
    ROW = '`dbfs:/`: our own server'

    @pytest.fixture
    def store(self, workspace):
        return open_store(f'dbfs:{workspace.new_folder()}')


def in_block(kind, after):
    """A fault of the request that fetches the block of that byte; its body is larger than the block."""
    return Fault(match='GET /api/2.0/dbfs/read', skip=after >> 20, times=1, **{kind: after & 0xFFFFF})


class TestDbfsFaults(DatabricksFaults):
    ROW = '`dbfs:/`: our own server'

    # One object takes several requests.
    BROKEN_BODIES: ClassVar = {
        'reset': lambda after: in_block('reset_after', after),
        'truncated': lambda after: in_block('close_after', after),
        'stalled': lambda after: in_block('stall_after', after),
    }

    @pytest.fixture
    def direct(self, workspace):
        return open_store(f'dbfs:{workspace.new_folder()}')
