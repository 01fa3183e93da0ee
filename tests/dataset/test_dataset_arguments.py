"""Arguments by position, and unknown ones."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import torch

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.dataset.arguments import given_names, knows_given_names
from headrace.errors import ArgumentError, ConfigError
from headrace.mixing import load_config


@pytest.mark.parametrize('cls', [StreamingDataset, Stream])
def test_an_argument_without_a_name(tmp_path, cls):
    for given in (str(tmp_path), tmp_path):
        with pytest.raises(ArgumentError, match=f'{cls.__name__} takes .* by name, but got .*Write `local=` before'):
            cls(given)
    with pytest.raises(TypeError, match='but got 3 by position. Write each argument as `name=value`'):
        cls(3)


@pytest.mark.parametrize('cls', [StreamingDataset, Stream])
def test_an_argument_that_does_not_exist(cls):
    with pytest.raises(ArgumentError, match=f'{cls.__name__} has no argument `remot`. Did you mean `remote`'):
        cls(remot='x')
    with pytest.raises(TypeError, match='has no argument `zzz`. It takes .*local, split'):
        cls(zzz=1)


def test_a_subclass_has_arguments_of_its_own(make_dataset):
    class Own(StreamingDataset):
        def __init__(self, folder, **options):
            super().__init__(local=folder, **options)

    assert Own(str(make_dataset()), batch_size=4).size == 100
    with pytest.raises(ArgumentError, match='Own has no argument `shufle`. Did you mean `shuffle`'):
        Own(str(make_dataset('other')), shufle=True)
    assert 'shuffle' in inspect.signature(StreamingDataset).parameters


@pytest.mark.parametrize(
    ('argument', 'value', 'kind'),
    [
        ('batch_size', '4', 'an integer'),
        ('predownload', '8', 'an integer'),
        ('download_retry', '2', 'an integer'),
        ('replication', 'x', 'an integer'),
        ('batch_size', True, 'an integer'),
        ('download_timeout', '60', 'a number'),
        ('shuffle', 'false', 'True or False'),
        ('keep_zip', 'yes', 'True or False'),
        ('allow_unsafe_types', 'no', 'True or False'),
        ('anonymous', 2, 'True or False'),
        ('split', 5, 'a text'),
        ('endpoint_url', ['x'], 'a text'),
        ('shuffle_algo', 1, 'a text'),
        ('cache_limit', [1], 'a number, or a text such as'),
        ('epoch_size', {}, 'a number, or a text such as'),
    ],
)
def test_an_argument_of_another_kind(make_dataset, argument, value, kind):
    with pytest.raises(ArgumentError, match=rf'`{argument}` must be {kind}.*, but is {re.escape(repr(value))}'):
        StreamingDataset(local=str(make_dataset()), **{argument: value})


@pytest.mark.parametrize('weight', ['proportion', 'repeat', 'choose'])
def test_a_weight_is_no_text(weight):
    with pytest.raises(ArgumentError, match=f"`{weight}` must be .*, but is 'much'. Convert text first"):
        Stream(local='x', **{weight: 'much'})


@pytest.mark.parametrize('argument', ['cache_limit', 'epoch_size'])
def test_a_truth_value_is_no_size(make_dataset, argument):
    with pytest.raises(ConfigError, match='is a number, but got True'):
        StreamingDataset(local=str(make_dataset()), **{argument: True})


def test_the_loader_takes_no_text_for_a_number(make_dataset):
    data = StreamingDataset(local=str(make_dataset()), batch_size=4)
    with pytest.raises(ArgumentError, match=r"`num_workers` must be an integer, but is '2'. .* `int\(...\)`"):
        StreamingDataLoader(data, num_workers='2')
    assert len(list(StreamingDataLoader(data, num_workers=False))) == 25


@pytest.mark.parametrize('four', [np.int64(4), np.uint8(4), torch.tensor(4)])
def test_numbers_of_other_libraries_and_truth_values_as_numbers(make_dataset, four):
    data = StreamingDataset(
        local=str(make_dataset()),
        batch_size=4,
        predownload=four,
        cache_limit=four,
        epoch_size=four * 25,
        download_timeout=four,
        shuffle=np.bool_(True),
        keep_zip=0,
    )
    assert len(list(StreamingDataLoader(data))) == 25


def test_numbers_of_numpy_are_plain_wherever_they_are_given(make_dataset):
    folder = str(make_dataset())
    stream = Stream(local=folder, repeat=np.float64(0.5), subset=[[np.int64(0), np.int64(40)]])
    data = StreamingDataset(streams=[stream], shuffle_seed=np.int64(7), bucket=None, replication=np.int8(1))
    loader = StreamingDataLoader(
        data, batch_size=np.int64(4), num_workers=np.int64(0), drop_last=np.bool_(False), max_epochs=np.uint8(1)
    )
    assert [type(value) for value in (stream.placed.repeat, data.shuffle_seed, loader.batch_size)] == [float, int, int]
    assert type(loader.max_epochs) is int
    assert len(list(loader)) == 5
    with pytest.raises(ConfigError, match='`batch_size` must be at least 1, but is 0'):
        StreamingDataset(local=folder, batch_size=np.int64(0))


def test_numbers_of_numpy_in_a_configuration(make_dataset):
    given = {'train': {'local': str(make_dataset()), 'device_batch_size': np.int64(4), 'shuffle': np.bool_(True)}}
    config = load_config(given).train
    assert config is not None
    assert (type(config.device_batch_size), type(config.shuffle)) == (int, bool)


@pytest.mark.parametrize('argument', ['remote', 'local'])
def test_a_place_is_a_text_or_a_path(make_dataset, argument):
    folder = make_dataset()
    assert StreamingDataset(**{argument: folder}).size == 100
    with pytest.raises(ArgumentError, match=f'`{argument}` must be a text, but is 5'):
        StreamingDataset(**{argument: 5})


def test_something_else_than_streams_beside_a_folder(make_dataset):
    with pytest.raises(ConfigError, match='`streams` must be a list of Stream objects, but is a int. Write'):
        StreamingDataset(streams=5, local=str(make_dataset()))


def test_a_function_may_ask_for_the_names_of_its_arguments():
    @knows_given_names
    def function(first: int, second: int = 2, *, third: int = 3, **rest: int) -> frozenset[str]:
        return given_names()

    assert function(1) == {'first'}
    assert function(1, 2, fourth=4) == {'first', 'second', 'fourth'}
    assert function(first=1, third=3) == {'first', 'third'}
    assert function(1, second=2, third=4) == {'first', 'third'}, 'all, as a command line gives them'
    assert str(inspect.signature(function)).startswith('(first:')


def test_a_class_of_streams_beside_streams_is_refused(make_dataset):
    streams = [Stream(local=str(make_dataset('d', 10)))]
    with pytest.raises(ConfigError, match='`stream_name` and `stream_config` make the one stream'):
        StreamingDataset(streams=streams, stream_name='other')
    with pytest.raises(ConfigError, match='`stream_name` and `stream_config` make the one stream'):
        StreamingDataset(streams=streams, stream_config={'label': 'a'})
