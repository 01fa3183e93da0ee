"""The dataclasses of the schema, and that they agree with the constructors whose arguments they name."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from pathlib import Path

import pytest

from headrace import mixing
from headrace.config.packing import PackingConfig, TokenizerConfig
from headrace.config.reference import field_texts, updated
from headrace.config.schema import FileDirectives
from headrace.mixing import (
    Config,
    DatasetConfig,
    LoaderConfig,
    SelectionConfig,
    StreamConfig,
    TransferConfig,
    WorkerConfig,
    load_config,
)

CLASSES = (
    Config,
    FileDirectives,
    LoaderConfig,
    DatasetConfig,
    StreamConfig,
    SelectionConfig,
    TransferConfig,
    WorkerConfig,
    PackingConfig,
    TokenizerConfig,
)
PAGE = Path(__file__).parents[2] / 'docs' / 'configuration.md'


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


@pytest.mark.parametrize('cls', CLASSES)
def test_each_field_is_documented_beneath_and_has_a_default(cls: type) -> None:
    own = set(cls.__annotations__)
    assert set(field_texts(cls)) == own
    assert all(text.endswith('.') for text in field_texts(cls).values())
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(cls) if field.name in own)


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


def test_the_page_of_keys_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert updated(text) == text, 'run python -m headrace.config.reference'
    for cls in CLASSES:
        for field in dataclasses.fields(cls):
            assert f'| `{field.name}` |' in text


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match='no table between <!-- table: top level -->'):
        updated('# Configuration\n')


# -- the constructors --------------------------------------------------------------------------------------------------


def parameters(cls: type) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(cls.__init__).parameters)
    del found['self']
    return found


def fields(cls: type, *, without: type | None = None) -> dict[str, object]:
    left_out = {field.name for field in dataclasses.fields(without)} if without else set()
    return {field.name: field.default for field in dataclasses.fields(cls) if field.name not in left_out}


def test_a_stream_has_the_keys_of_stream() -> None:
    from headrace.dataset.streams.stream import Stream

    assert set(fields(StreamConfig)) == set(parameters(Stream))


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
