"""The dataclasses of the schema, and that they agree with the constructors whose arguments they name."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from schema_classes import CLASSES, fields, parameters

from headrace import mixing
from headrace.mixing import (
    DatasetConfig,
    TransferConfig,
    WorkerConfig,
    load_config,
)


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
    assert set(theirs) - set(ours) - of_transfers == {'batch_size', 'stream_name', 'stream_config', 'topology'}
    for name, default in ours.items():
        if name not in ('streams', 'shuffle_seed'):
            assert default == theirs[name].default, name
    assert theirs['shuffle_seed'].default == 9176


def test_workers_have_the_keys_and_defaults_of_the_loader() -> None:
    from headrace.dataset.loader import StreamingDataLoader

    theirs = parameters(StreamingDataLoader)
    for name, default in fields(WorkerConfig).items():
        assert default == theirs[name].default, name
