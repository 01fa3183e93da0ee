from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import SampleMap
from tests.support.orders.order_cases import relaxed

CASES = json.loads((Path(__file__).parents[1] / 'data/order/spanner.json').read_text())['cases']


@pytest.mark.parametrize('case', CASES, ids=lambda case: case['id'])
def test_samples_are_where_mosaicml_finds_them(case: dict) -> None:
    found = SampleMap(np.array(case['args']['shard_sizes']))
    for sample, shard, row in case['lookups']:
        assert found.locate_one(sample) == (shard, row)
    for outside in (-1, found.num_samples):
        with pytest.raises(IndexError):
            found.locate_one(outside)
        with pytest.raises(IndexError):
            found.locate(np.array([0, outside]))


@relaxed
@given(
    st.lists(st.integers(0, 5), min_size=1)
    | st.tuples(st.integers(1, 5), st.integers(1, 9)).map(lambda t: [t[0]] * t[1])
)
def test_every_sample_is_found(sizes: list[int]) -> None:
    found = SampleMap(np.array(sizes))
    shards, rows = found.locate(np.arange(sum(sizes)))
    expected = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == expected
    assert [found.locate_one(i) for i in range(sum(sizes))] == expected
