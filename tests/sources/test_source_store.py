"""Another format's data as a store of an index and of parts."""

from __future__ import annotations

import fnmatch
import io
import os
from collections.abc import Iterator
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
)
from headrace.sources.ranges import ByteRange, read_range
from headrace.sources.source_store import glob_pattern, has_glob
from headrace.storage import ObjectInfo, register_store
from headrace.storage.stores.local import LocalStore
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
    (tmp_path / 'x' / 'lines.json').write_text('{}')
    for place in (tmp_path / 'x', tmp_path / 'x' / 'lines.json', tmp_path / 'x' / '*'):
        with pytest.raises(ObjectNotFoundError, match='rename it to .jsonl'):
            convert(place, tmp_path / 'out')
        with pytest.raises((ObjectNotFoundError, EmptyDatasetError), match='rename it to .jsonl'):
            StreamingDataset(remote=str(place), local=str(tmp_path / 'cache'))
    with pytest.raises(ObjectNotFoundError, match='There is no folder.*Of its path'):
        convert(tmp_path / 'missing', tmp_path / 'out')
    with pytest.raises(ConfigError, match=r'below a bucket, but that of s3://b\*/x is in its name'):
        store_of('s3://b*/x')


def test_the_url_of_one_object_is_told_to_be_a_glob() -> None:
    register_store('one-object', lambda url, _: MemoryStore({}, url=url))
    with pytest.raises(EmptyDatasetError, match=r'give a glob: one-object://x/a\.jsonl\*'):
        store_of('one-object://x/a.jsonl').find()


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
