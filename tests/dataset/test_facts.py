"""Datasets, streams and loaders say what they are: in few lines, without secrets, and whatever their state."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalDataset, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.packing import PackedDataset, Packing
from tests.support.pages.shown import html_of
from tests.support.suite.planted import found_in, planted_url, register_planted_store


@pytest.fixture
def mix(make_dataset: Any, tmp_path: Path) -> StreamingDataset:
    streams = [
        Stream(remote=str(make_dataset('code', 50)), local=str(tmp_path / 'c'), name='code', proportion=0.3),
        Stream(local=str(make_dataset('prose', 80)), name='prose', proportion=0.7),
    ]
    return StreamingDataset(streams=streams, batch_size=4, shuffle=True, epoch_size=100)


def test_a_dataset(mix: StreamingDataset, tmp_path: Path) -> None:
    lines = str(mix).split('\n')
    assert repr(mix) == str(mix)
    assert lines[0] == 'StreamingDataset: 130 samples of 2 streams'
    assert lines[1].startswith(f'  code     {tmp_path}/code, 50 samples in 3 shards (')
    assert lines[1].endswith('proportion 0.3')
    assert '  columns  id: int64, row: float32 array of shape (4,)' in lines
    assert '  epoch    100 samples' in lines
    assert '  order    native, shuffled with seed 9176' in lines
    assert '  batch    4 samples per device' in lines


def test_a_loader_says_its_position(mix: StreamingDataset) -> None:
    loader = StreamingDataLoader(mix, remainder='drop')
    assert 'position  epoch 0, sample 0' in str(loader)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert 'position  epoch 0, sample 8' in str(loader)
    state = loader.state_dict()
    del batches
    other = StreamingDataLoader(mix, remainder='drop')
    other.load_state_dict(state)
    assert 'position  epoch 0, sample 8' in str(other)
    assert "remainder 'drop'" in str(other)
    assert '80 samples in' in str(other)


def test_a_local_dataset(make_dataset: Any) -> None:
    folder = make_dataset()
    lines = str(LocalDataset(str(folder))).split('\n')
    assert lines[:2] == ['LocalDataset', f'  local    {folder}']
    assert '100 samples in' in lines[2]
    assert len(lines) == 4


def test_nothing_is_read(mix: StreamingDataset, tmp_path: Path) -> None:
    before = str(mix)
    for folder in ('code', 'prose', 'c'):
        shutil.rmtree(tmp_path / folder)
    assert str(mix) == before


@pytest.mark.parametrize('kind', [LocalDataset, Stream, StreamingDataset, StreamingDataLoader, PackedDataset])
def test_objects_that_are_not_ready(kind: Any) -> None:
    half = kind.__new__(kind)
    for text in (repr(half), str(half), html_of(half)):
        assert kind.__name__ in text
        assert 'not ready' in text


def test_copies(mix: StreamingDataset) -> None:
    for each in (mix, *mix.streams):
        assert str(copy.copy(each)) == str(each)
    assert str(pickle.loads(pickle.dumps(mix))) == str(mix)


def test_html_is_escaped(tmp_path: Path) -> None:
    evil = '<script>x\x1b</script>'
    with MDSWriter(out=str(tmp_path / 'data'), columns={evil: 'int'}) as writer:
        writer.write({evil: 1})
    dataset = StreamingDataset(streams=[Stream(local=str(tmp_path / 'data'), name=evil)], batch_size=1)
    for each in (dataset, *dataset.streams, StreamingDataLoader(dataset)):
        assert '<script' not in html_of(each)
        assert '&lt;script' in html_of(each)
        assert '\x1b' not in html_of(each) + str(each)
        assert all(line.isprintable() for line in str(each).split('\n'))


def test_no_secrets(make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register_planted_store(monkeypatch)
    dataset = StreamingDataset(remote=planted_url(make_dataset()), local=str(tmp_path / 'c'), batch_size=2)
    for each in (dataset, *dataset.streams, StreamingDataLoader(dataset)):
        assert 'planted://' in str(each)
        assert not found_in(repr(each) + html_of(each))


def test_packed_documents(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'tokens': 'ndarray:int32'}) as writer:
        import numpy as np

        for i in range(20):
            writer.write({'tokens': np.arange(i + 1, dtype=np.int32)})
    packing = Packing(sequence_length=8, column='tokens', sequences_per_epoch=4)
    dataset = PackedDataset(local=str(tmp_path / 'data'), packing=packing, batch_size=2, shuffle=True)
    assert str(dataset).startswith('PackedDataset: 20 samples of 1 stream\n')
    assert 'shuffled' in str(dataset)


def test_a_repr_of_a_subclass_is_its_str_too(make_dataset: Any) -> None:
    class Own(StreamingDataset):
        def __repr__(self) -> str:
            return 'mine'

    assert str(Own(local=str(make_dataset()), batch_size=4)) == 'mine'
