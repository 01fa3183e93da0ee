"""Each value of a contract's tables has a test that is not slow."""

import itertools

import pytest

from tests.support.stores.contract_rows import each_value_once

pytestmark = pytest.mark.once


def test_every_value_is_in_one_of_few_rows():
    tables = {'operation': ['get', 'head', 'put'], 'fault': ['500', '503', 'silence', '403'], 'hub': ['plain', 'lfs']}
    rows = list(itertools.product(*tables.values()))
    kept = each_value_once(rows, [set(zip(tables, row, strict=True)) for row in rows])
    assert [set(column) for column in zip(*kept, strict=True)] == [set(values) for values in tables.values()]
    assert len(kept) == 4  # as many as the longest table has
