"""Another format's data as a store of an index and of parts."""

from __future__ import annotations

import fnmatch
import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamingDataset
from headrace.convert import convert
from headrace.errors import (
    ChecksumError,
    ConfigError,
    EmptyDatasetError,
    FormatError,
    ObjectNotFoundError,
    StorageError,
    StreamError,
)
from headrace.sources.ranges import ByteRange, read_range
from headrace.sources.source_store import glob_pattern, has_glob
from headrace.storage import ObjectInfo, StoreOptions, register_store
from headrace.storage.stores.local import LocalStore
from tests.support.sources.line_files import jsonl
from tests.support.sources.parquet_stores import index, keys, store_of, write
from tests.support.sources.source_cases import MemoryStore

pa = pytest.importorskip('pyarrow')
pq = pytest.importorskip('pyarrow.parquet')


def test_globs_choose_names(tmp_path: Path) -> None:
    write(tmp_path, 'a/train-0.parquet', 'a/train-1.parquet', 'a/b/train-2.parquet', 'c.parquet')
    (tmp_path / 'a/README.md').write_text('x')
    assert keys(store_of(tmp_path)) == ['a/b/train-2.parquet', 'a/train-0.parquet', 'a/train-1.parquet', 'c.parquet']
    assert keys(store_of(tmp_path / 'a/*.parquet')) == ['train-0.parquet', 'train-1.parquet']
    assert keys(store_of(tmp_path / 'a/train-[!1].parquet')) == ['train-0.parquet']
    assert keys(store_of(tmp_path / '**/train-*')) == ['a/b/train-2.parquet', 'a/train-0.parquet', 'a/train-1.parquet']
    assert keys(store_of(f'file://{tmp_path}/?/b/*')) == ['a/b/train-2.parquet']
    (tmp_path / 'odd[1]').mkdir()
    assert has_glob(str(tmp_path / 'a[12]'))
    assert not has_glob(str(tmp_path / 'odd[1]'))  # a folder with that name


@given(st.lists(st.sampled_from([*'ab.-', '*', '?', '[ab]', '[!a]', '[a-b]']), max_size=6), st.text('ab.-', max_size=6))
def test_globs_of_one_folder_match_as_python_s(parts: list[str], name: str) -> None:
    glob = ''.join(parts)
    if '**' not in glob:
        assert bool(glob_pattern(glob).fullmatch(name)) == fnmatch.fnmatchcase(name, glob)


def test_a_file_is_read_and_others_say_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 'train-0.parquet', 'test-0.parquet', 'odd[1].parquet')
    assert keys(store_of(tmp_path / 'odd[1].parquet')) == ['odd[1].parquet']
    index(store_of(tmp_path / 't*.parquet'))
    assert 'Several splits are read as one: test, train.' in caplog.text
    (tmp_path / 'x').mkdir()
    (tmp_path / 'x' / 'lines.json').write_text('{"a": 1}\n{"a": 2}\n')
    with pytest.raises(ObjectNotFoundError, match="lines.json, may be a description: `format='jsonl'`"):
        convert(tmp_path / 'x', tmp_path / 'out')
    with pytest.raises(ObjectNotFoundError, match="lines.json, may be a description: `format='jsonl'`"):
        StreamingDataset(remote=str(tmp_path / 'x'), local=str(tmp_path / 'cache'))
    for place, name in (('x', 'jsonl'), ('x/lines.json', None), ('x/*', None)):
        assert keys(store_of(tmp_path / place, format_name=name)) == ['lines.json']
    with pytest.raises(ObjectNotFoundError, match='There is no folder.*Of its path'):
        convert(tmp_path / 'missing', tmp_path / 'out')
    with pytest.raises(ConfigError, match=r'below a bucket, but that of s3://b\*/x is in its name'):
        store_of('s3://b*/x')


@pytest.fixture
def bucket(own_stores: None) -> Callable[[str], None]:
    """Puts objects of one row each into the bucket ``memory://b``."""
    full: dict[str, bytes] = {}

    def open_memory(url: str, options: StoreOptions) -> MemoryStore:
        del options
        name, _, prefix = url.removeprefix('memory://').rstrip('/').partition('/')
        if (name, prefix) == ('owner', ''):
            raise ConfigError('a repository has an owner and a name')
        objects = full if name == 'b' else {}
        below = f'{prefix}/' if prefix else ''
        found = {key.removeprefix(below): data for key, data in objects.items() if key.startswith(below)}
        return MemoryStore(found, url=url)

    register_store('memory', open_memory)
    return lambda names: full.update({name: jsonl([{'of': name}]) for name in names.split()})


def of(remote: str, **how: Any) -> list[str]:
    """The objects that a remote reads."""
    store = store_of(f'memory://{remote}', **how)
    again = store_of(f'memory://{remote}', **how)
    again.index = index(store)  # as another process has it from the cache
    found: list[str] = []
    for number, name in enumerate(again.index.shards()):
        out = io.BytesIO()
        assert name.files[0].zip is not None
        again.get(name.files[0].zip.basename, out)
        for batch in again.index.source.batches(number, memoryview(out.getvalue())):
            found += batch['of']
    return found


def test_the_url_of_an_object_reads_it(bucket: Callable[[str], None], caplog: pytest.LogCaptureFixture) -> None:
    bucket('x/a.jsonl x/a.jsonlx x/b.json x/d.jsonl/part-0.jsonl x/d.jsonl/part-1.jsonl c.json x/train.jsonl')
    caplog.set_level(logging.INFO)
    assert of('b/x/a.jsonl') == ['x/a.jsonl']
    assert 'Read 1 files of memory://b/x/a.jsonl as jsonl. Nothing was left out.' not in caplog.text
    assert of('b/x/a.jsonl', format_name='jsonl') == ['x/a.jsonl']
    assert of('b/x/b.json') == ['x/b.json']
    assert of('b/c.json') == ['c.json']
    # As Spark names folders.
    assert of('b/x/d.jsonl') == of('b/x/d.jsonl/') == ['x/d.jsonl/part-0.jsonl', 'x/d.jsonl/part-1.jsonl']
    assert of('b/x/train.jsonl', split='train') == ['x/train.jsonl']
    for remote, message in (
        ('b/x/missing.jsonl', 'holds neither an index.json nor files'),
        ('b.json', 'holds neither an index.json nor files'),
        ('owner/name.json', 'holds neither an index.json nor files'),
    ):
        with pytest.raises(EmptyDatasetError, match=message):
            of(remote)
    with pytest.raises(EmptyDatasetError, match="The files of split 'test' .* has the files a.jsonl"):
        of('b/x/a.jsonl', split='test')
    with pytest.raises(FormatError, match='is a JSON object, not the names of columns'):
        of('b/x/a.jsonl', format_name='csv')  # whatever its name is


def test_a_named_file_is_read_with_those_that_describe_it(bucket: Callable[[str], None], tmp_path: Path) -> None:
    names = 'x.ds x.ds.index x.ds.metadata x.ds.old x.dsx y.ds part-00001-of-00003.jsonl part-00001-of-00003.jsonl.gz'
    bucket(' '.join(f'x/{name}' for name in names.split()))
    for name in names.split():
        (tmp_path / name).touch()
    for root in ('memory://b/x', str(tmp_path)):
        assert keys(store_of(f'{root}/x.ds')) == ['x.ds', 'x.ds.index', 'x.ds.metadata']
        assert keys(store_of(f'{root}/y.ds')) == ['y.ds']
        assert keys(store_of(f'{root}/part-00001-of-00003.jsonl')) == ['part-00001-of-00003.jsonl']
        with pytest.raises(StreamError, match='Missing are part-00000-of-00003.jsonl'):
            store_of(root, format_name='jsonl').find()


def test_a_path_that_is_there_is_no_glob(bucket: Callable[[str], None]) -> None:
    bucket('x/a[1].jsonl x/a1.jsonl x/a*.jsonl x/a?.jsonl d[1]/a.jsonl d[1]/e/b.jsonl d1/a.jsonl')
    bucket('s?/train.jsonl s?/test.jsonl')
    assert of('b/x/a[1].jsonl') == of('b/x/a[[]1].jsonl') == ['x/a[1].jsonl']
    assert of('b/x/a[12].jsonl') == ['x/a1.jsonl']
    assert of('b/x/a*.jsonl') == of('b/x/a[*].jsonl') == ['x/a*.jsonl']
    assert of('b/x/a[?].jsonl') == ['x/a?.jsonl']
    assert of('b/x/a*') == ['x/a*.jsonl', 'x/a1.jsonl', 'x/a?.jsonl', 'x/a[1].jsonl']
    assert of('b/d[1]') == of('b/d[1]/') == of('b/d[[]1]/**') == ['d[1]/a.jsonl', 'd[1]/e/b.jsonl']
    assert of('b/d[1]/*') == ['d1/a.jsonl']
    assert of('b/s?', split='train') == ['s?/train.jsonl']
    with pytest.raises(StreamError, match='several: test, train'):
        of('b/s?')
    with pytest.raises(
        EmptyDatasetError, match=r'No object is named as .*\[\]\]\.jsonl\. .*write "\[\*\]", "\[\?\]" and "\[\[\]"'
    ):
        of('b/x/a[]].jsonl')


def test_links_are_followed_and_those_to_nowhere_are_named(tmp_path: Path) -> None:
    write(tmp_path, 'data/a.parquet', 'other disk/x/b.parquet')
    (tmp_path / 'data' / 'linked').symlink_to('../other disk/x')
    (tmp_path / 'data' / 'linked' / 'circle').symlink_to(tmp_path / 'data')
    assert keys(store_of(tmp_path / 'data')) == ['a.parquet', 'linked/b.parquet']
    assert keys(store_of(tmp_path / 'data' / 'linked')) == ['b.parquet', 'circle/a.parquet']
    (tmp_path / 'data' / 'c.parquet').symlink_to('/unmounted/c.parquet')
    for read in (lambda: store_of(tmp_path / 'data').find(), lambda: convert(tmp_path / 'data', tmp_path / 'out')):
        with pytest.raises(ObjectNotFoundError, match=r'data/c\.parquet: it is a link to /unmounted/c\.parquet'):
            read()
    assert keys(store_of(tmp_path / 'data' / 'a*.parquet')) == ['a.parquet']
    assert not (tmp_path / 'out').exists()


def test_a_file_beside_its_compressed_one_is_refused(bucket: Callable[[str], None]) -> None:
    bucket('x/a.jsonl x/a.jsonl.gz')
    with pytest.raises(StreamError, match=r'a\.jsonl and a\.jsonl\.gz, which differ in their compression only'):
        of('b/x')
    assert of('b/x/*.jsonl') == of('b/x/a.jsonl') == ['x/a.jsonl']


def test_a_part_s_bytes_are_those_of_its_ranges(tmp_path: Path) -> None:
    store = store_of(write(tmp_path, 'a.parquet', 'b.parquet'))
    found = index(store)
    content = (tmp_path / 'b.parquet').read_bytes()
    part = found.source.parts[4]
    whole = b''.join(content[offset : offset + size] for offset, size in part.ranges)
    assert store.head('b.parquet.1.part').size == len(whole)
    for offset, size in [(0, None), (3, 10), (5, len(whole) - 5)]:
        out = io.BytesIO()
        store.get('b.parquet.1.part', out, offset=offset, size=size)
        assert out.getvalue() == whole[offset : None if size is None else offset + size]
    for name in ('b.parquet.3.part', 'c.parquet.0.part', 'b.parquet', '../b.parquet.0.part'):
        with pytest.raises(FormatError, match='is not the name of a part'):
            store.get(name, io.BytesIO())


def test_an_object_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    store = store_of(write(tmp_path, 'a.parquet'))
    index(store)
    content = (tmp_path / 'a.parquet').read_bytes()
    (tmp_path / 'a.parquet').write_bytes(content[:50])
    with pytest.raises((StorageError, FormatError)):
        store.get('a.parquet.0.part', io.BytesIO())


def test_an_object_of_the_same_size_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    store = store_of(write(tmp_path, 'a.parquet'))
    index(store)
    store.get('a.parquet.0.part', io.BytesIO())
    os.utime(tmp_path / 'a.parquet', (1, 1))
    with pytest.raises(ChecksumError, match='a.parquet has changed since it was indexed'):
        store.get('a.parquet.0.part', io.BytesIO())


class EtagStore(LocalStore):
    """A folder whose objects have no version besides their etag, as on S3, and that counts its requests."""

    requests = 0

    def get(self, *args: Any, **kwargs: Any) -> str:
        type(self).requests += 1
        return super().get(*args, **kwargs)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (replace(info, version='') for info in super().list(prefix))


@pytest.mark.usefixtures('own_stores')
def test_a_replaced_object_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EtagStore, 'requests', 0)
    register_store('etag', lambda url, options: EtagStore(url.removeprefix('etag://')))
    store = store_of(f'etag://{write(tmp_path, "a.parquet")}')
    index(store)
    wanted = ByteRange('a.parquet', 0, 4, next(EtagStore(tmp_path).list('')).etag)
    os.utime(tmp_path / 'a.parquet', (1, 1))
    EtagStore.requests = 0
    with pytest.raises(ChecksumError, match='a.parquet has changed since it was indexed'):
        store.get('a.parquet.0.part', io.BytesIO())
    with pytest.raises(ChecksumError, match='a.parquet was replaced'):
        read_range(EtagStore(tmp_path), wanted)
    assert EtagStore.requests == 2


@pytest.mark.parametrize(
    'name', ['000000_0', 'part-00000', '_a.parquet', 'df.parquet.gzip', 'a.snappy', 'A.PARQUET', 'a']
)
def test_a_file_that_is_named_with_its_format_may_have_any_name(name: str, tmp_path: Path) -> None:
    write(tmp_path, f'd/{name}', 'd/x/other.parquet')
    (tmp_path / f'd/.{name}.crc').write_bytes(b'crc')
    assert keys(store_of(tmp_path / 'd' / name, format_name='parquet')) == [name]
    assert keys(store_of(tmp_path / 'd' / f'{name[:-1]}?', format_name='parquet')) == [name]


def test_the_names_of_a_folder_count(tmp_path: Path) -> None:
    write(tmp_path, 'd/000000_0')
    with pytest.raises(EmptyDatasetError, match=r'Files of other names are read .*d/\*\.$'):
        store_of(tmp_path / 'd', format_name='parquet').find()
    write(tmp_path, 'd/b.parquet')
    assert keys(store_of(tmp_path / 'd/*', format_name='parquet')) == ['b.parquet']  # the log names the other


@pytest.mark.parametrize(
    'url', ['{}/shard-{000000..000123}.tar', 's3://bucket/{train,val}/*.tar', 'file://{}/a-{0..3}']
)
def test_braces_are_refused_with_the_glob(url: str, tmp_path: Path) -> None:
    remote = url.replace('{}', str(tmp_path))
    with pytest.raises(
        ConfigError, match=r'Braces are not expanded, .* with a glob: \S+\*\S*\. Write "\[\{\]"'
    ) as caught:
        store_of(remote)
    glob = str(caught.value).partition('glob: ')[2].partition(' Write')[0].removesuffix('.')
    assert has_glob(glob)


def test_braces_of_a_path_that_exists_are_its_name(tmp_path: Path) -> None:
    write(tmp_path, 'a-{0..3}.parquet')
    assert keys(store_of(tmp_path / 'a-{0..3}.parquet')) == ['a-{0..3}.parquet']
    assert keys(store_of(tmp_path / 'a-[{]0..3}.parquet')) == ['a-{0..3}.parquet']


def test_keys_with_an_empty_part_are_read_as_the_store_has_them(tmp_path: Path, s3_server: Any) -> None:
    bucket, client = s3_server.new_bucket(), s3_server.client()
    for number, key in enumerate(('one/2018//a.parquet', '/lead/a.parquet', '/b.parquet', 'x/y/a.parquet')):
        path = write(tmp_path, f'{number}.parquet') / f'{number}.parquet'
        client.upload_file(str(path), bucket, key)
    for remote, expected in (
        ('one/2018//', ['a.parquet']),
        ('one/2018//a.parquet', ['a.parquet']),
        ('one/2018//*.parquet', ['a.parquet']),
        ('/lead', ['a.parquet']),
        ('/lead/a.parquet', ['a.parquet']),
        ('/*.parquet', ['b.parquet']),
        ('/b.parquet', ['b.parquet']),
        ('x/y/', ['a.parquet']),
    ):
        assert keys(store_of(f's3://{bucket}/{remote}')) == expected
    for remote, key in (('one/2018', "'/a.parquet'"), ('one', "'2018//a.parquet'"), ('one/**', "'2018//a.parquet'")):
        with pytest.raises(StreamError, match=rf'has {key}\. Name (s3://\S+//) in `remote`') as caught:
            store_of(f's3://{bucket}/{remote}', format_name='parquet').find()
        folder = re.search(r'Name (\S+) in', str(caught.value))
        assert folder is not None
        assert keys(store_of(folder[1])) == ['a.parquet']
    dataset = StreamingDataset(remote=f's3://{bucket}/one/2018//a.parquet', local=str(tmp_path / 'c'), batch_size=1)
    assert dataset[0]['id'] == 0
