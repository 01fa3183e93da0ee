"""Metadata of shards: their shared schema, also in other processes."""

from __future__ import annotations

import pickle

from tests.support.formats.both_ways import way_of_parsing  # noqa: F401
from tests.support.formats.index_entries import csv_entry, index, mds_entry, parse


def test_shards_with_the_same_columns_share_their_schema() -> None:
    first, second, third, fourth = parse(index(mds_entry(0), mds_entry(1), csv_entry(2), mds_entry(3)))
    assert first.schema is second.schema is fourth.schema
    assert third.schema is not first.schema


def test_shards_travel_to_other_processes_and_still_share_their_schema() -> None:
    shards = parse(index(mds_entry(0), mds_entry(1)))
    copies = pickle.loads(pickle.dumps(shards))
    assert copies == shards
    assert copies[0].schema is copies[1].schema
