"""The page of keys, from the dataclasses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from schema_classes import CLASSES

from headrace.config.reference import field_texts, updated

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
