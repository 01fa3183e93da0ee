"""Which rows of the store contracts `make test` runs; `make test-all` and `make contract` run all of them.

A local folder and S3 run every row of what a store does. Other stores, and all faults, run each value of each table
once: what a value does to a store depends on its backend, but seldom on the values beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

from headrace.testing.store_faults import StoreFaultContract
from headrace.testing.stores import StoreContract

__all__ = ['each_value_once', 'mark_slow_rows']

Row = TypeVar('Row')
COMPLETE = {'TestLocalStore', 'TestS3Store'}
SLOW_SERVER = 'rgw'
"""A second server of S3, which runs one row of each table."""
ALIKE = {'test_a_key_that_leaves_the_root_is_refused', 'test_a_prefix_that_leaves_the_root_is_refused'}
"""Tests of a check that all stores share: one value shows that a store makes it."""


def mark_slow_rows(items: Sequence[pytest.Item]) -> None:
    """Mark the rows of the contracts as slow that the default suite leaves out."""
    tests: defaultdict[tuple[type, str, bool], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.cls is not None
            and issubclass(item.cls, (StoreContract, StoreFaultContract))
            and hasattr(item, 'callspec')
            and any(hasattr(contract, item.originalname) for contract in (StoreContract, StoreFaultContract))
            and not item.get_closest_marker('slow')
        ):
            is_second = SLOW_SERVER in item.callspec.params.values()
            if item.cls.__name__ not in COMPLETE or is_second:
                tests[item.cls, item.originalname, is_second].append(item)
    for (_, name, is_second), rows in tests.items():
        values = [{(key, repr(value)) for key, value in row.callspec.params.items()} for row in rows]
        kept = rows[:1] if is_second or name in ALIKE else each_value_once(rows, values)
        for row in rows:
            if row not in kept:
                row.add_marker(pytest.mark.slow)


def each_value_once(rows: Sequence[Row], values: Sequence[set[tuple[str, str]]]) -> list[Row]:
    """Few rows that have together every value of every parameter: each time the first with the most new ones."""
    missing = set().union(*values)
    kept: list[Row] = []
    while missing:
        best = max(range(len(rows)), key=lambda number: (len(missing & values[number]), -number))
        kept.append(rows[best])
        missing -= values[best]
    return kept
