"""The page of keys, from the dataclasses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.config.reference import json_schema, updated
from headrace.errors import ConfigError
from headrace.mixing import load_config
from headrace.options.constraints import field_texts
from tests.support.datasets.schema_classes import CLASSES
from tests.support.suite.optional_modules import REPOSITORY

PAGE = Path(__file__).parents[2] / 'docs' / 'configuration.md'


@pytest.mark.parametrize('cls', CLASSES)
def test_each_field_is_documented_beneath_and_has_a_default(cls: type) -> None:
    own = set(cls.__annotations__)
    assert set(field_texts(cls)) == own
    assert all(text.endswith('.') for text in field_texts(cls).values())
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(cls) if field.name in own)


def test_the_page_of_keys_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert updated(text) == text, 'run python -m headrace.config.reference'
    for cls in CLASSES:
        for field in dataclasses.fields(cls):
            assert f'| `{field.name}` |' in text


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match='no table between <!-- table: top level -->'):
        updated('# Configuration\n')


SCHEMA = jsonschema.Draft202012Validator(json_schema())


def is_accepted(config: Any) -> bool:
    return SCHEMA.is_valid(config)


@pytest.mark.parametrize('path', sorted((REPOSITORY / 'configs').glob('*.yaml')), ids=lambda path: path.name)
def test_the_example_files_are_accepted(path: Path) -> None:
    assert is_accepted(OmegaConf.to_container(OmegaConf.load(path)))


def config(**train: Any) -> dict[str, Any]:
    return {'global_batch_size': 8, 'train': {'remote': 's3://b/a', 'local': '/a', **train}}


@pytest.mark.parametrize(
    'changes',
    [
        {'shufle': True},
        {'shuffle': 'yes'},
        {'shuffle_algo': 'pyle'},
        {'batching_method': 'ordered'},
        {'predownload': -1},
        {'cache_limit': '10 bananas'},
        {'epoch_size': 0},
        {'loader': {'num_workers': 1.5}},
        {'loader': {'workers': 2}},
        {'streams': [{'remote': 's3://b/a', 'proportion': 'half'}]},
        {'streams': {}},
        {'packing': {'sequence_length': '2k tokens'}},
        {'packing': 'yes'},
        {'schedule': {'at': 0}},
    ],
)
def test_mistakes_are_refused_as_by_the_reader(changes: dict[str, Any]) -> None:
    assert is_accepted(config())
    assert not is_accepted(config(**changes))
    with pytest.raises(ConfigError):
        load_config(config(**changes))


SIZES = st.sampled_from(
    ['100', '100b', '64mb', '1.5GB', '.5gb', '2.mb', ' 2 kb ', '3', '1.5', '12k', '1e3', 'kb', '1 b']
)


COUNTS = st.sampled_from(['100', '100k', '64M', '1.5b', '.5k', '2.k', '1t', '2 k', '1.5', 'k', '10kb'])
VALUES = st.none() | st.booleans() | st.integers(-1, 2) | st.floats(-1, 2) | st.sampled_from(['', 'py1e', 'fixed', 'x'])
KEYS = ['shuffle', 'shuffle_algo', 'predownload', 'sampling_method', 'shuffle_seed', 'num_canonical_nodes', 'remote']


@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.none() | SIZES, st.none() | COUNTS)
def test_what_the_reader_accepts_is_accepted(changes: dict[str, Any], size: Any, count: Any) -> None:
    given_config = config(**changes, cache_limit=size, shuffle_block_size=count)
    try:
        load_config(given_config)
    except ConfigError:
        return
    assert is_accepted(given_config)


def test_interpolations_stand_for_any_value() -> None:
    assert is_accepted(config(shuffle='${oc.decode:${oc.env:SHUFFLE}}', loader='${variables.loader}'))
    assert is_accepted({'defaults': ['base.yaml'], 'variables': {'loader': {'num_workers': 2}}, **config()})
