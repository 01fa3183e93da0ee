import functools
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from headrace.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, StorageError, TransferError
from headrace.storage import StoreOptions, download, open_store
from headrace.storage.stores.further.hf import HFStore, retry_after
from headrace.testing.proxy import Fault, FaultProxy
from headrace.testing.store_faults import DATA, OPERATIONS, StoreFaultContract, through_proxy
from headrace.testing.stores import StoreContract, put_bytes, read_bytes
from tests.support.servers.hf import hf_server

huggingface_hub = pytest.importorskip('huggingface_hub', reason='needs: pip install huggingface_hub')
constants = pytest.importorskip('huggingface_hub.constants')

pytestmark = pytest.mark.cloud


@pytest.fixture(autouse=True)
def nothing_of_the_users(monkeypatch, tmp_path):
    """The server's token, and no other."""
    for name in ('HUGGING_FACE_HUB_TOKEN', 'HF_ENDPOINT'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HF_TOKEN', 'hf_testtoken')
    monkeypatch.setattr(constants, 'HF_TOKEN_PATH', str(tmp_path / 'token'))


@pytest.fixture(scope='module')
def plain_hub():
    with hf_server() as server:
        yield server


@pytest.fixture(scope='module')
def lfs_hub():
    with hf_server(lfs=True) as server:
        yield server


@pytest.fixture(params=['plain', 'lfs'])
def hub(request):
    return request.getfixturevalue(f'{request.param}_hub')


class TestHFStore(StoreContract):
    ROW = '`hf://`: {hub}'

    @pytest.fixture
    def store(self, hub):
        return hub.store(hub.new_repository(), 'some/folder')


class TestHFStoreWithoutFolder(StoreContract):
    ROW = '`hf://`: our own server, files in git'

    @pytest.fixture
    def store(self, plain_hub):
        return plain_hub.store(plain_hub.new_repository('models'), kind='models')


class BodyFaults:
    """A proxy whose faults of bodies are those of objects, which LFS gives on a second request."""

    def __init__(self, proxy):
        self._proxy = proxy
        self.requests = proxy.requests

    @property
    def faults(self):
        return self._proxy.faults

    @faults.setter
    def faults(self, faults):
        for fault in faults:
            fault.match = fault.match.replace('GET', 'GET /lfs')
        self._proxy.faults = faults


class TestHFFaults(StoreFaultContract):
    ROW = '`hf://`: {hub}'

    @pytest.fixture
    def direct(self, hub):
        return hub.store(hub.new_repository(), 'p')

    @pytest.fixture
    def proxied(self, hub, direct, read_timeout):
        store = functools.partial(hub.store, direct.repo, 'p')
        with through_proxy(hub.endpoint_url, store, read_timeout=read_timeout) as proxied:
            yield proxied._replace(proxy=BodyFaults(proxied.proxy)) if hub.lfs else proxied

    SILENCE = 1.0

    def test_it_continues_where_it_broke_in_the_same_version(self, proxied, tmp_path):
        proxied.proxy.faults = [Fault(match='GET', close_after=1_500_000, times=1)]
        assert self._download(proxied.store, tmp_path) == DATA
        ranges = [request.headers.get('range') for request in proxied.proxy.requests]
        assert ranges[0] is None
        assert int(ranges[-1].removeprefix('bytes=').rstrip('-')) >= 1 << 20

    def test_a_file_replaced_in_between_is_read_anew(self, proxied, direct, tmp_path):
        new = os.urandom(len(DATA))
        proxied.proxy.faults = [Fault(match='GET', close_after=1_500_000, times=1)]
        with open(tmp_path / 'out', 'w+b', buffering=0) as out:
            download(proxied.store, 'x', out, replace(self.RETRY, sleep=lambda _: put_bytes(direct, 'x', new)))
        assert (tmp_path / 'out').read_bytes() == new

    @pytest.mark.parametrize('read_timeout', [SILENCE])
    @pytest.mark.parametrize('request_', ['preupload', 'commit', 'objects/batch', 'PUT /lfs', 'lfs/verify'])
    def test_a_broken_upload_is_told(self, proxied, hub, request_):
        if not hub.lfs and 'lfs' in request_.replace('objects', 'lfs'):
            pytest.skip('only LFS has that')
        for fault, expected in ((Fault(status=503), TransferError), (Fault(latency=60.0), TransferError)):
            fault.match = request_
            proxied.proxy.faults = [fault]
            with pytest.raises(expected):
                put_bytes(proxied.store, f'new {fault.status}', os.urandom(10))

    @pytest.mark.parametrize('status', [409, 412])
    def test_a_commit_that_another_one_came_before_is_tried_again(self, proxied, status):
        proxied.proxy.faults = [Fault(match='commit', status=status)]
        with pytest.raises(TransferError, match='Another commit'):
            put_bytes(proxied.store, 'y', b'1')


class TestTheSDKAgrees:
    """The server speaks the Hub's protocol to the Hub's own client, so what the store says is right, too."""

    @pytest.fixture(autouse=True)
    def no_xet(self, monkeypatch):
        monkeypatch.setattr(constants, 'HF_HUB_DISABLE_XET', True, raising=False)

    def test_it_reads_what_we_write(self, hub, tmp_path):
        repo = hub.new_repository()
        put_bytes(hub.store(repo), 'a/b.bin', DATA)
        path = huggingface_hub.hf_hub_download(
            repo, 'a/b.bin', repo_type='dataset', endpoint=hub.endpoint_url, cache_dir=tmp_path
        )
        with open(path, 'rb') as file:
            assert file.read() == DATA
        api = huggingface_hub.HfApi(endpoint=hub.endpoint_url)
        assert list(api.list_repo_files(repo, repo_type='dataset')) == ['a/b.bin']

    def test_we_read_what_it_writes(self, hub, monkeypatch):
        monkeypatch.setattr(constants, 'ENDPOINT', hub.endpoint_url)
        repo = hub.new_repository()
        api = huggingface_hub.HfApi(endpoint=hub.endpoint_url)
        api.upload_file(path_or_fileobj=DATA, path_in_repo='a/b.bin', repo_id=repo, repo_type='dataset')
        store = hub.store(repo)
        assert read_bytes(store, 'a/b.bin') == DATA
        assert store.head('a/b.bin') == next(iter(store.list('')))
        api.delete_file('a/b.bin', repo, repo_type='dataset')
        assert list(store.list('')) == []


class TestURLs:
    @pytest.mark.parametrize(
        ('url', 'kind', 'repo', 'revision', 'prefix'),
        [
            ('hf://datasets/o/r', 'datasets', 'o/r', 'main', ''),
            ('hf://datasets/o/r/a/b/', 'datasets', 'o/r', 'main', 'a/b'),
            ('hf://datasets/o/r@v1.0/a', 'datasets', 'o/r', 'v1.0', 'a'),
            ('hf://datasets/o/r@refs/convert/parquet/a', 'datasets', 'o/r', 'refs/convert/parquet', 'a'),
            ('hf://datasets/o/r@refs/pr/12', 'datasets', 'o/r', 'refs/pr/12', ''),
            ('hf://datasets/o/r@feature%2Fx/a', 'datasets', 'o/r', 'feature/x', 'a'),
            ('hf://models/o/r.v-1_2/a@b', 'models', 'o/r.v-1_2', 'main', 'a@b'),
            ('hf://spaces/o/r', 'spaces', 'o/r', 'main', ''),
        ],
    )
    def test_a_url_names_kind_repository_revision_and_folder(self, url, kind, repo, revision, prefix):
        store = open_store(url)
        assert isinstance(store, HFStore)
        assert (store.kind, store.repo, store.revision, store.prefix) == (kind, repo, revision, prefix)

    @pytest.mark.parametrize('url', ['hf://', 'hf://datasets/o', 'hf://o/r/a', 'hf://datasets/o/r@', 'hf://x/o/r/a'])
    def test_others_are_refused(self, url):
        with pytest.raises(ConfigError, match='hf://datasets/ORG/REPO'):
            open_store(url)

    @pytest.mark.parametrize('kind', ['datasets', 'models', 'spaces'])
    def test_all_kinds_are_read_and_written(self, lfs_hub, kind, monkeypatch):
        monkeypatch.setenv('HF_ENDPOINT', lfs_hub.endpoint_url)
        store = open_store(f'hf://{kind}/{lfs_hub.new_repository(kind)}/a')
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'
        assert store.head('x') == next(iter(store.list('')))

    def test_a_commit_stays_the_same(self, hub):
        repo = hub.new_repository()
        put_bytes(hub.store(repo), 'x', b'1')
        pinned = hub.store(repo, revision=hub.repositories['datasets', repo].head)
        put_bytes(hub.store(repo), 'x', b'2')
        put_bytes(hub.store(repo), 'y', b'2')
        assert read_bytes(pinned, 'x') == b'1'
        assert [info.key for info in pinned.list('')] == ['x']

    def test_a_revision_with_slashes(self, plain_hub):
        repo = plain_hub.new_repository()
        plain_hub.repositories['datasets', repo].revisions['refs/convert/parquet'] = {}
        store = open_store(
            f'hf://datasets/{repo}@refs/convert/parquet/a', StoreOptions(endpoint_url=plain_hub.endpoint_url)
        )
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'
        assert [info.key for info in store.list('')] == ['x']


class TestErrors:
    def test_what_is_missing_is_named(self, hub):
        repo = hub.new_repository()
        put_bytes(hub.store(repo), 'x', b'1')
        for store, reason in (
            (hub.store(repo), rf"the dataset '{repo}' exists at .*, but 'main' has no such file"),
            (hub.store(repo, revision='v2'), r"exists at .*, but not its revision 'v2'"),
            (hub.store('tester/nothing'), r"'tester/nothing' does not exist at .*private.*the token in HF_TOKEN"),
        ):
            for call in (lambda store=store: read_bytes(store, 'y'), lambda store=store: store.head('y')):
                with pytest.raises(ObjectNotFoundError, match=reason):
                    call()
        for store in (hub.store(repo, revision='v2'), hub.store('tester/nothing')):
            for call in (lambda store=store: list(store.list('')), lambda store=store: put_bytes(store, 'x', b'1')):
                with pytest.raises(ObjectNotFoundError):
                    call()

    def refused(self, hub, store, *parts):
        for call in (
            lambda: read_bytes(store, 'x'),
            lambda: store.head('x'),
            lambda: list(store.list('')),
            lambda: put_bytes(store, 'x', b'1'),
            lambda: store.delete('x'),
        ):
            with pytest.raises(AccessDeniedError) as caught:
                call()
            for part in (*parts, hub.endpoint_url):
                assert part in str(caught.value)
            assert 'hf_secret' not in str(caught.value)

    def test_a_wrong_token_names_its_source(self, hub, monkeypatch):
        monkeypatch.setenv('HF_TOKEN', 'hf_secret')
        self.refused(hub, hub.store(hub.new_repository()), 'Invalid credentials', 'the token in HF_TOKEN.')

    def test_a_wrong_token_in_a_file_names_the_file(self, hub, monkeypatch):
        monkeypatch.delenv('HF_TOKEN')
        path = constants.HF_TOKEN_PATH
        with open(path, 'w') as file:
            file.write('hf_secret')
        self.refused(hub, hub.store(hub.new_repository()), f'the token in {path}')

    def test_a_private_repository_without_a_token(self, hub, monkeypatch):
        repo = hub.new_repository(private=True)
        self.refused(
            hub, hub.store(repo, anonymous=True), 'no token (anonymous)', 'private or does not exist', 'HF_TOKEN'
        )
        monkeypatch.delenv('HF_TOKEN')
        self.refused(hub, hub.store(repo), 'no token (none in HF_TOKEN', constants.HF_TOKEN_PATH)

    def test_a_gated_repository_says_where_its_conditions_are(self, hub):
        repo = hub.new_repository(gated=True)
        self.refused(hub, hub.store(repo), 'GatedRepo', f'Accept its conditions at {hub.endpoint_url}/datasets/{repo}')

    def test_what_the_hub_takes_not_is_an_error(self, lfs_hub, monkeypatch):
        store = lfs_hub.store(lfs_hub.new_repository())
        with pytest.raises(StorageError, match='.gitignore of the repository excludes'):
            put_bytes(store, 'x.ignored', b'1')
        monkeypatch.setattr(lfs_hub, 'largest', 9)
        with pytest.raises(StorageError, match='takes no 10 bytes: Too large. Write smaller shards'):
            put_bytes(store, 'x', os.urandom(10))
        assert list(store.list('')) == []

    def test_offline_mode_is_a_configuration(self, plain_hub):
        code = (
            'from headrace.errors import ConfigError\n'
            'from headrace.storage import open_store\n'
            'try: open_store("hf://datasets/o/r").head("x")\n'
            'except ConfigError as error: assert "HF_HUB_OFFLINE" in str(error), error\n'
            'else: raise SystemExit("no error")\n'
        )
        environment = {**os.environ, **plain_hub.environment(), 'HF_HUB_OFFLINE': '1'}
        subprocess.run([sys.executable, '-c', code], check=True, env=environment)

    def test_nobody_listens(self):
        with pytest.raises(TransferError, match=r'127.0.0.1:9'):
            read_bytes(open_store('hf://datasets/o/r', StoreOptions(endpoint_url='http://127.0.0.1:9')), 'x')

    @pytest.mark.parametrize('endpoint', ['not a url', 'http://'])
    def test_an_impossible_endpoint_is_a_configuration_error(self, endpoint):
        with pytest.raises(ConfigError, match='endpoint'):
            open_store('hf://datasets/o/r', StoreOptions(endpoint_url=endpoint)).head('x')

    def test_an_endpoint_that_is_no_hub(self, plain_hub):
        store = open_store('hf://datasets/o/r', StoreOptions(endpoint_url=f'{plain_hub.endpoint_url}/lfs'))
        with pytest.raises(StorageError):
            list(store.list(''))

    def test_extra_options_are_refused(self):
        with pytest.raises(ConfigError, match=r"no extra options.*; got \['token'\]"):
            open_store('hf://datasets/o/r', StoreOptions(extra={'token': 'x'}))


class TestRequests:
    def test_public_repositories_are_read_without_a_token(self, hub, monkeypatch):
        repo = hub.new_repository()
        put_bytes(hub.store(repo), 'x', b'1')
        with FaultProxy(hub.endpoint_url) as proxy:
            store = hub.store(repo, anonymous=True, endpoint_url=proxy.endpoint_url)
            assert read_bytes(store, 'x') == b'1'
            assert not any('authorization' in request.headers for request in proxy.requests)

    def test_the_token_goes_to_the_hub_only(self, lfs_hub):
        """The objects' server, which is another one for who asks by another name, refuses tokens."""
        repo = lfs_hub.new_repository(private=True)
        put_bytes(lfs_hub.store(repo), 'x', b'1')
        assert read_bytes(lfs_hub.store(repo), 'x') == b'1'

    def test_a_token_that_was_replaced_is_found(self, plain_hub, monkeypatch):
        repo = plain_hub.new_repository(private=True)
        store = plain_hub.store(repo)
        put_bytes(store, 'x', b'1')
        monkeypatch.delenv('HF_TOKEN')
        with pytest.raises(AccessDeniedError):
            read_bytes(store, 'x')
        with open(constants.HF_TOKEN_PATH, 'w') as file:
            file.write(plain_hub.token)
        assert read_bytes(store, 'x') == b'1'

    def test_options_win_over_the_environment(self, plain_hub, monkeypatch):
        monkeypatch.setenv('HF_ENDPOINT', 'http://127.0.0.1:9')
        store = plain_hub.store(plain_hub.new_repository())
        put_bytes(store, 'x', b'1')
        assert read_bytes(store, 'x') == b'1'

    def test_listing_goes_beyond_one_page(self, hub, monkeypatch):
        store = hub.store(hub.new_repository(), 'a folder')
        keys = ['a.b', 'a/b', 'a/c d', 'b', 'c', 'd', 'é']
        for key in keys:
            put_bytes(store, key, b'')
        monkeypatch.setattr(hub, 'page_size', 3)
        assert [info.key for info in store.list('')] == keys

    def test_a_rate_limit_says_how_long(self):
        limit = {'ratelimit': '"api";r=0;t=55'}
        assert retry_after(limit) == '55'
        assert retry_after({**limit, 'retry-after': '7'}) == '7'
        assert retry_after({}) is None

    def test_no_operation_makes_more_requests_than_it_needs(self, plain_hub):
        with FaultProxy(plain_hub.endpoint_url) as proxy:
            store = plain_hub.store(plain_hub.new_repository(), endpoint_url=proxy.endpoint_url)
            put_bytes(store, 'x', DATA)
            counts = {}
            for name, operation in OPERATIONS.items():
                proxy.requests.clear()
                operation(store)
                counts[name] = len(proxy.requests)
        assert counts == {'get': 1, 'range': 1, 'head': 1, 'list': 1, 'put': 2, 'delete': 1}


def test_a_folder_hides_what_is_outside(plain_hub):
    repo = plain_hub.new_repository()
    put_bytes(plain_hub.store(repo), 'pre/x', b'1')
    put_bytes(plain_hub.store(repo), 'prefix', b'2')
    assert [info.key for info in plain_hub.store(repo, 'pre').list('')] == ['x']
    assert repr(HFStore('o/r', 'p/')) == "HFStore('hf://datasets/o/r/p')"
    assert repr(HFStore('o/r', revision='v1')) == "HFStore('hf://datasets/o/r@v1')"
