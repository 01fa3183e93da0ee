"""Streams: their folders, and arguments that are refused."""

from __future__ import annotations

import hashlib
import os
import tempfile
from typing import Any

import pytest

from headrace import MDSWriter, Stream, StreamingDataset
from headrace.errors import ConfigError, StreamError
from headrace.mixing import load_config
from headrace.storage import open_store


def test_a_stream_without_local_gets_a_folder_named_after_its_remote():
    stream = Stream(remote='s3://bucket/data', split='train')
    digest = hashlib.blake2s(b's3://bucket/data', digest_size=16).hexdigest()
    assert stream.local == os.path.join(tempfile.gettempdir(), digest, 'train')


def test_another_value_is_refused():
    with pytest.raises(ConfigError, match=r"'refresh' or 'refuse', but is 'ask'"):
        Stream(remote='/none', on_changed_data='ask')


@pytest.mark.parametrize('given', [{'remote': 'a\0b'}, {'local': 'a\0'}, {'local': 'a', 'split': '\0'}], ids=str)
def test_a_path_with_a_nul_is_refused(given):
    name = list(given)[-1]
    with pytest.raises(StreamError, match=rf"`{name}` must be without NUL characters; .*got '.*\\x00"):
        Stream(**given)
    with pytest.raises(ConfigError, match=rf'train.{name}: .*must be without NUL characters'):
        load_config({'global_batch_size': 1, 'train': given})
    with pytest.raises(ConfigError, match='has no NUL character'):
        open_store('a\0b')


def test_a_stream_before_and_after_it_is_opened(make_dataset: Any) -> None:
    stream = Stream(local=str(make_dataset()), name='a', subset=[[0, 30]], columns=['id'])
    assert str(stream).startswith("Stream 'a' (not opened)\n")
    StreamingDataset(streams=[stream], batch_size=4)
    text = str(stream)
    assert text.startswith("Stream 'a'\n")
    assert '30 of 100 samples in' in text
    assert 'id: int64' in text
    assert 'row' not in text


def test_many_streams_are_cut(make_dataset: Any) -> None:
    folder = str(make_dataset())
    dataset = StreamingDataset(streams=[Stream(local=folder, name=f's{i}') for i in range(20)], batch_size=4)
    assert 'and 12 more streams' in str(dataset)
    assert len(str(dataset).split('\n')) < 16


def test_a_local_folder_that_is_set_later_is_used(tmp_path):
    with MDSWriter(out=str(tmp_path / 'data'), columns={'x': 'int'}) as writer:
        writer.write({'x': 1})
    stream = Stream(remote=str(tmp_path / 'data'))
    stream.local = str(tmp_path / 'cache')
    assert len(StreamingDataset(streams=[stream], batch_size=1)) == 1
    assert stream.local == str(tmp_path / 'cache')
    assert (tmp_path / 'cache' / 'index.json').is_file()


def test_a_subclass_may_store_options_before_it_is_made(tmp_path) -> None:
    class Named(Stream):
        def __init__(self, *, split: str, **options: Any) -> None:
            self.split = split
            super().__init__(split=split, **options)

    stream = Named(local=str(tmp_path), split='train')
    assert stream.split == 'train'
    stream.split = 'val'
    assert (stream.split, 'proportion' in dir(stream)) == ('val', True)
