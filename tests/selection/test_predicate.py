"""Conditions and functions of `where`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from no_tokens import no_tokens  # noqa: F401
from selected import bits

from headrace import StreamingDataset, Where
from headrace.errors import StreamError


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'name': ''}, 'text that is not empty'),
        ({'name': 5}, 'text that is not empty'),
        ({'name': 'a', 'columns': 'id'}, 'list of names'),
        ({'name': 'a', 'columns': []}, 'list of names'),
        ({'name': 'a', 'columns': [5]}, 'list of names'),
        ({'function': 5, 'name': 'a'}, 'takes a function'),
    ],
)
def test_a_where_that_breaks_a_rule(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        Where(**{'function': len, **options})


def test_the_error_of_a_function_comes_out(data: Path, private: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        StreamingDataset(local=str(data), where=Where(lambda s: 1 / (s['id'] - 50), name='odd', columns=['id']))
    assert bits(private) == []


def test_the_same_predicate_in_other_words_is_the_same(data: Path, private: Path) -> None:
    for where in (
        {'lang': {'in': ['fr', 'de']}, 'id': {'at_least': 5, 'not': {'equals': 7}}},
        {'id': {'not': 7, 'at_least': 5}, 'lang': ['de', 'fr', 'de']},
    ):
        dataset = StreamingDataset(local=str(data), where=where)
        assert 'where {"id": {"at_least": 5, "not": 7}, "lang": ["de", "fr"]} (' in dataset.streams[0].fingerprint
    assert len(bits(private)) == 1
