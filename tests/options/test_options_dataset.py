"""The options of a dataset, and the YAML that is made of them."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.errors import ConfigError
from headrace.mixing import load_config
from headrace.options.constraints import all_field_texts
from headrace.options.dataset import DatasetOptions


def test_each_option_has_a_text() -> None:
    texts = all_field_texts(DatasetOptions)
    assert texts.keys() == {option.name for option in dataclasses.fields(DatasetOptions)}
    assert all(text.endswith('.') for text in texts.values())


def test_the_limit_of_the_cache_in_bytes() -> None:
    assert DatasetOptions(cache_limit='2kb').cache_bytes == 2048
    assert DatasetOptions().cache_bytes is None


@pytest.mark.parametrize('skip', [5, [[1]], [[4, 2]], ['12']], ids=str)
def test_malformed_ranges_are_refused_with_their_place(skip: object) -> None:
    with pytest.raises(ConfigError, match=r'train\.skip.*: got .*; must '):
        load_config({'global_batch_size': 1, 'train': {'local': '/a', 'skip': skip}})
