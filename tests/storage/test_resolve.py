import re
import subprocess
import sys

import pytest

from headrace.errors import ConfigError
from headrace.storage import StoreOptions, known_schemes, open_store, register_store, split_url
from headrace.storage.resolve import backends
from headrace.storage.stores.local import LocalStore
from headrace.storage.stores.s3 import S3Store
from tests.support.suite.optional_modules import SOURCES, modules_of_extra, optional_modules


@pytest.mark.parametrize(
    ('url', 'expected'),
    [
        ('s3://bucket/a/b', ('s3', 'bucket/a/b')),
        ('S3://Bucket/a', ('s3', 'Bucket/a')),
        ('/data/x', ('', '/data/x')),
        ('x/y', ('', 'x/y')),
        ('a/b://c', ('', 'a/b://c')),
        ('file:///data', ('file', '/data')),
        ('dbfs:/Volumes/c', ('dbfs', '/Volumes/c')),
        ('dbfs:///Volumes/c', ('dbfs', '/Volumes/c')),
    ],
)
def test_split_url(url, expected):
    assert split_url(url) == expected


def test_known_schemes_open_their_stores(tmp_path):
    assert isinstance(open_store(tmp_path), LocalStore)
    store = open_store('s3://bucket/some/prefix/')
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix, store.url) == ('bucket', 'some/prefix', 's3://bucket/some/prefix')


def test_an_unknown_scheme_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r'known scheme \(.*file, .*s3.*\).*Did you mean "s3://"'):
        open_store('s4://bucket')
    with pytest.raises(ConfigError, match='register_store'):
        open_store('carrier-pigeon://loft')


@pytest.mark.parametrize('url', ['', 's3://', 's3:///key'])
def test_a_url_without_its_essential_part_is_refused(url):
    with pytest.raises(ConfigError):
        open_store(url)


@pytest.mark.usefixtures('own_stores')
def test_a_registered_scheme_is_opened_with_url_and_options(tmp_path):
    seen = []
    register_store('mem', lambda url, options: seen.append((url, options)) or LocalStore(tmp_path))
    options = StoreOptions(region='r')
    assert open_store('mem://x', options).root == tmp_path
    assert seen == [('mem://x', options)]
    assert 'mem' in known_schemes()
    with pytest.raises(ConfigError, match='lower-case'):
        register_store('Mem', lambda _url, _options: LocalStore(tmp_path))


def test_extra_options_of_another_backend_are_refused(tmp_path):
    with pytest.raises(ConfigError, match='profil'):
        open_store('s3://b', StoreOptions(extra={'profil': 'x'}))
    with pytest.raises(ConfigError, match='profile'):
        open_store(tmp_path, StoreOptions(extra={'profile': 'x'}))


URLS = {
    backend.example: backend.module for backend in backends() if backend.example and modules_of_extra(backend.module)
} | {'dbfs:/x': 'databricks'}
"""A URL of every store that needs an SDK, and the extra that brings it."""
SDKS = sorted(optional_modules(SOURCES / 'storage'))
PACKAGES = sorted(set[str]().union(*map(modules_of_extra, set(URLS.values()))))


def test_importing_and_opening_loads_no_sdk_and_without_it_the_extra_to_install_is_named():
    code = f"""
import io, sys
from headrace.storage import open_store
open_store('/tmp')
stores = {{url: open_store(url) for url in {list(URLS)}}}
sdks = {{*{SDKS}, 'requests'}}
assert not sdks & set(sys.modules), sdks & set(sys.modules)
for name in {PACKAGES}:
    sys.modules[name] = None
acts = (lambda s: s.get('x', io.BytesIO()), lambda s: s.head('x'), lambda s: s.delete('x'), lambda s: list(s.list('')),
        lambda s: s.put('x', io.BytesIO(), size=0))
for url, extra in {URLS}.items():
    for act in acts:
        try:
            act(stores[url])
        except ImportError as error:
            assert f"'headrace[{{extra}}]'" in str(error), error
        else:
            raise SystemExit(f'no error for {{url}}')
"""
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize(
    ('url', 'hint'),
    [
        ('https://huggingface.co/datasets/a/b/resolve/main/data/x.parquet', '"hf://datasets/a/b/data/x.parquet"'),
        ('https://huggingface.co/datasets/a/b', '"hf://datasets/a/b"'),
        ('https://bucket.s3.us-east-1.amazonaws.com/p/q', '"s3://bucket/p/q"'),
        ('https://s3.amazonaws.com/bucket/p', '"s3://bucket/p"'),
        ('https://storage.googleapis.com/bucket/p', '"gs://bucket/p"'),
        ('https://account.blob.core.windows.net/container/p', '"azure://account.blob.core.windows.net/container/p"'),
        ('https://account.dfs.core.windows.net/files/p', '"azure-dl://account.dfs.core.windows.net/files/p"'),
        ('http://example.com/data/shard-000.tar', '`wget --recursive --no-parent URL`'),
    ],
)
def test_an_address_of_the_web_says_what_reads_it(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)) as caught:
        open_store(url)
    if hint.startswith('"'):
        open_store(hint.strip('"'))  # the advice names a store
    assert 'Servers of the web do not list their files' in str(caught.value)
