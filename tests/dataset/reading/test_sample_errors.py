"""Errors of a user's code stay what they are, and say which stream, shard, row and sample they are about."""

from __future__ import annotations

import re
import sys
import traceback

import numpy as np
import pytest
from torch.utils.data import DataLoader

from headrace import CSVWriter, JSONWriter, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import CollateError
from headrace.packing import PackedDataset, Packing

TIMES = 1 if sys.version_info >= (3, 11) else 2
"""How often a traceback has a note: on 3.10 it is also the cause, and pytest's `exceptiongroup` prints notes there."""

PLACE = "stream 'two', shard 'shard.00001.mds', row 1, sample id 36"


class MyError(Exception):
    pass


class Coded(Exception):
    """One that cannot be made of a message alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


def told(error: BaseException) -> str:
    return ''.join(traceback.format_exception(type(error), error, error.__traceback__))


@pytest.fixture
def streams(make_dataset):
    """Samples 0 to 19 and 20 to 39, in shards of 15 and 5."""
    folders = {'one': make_dataset('one', 20, per_shard=5), 'two': make_dataset('two', 20, first=20, per_shard=5)}
    return [Stream(local=str(folder), name=name) for name, folder in folders.items()]


class OfItem(StreamingDataset):
    def get_item(self, idx):
        sample = super().get_item(idx)
        if sample['id'] == 36:
            raise MyError('no 36')
        return sample


class OfSubscript(StreamingDataset):
    def __getitem__(self, at):
        sample = super().__getitem__(at)
        if sample['id'] == 36:
            raise MyError('no 36')
        return sample


@pytest.mark.parametrize('cls', [OfItem, OfSubscript])
@pytest.mark.parametrize('workers', [0, 1])
def test_of_reading_a_sample(streams, cls, workers):
    loader = StreamingDataLoader(cls(streams=streams, batch_size=4, shuffle=True), num_workers=workers)
    with pytest.raises(MyError, match='no 36') as raised:
        list(loader)
    assert told(raised.value).count(f'While reading {PLACE}.') == TIMES


@pytest.mark.parametrize('cls', [OfItem, OfSubscript])
def test_of_iterating(streams, cls):
    dataset = cls(streams=streams, batch_size=4)
    with pytest.raises(MyError) as raised:
        list(dataset)
    assert f'While reading {PLACE}.' in told(raised.value)
    with pytest.raises(MyError) as raised:
        list(DataLoader(dataset, batch_size=4, num_workers=1))
    assert f'While reading {PLACE}.' in told(raised.value)


def test_that_takes_other_arguments(streams):
    class Own(StreamingDataset):
        def get_item(self, idx):
            raise Coded(7, 'seven')

    with pytest.raises(Coded) as raised:
        next(iter(StreamingDataLoader(Own(streams=streams, batch_size=4))))
    assert raised.value.args == (7, 'seven')
    assert "stream 'one', shard 'shard.00000.mds', row 0, sample id 0" in told(raised.value)


def test_that_all_samples_raise(streams):
    class Own(StreamingDataset):
        def get_item(self, idx):
            raise MyError('none')

    loader = StreamingDataLoader(Own(streams=streams, batch_size=4, on_bad_sample='skip'))
    with pytest.raises(MyError, match='none') as raised:
        next(iter(loader))
    assert "While reading stream 'one', shard 'shard.00000.mds', row 0, sample id 0." in told(raised.value)


@pytest.mark.parametrize('workers', [0, 1])
def test_of_collating(streams, workers):
    def collate(samples):
        if any(sample['id'] == 36 for sample in samples):
            raise MyError('no such batch')
        return samples

    dataset = StreamingDataset(streams=streams, batch_size=20)
    with pytest.raises(MyError, match='no such batch') as raised:
        list(StreamingDataLoader(dataset, num_workers=workers, collate_fn=collate))
    text = told(raised.value)
    assert 'While collating the 20 samples\n' in text
    lines = re.findall(r"^ +stream 'two', shard '(.+)', row (\d), sample id (\d+)$", text, re.MULTILINE)
    assert lines[:8] == [('shard.00000.mds', str(row), str(20 + row)) for row in range(8)]
    assert len(lines) == 8 * TIMES
    assert 'and 12 more' in text


@pytest.mark.parametrize('workers', [0, 1])
def test_of_an_iterator_that_ends_while_collating(streams, workers):
    def collate(samples):
        return next(sample for sample in samples if sample['id'] < 36)

    dataset = StreamingDataset(streams=streams, batch_size=4)
    loader = StreamingDataLoader(dataset, num_workers=workers, collate_fn=collate)
    with pytest.raises(RuntimeError, match='`collate_fn` raised StopIteration') as raised:
        list(loader)
    assert f'While collating the 4 samples\n  {PLACE}\n' in told(raised.value)


class Ragged(StreamingDataset):
    def get_item(self, idx):
        return {'x': np.zeros(3 if idx == 36 else 2)}


class Lacking(StreamingDataset):
    def get_item(self, idx):
        return {} if idx == 36 else {'x': idx}


@pytest.mark.parametrize(('cls', 'error'), [(Ragged, RuntimeError), (Lacking, KeyError)])
@pytest.mark.parametrize('workers', [0, 1])
def test_of_default_collate(streams, cls, error, workers):
    loader = StreamingDataLoader(cls(streams=streams, batch_size=10), num_workers=workers)
    with pytest.raises(error) as raised:
        list(loader)
    beside = "stream 'two', shard 'shard.00000.mds', row 10, sample id 30"
    assert f'While collating {PLACE}, beside {beside}.' in told(raised.value)


def test_of_a_column_that_does_not_stack(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'x': 'ndarray'}) as writer:
        for number in range(8):
            writer.write({'x': np.zeros(3 if number == 6 else 2)})
    for options in ({}, {'on_bad_sample': 'skip'}):
        loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4, **options))
        where = r"stream 'stream_0', shard 'shard.00000.mds', row {0}, sample id {0}"
        message = f"Column 'x' .* is of {where.format(6)}, beside {where.format(4)}. Pass `pad="
        with pytest.raises(CollateError, match=message):
            list(loader)


class Packed(PackedDataset):
    def get_item(self, idx):
        sample = super().get_item(idx)
        return {} if sample['id'] == 36 else {'tokens': np.ones(4, np.int32)}


@pytest.mark.parametrize('workers', [0, 1])
def test_of_reading_a_document(streams, workers):
    packing = Packing(sequence_length=4, method='concatenate', sequences_per_epoch=40, lanes=4)
    loader = StreamingDataLoader(Packed(streams=streams, batch_size=4, packing=packing), num_workers=workers)
    with pytest.raises(KeyError) as raised:
        list(loader)
    assert f'While reading {PLACE}.' in told(raised.value)


def test_of_tokenising(streams):
    def tokenizer(values):
        raise MyError('no words')

    packing = Packing(sequence_length=4, sequences_per_epoch=4, lanes=4, tokenizer=tokenizer, column='id')
    with pytest.raises(MyError) as raised:
        list(StreamingDataLoader(PackedDataset(streams=streams, batch_size=4, packing=packing)))
    assert re.search(r"While tokenising the \d+ samples\n +stream '(one|two)', shard", told(raised.value))


@pytest.mark.parametrize('workers', [0, 1])
def test_of_transforming(streams, workers):
    pytest.importorskip('lightning')
    from headrace.lightning.datamodule import HookedDataModule, SampleHooks

    class Module(HookedDataModule):
        fails = 'transform'

        def transform(self, sample, section):
            if self.fails == 'transform' and sample['id'] == 36:
                raise MyError('no 36')
            return sample

        def collate(self, samples, section):
            if self.fails == 'collate':
                raise MyError('no batch')
            return samples

    module = Module()
    loader = StreamingDataLoader(
        StreamingDataset(streams=streams, batch_size=4), num_workers=workers, collate_fn=SampleHooks(module, 'train')
    )
    with pytest.raises(MyError) as raised:
        list(loader)
    assert f'While transforming {PLACE}.' in told(raised.value)
    module.fails = 'collate'
    with pytest.raises(MyError) as raised:
        list(loader)
    assert 'While collating the 4 samples\n' in told(raised.value)


# -- writing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('writer', 'encoding', 'value', 'error'),
    [
        (MDSWriter, 'int', 'one', AttributeError),
        (MDSWriter, 'int8', 1000, OverflowError),
        (MDSWriter, 'ndarray:float32:3', np.zeros(3), ValueError),
        (MDSWriter, 'int', b'123', ValueError),
        (MDSWriter, 'jpeg_array', 7, TypeError),
        (JSONWriter, 'int', 'one', AttributeError),
        (CSVWriter, 'str', 'a,b', ValueError),
    ],
)
def test_of_writing_a_value(tmp_path, writer, encoding, value, error):
    good = {'int': 1, 'int8': 1, 'str': 'x', 'jpeg_array': []}.get(encoding, np.zeros(3, np.float32))
    with writer(out=str(tmp_path), columns={'id': 'int', 'x': encoding}) as out:
        out.write({'id': 0, 'x': good})
        with pytest.raises(error, match="^Sample 1, column 'x': A "):
            out.write({'id': 1, 'x': value})
        out.write({'id': 2, 'x': good})
        with pytest.raises(KeyError, match=r"but sample 3 lacks \['x'\]"):
            out.write({'id': 3})
    assert [sample['id'] for sample in StreamingDataset(local=str(tmp_path), batch_size=1)] == [0, 2]


def test_of_writing_that_is_of_another_kind(tmp_path):
    class Number:
        def __int__(self):
            raise ZeroDivisionError

    with MDSWriter(out=str(tmp_path), columns={'x': 'int8'}) as out, pytest.raises(ZeroDivisionError) as raised:
        out.write({'x': Number()})
    assert "While encoding sample 0, column 'x'." in told(raised.value)
