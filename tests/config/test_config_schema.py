"""The dataclasses of the schema, and that they agree with the constructors whose arguments they name."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace import mixing
from headrace.mixing import (
    Config,
    DatasetConfig,
    LoaderConfig,
    StreamConfig,
    TransferConfig,
    WorkerConfig,
    load_config,
    to_yaml,
)
from tests.support.datasets.refusals import MINIMAL
from tests.support.datasets.schema_classes import CLASSES, fields, parameters


@pytest.mark.parametrize('cls', CLASSES)
def test_a_configuration_cannot_be_changed(cls: type) -> None:
    config = cls()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(cls)[0].name, 1)
    with pytest.raises((AttributeError, TypeError)):
        config.something_new = 1
    with pytest.raises(TypeError, match='positional'):
        cls(1)
    assert not hasattr(config, '__dict__')


def test_a_configuration_is_a_value() -> None:
    config = load_config(
        {'device_batch_size': 4, 'train': {'streams': {'a': {'local': '/a'}}}, 'eval': {'local': '/b'}}
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert len({config, copy.copy(config)}) == 1


def test_all_is_importable_and_sorted() -> None:
    assert sorted(mixing.__all__) == mixing.__all__
    assert all(hasattr(mixing, name) for name in mixing.__all__)


def test_a_dataset_has_the_keys_and_defaults_of_streaming_dataset() -> None:
    from headrace.dataset.dataset import StreamingDataset

    theirs = parameters(StreamingDataset)
    ours = fields(DatasetConfig, without=TransferConfig)
    of_transfers = set(fields(TransferConfig)) & set(theirs)
    # Given by the loader's configuration, or made by it: the batch size, streams by registered name, the topology.
    assert set(theirs) - set(ours) - of_transfers == {
        'batch_size',
        'global_batch_size',
        'stream_name',
        'stream_config',
        'topology',
    }
    for name, default in ours.items():
        if name not in ('streams', 'shuffle_seed'):
            assert default == theirs[name].default, name
    assert theirs['shuffle_seed'].default == 9176


def test_workers_have_the_keys_and_defaults_of_the_loader() -> None:
    from headrace.dataset.loader import StreamingDataLoader

    theirs = parameters(StreamingDataLoader)
    for name, default in fields(WorkerConfig).items():
        assert default == theirs[name].default, name


names = st.text('abcdefgh.-_ 0123456789', min_size=1, max_size=8)


texts = st.text(min_size=1, max_size=12).filter(
    lambda text: '\\$' not in text and '\0' not in text and not text.endswith('\\') and text != '???'
)


streams = st.builds(
    StreamConfig,
    name=names,
    local=texts,
    split=st.none() | texts,
    repeat=st.none() | st.floats(0, 1e6),
    keep_zip=st.none() | st.booleans(),
    columns=st.none() | st.lists(texts, min_size=1, max_size=2).map(tuple),
    download_timeout=st.none() | st.floats(1e-3, 1e6),
)


loaders = st.builds(
    LoaderConfig,
    streams=st.lists(streams, min_size=1, max_size=3, unique_by=(lambda each: each.name, lambda each: each.local)),
    shuffle=st.booleans(),
    shuffle_seed=st.none() | st.integers(0, 2**32),
    cache_limit=st.none() | st.integers(1, 2**60),
    device_batch_size=st.integers(1, 4096),
    loader=st.builds(WorkerConfig, num_workers=st.integers(0, 64), timeout=st.floats(0, 1e4)),
)


@given(loader=loaders, several=st.lists(st.sampled_from(['c4', 'eval', 'test', 'x.y']), max_size=3, unique=True))
def test_what_is_written_reads_back_as_the_same(loader: LoaderConfig, several: list[str]) -> None:
    def named(name: str) -> LoaderConfig:
        fields = {key: getattr(loader, key) for key in LoaderConfig.__dataclass_fields__}
        return LoaderConfig(**{**fields, 'name': name, 'streams': tuple(loader.streams)})

    config = Config(train=named('train'), eval=tuple(named(name) for name in several))
    text = to_yaml(config)
    assert load_config(OmegaConf.create(text)) == config
    assert load_config(OmegaConf.create(to_yaml(load_config(OmegaConf.create(text))))) == config


def test_what_is_written_is_short() -> None:
    written = yaml.safe_load(to_yaml(load_config({**MINIMAL, 'eval': {'local': '/val'}})))
    assert written == {
        'device_batch_size': 4,
        'train': {'local': '/data', 'device_batch_size': 4},
        'eval': {'local': '/val', 'device_batch_size': 4},
    }


def test_a_configuration_prints_as_yaml_without_secrets() -> None:
    train = {'remote': 's3://name:secret@bucket/x', 'store_options': {'secret_access_key': 'secret'}}
    printed = str(load_config({'global_batch_size': 8, 'train': train}))
    assert 'secret@' not in printed
    assert yaml.safe_load(printed)['train']['store_options'] == {'secret_access_key': '***'}


def test_a_stream_has_the_keys_of_stream() -> None:
    from headrace.dataset.streams.stream import Stream

    assert set(fields(StreamConfig)) == set(parameters(Stream))
