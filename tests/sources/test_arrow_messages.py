"""Messages of Arrow streams."""

from __future__ import annotations

import pytest

from headrace.sources import arrow
from tests.support.sources.arrow_files import BATCHES, ROWS, check, stream
from tests.support.sources.source_cases import MemoryStore, part_bytes

pa = pytest.importorskip('pyarrow')


def test_streams_before_arrow_0_15():
    check({'a.arrow': stream(BATCHES, use_legacy_format=True)}, ROWS)


def test_parts_are_runs_of_record_batches():
    big = pa.record_batch([pa.array([bytes(9 << 20), b''])], ['data'])
    objects = {'a.arrow': stream([big] * 8)}
    store = MemoryStore(objects)
    source = arrow.index(store, list(store.list('')), columns=None, allow_unsafe_types=False)
    assert [part.rows for part in source.parts] == [6, 6, 4]
    assert sum(size for _, _, size in store.reads) < 9 * (200 << 10)
    number = sum(len(batch['data']) for n in range(3) for batch in source.batches(n, part_bytes(source, n, objects)))
    assert number == 16


def test_nulls_in_one_file_hold_for_all():
    objects = {
        'a.arrow': stream([pa.record_batch([pa.array([1, 2])], ['n'])]),
        'b.arrow': stream([pa.record_batch([pa.array([3, None])], ['n'])]),
    }
    check(objects, [{'n': n} for n in (1, 2, 3, None)])


def test_an_empty_file_has_no_parts():
    none, one = (pa.record_batch([pa.array(values, pa.int64())], ['n']) for values in ([], [7]))
    objects = {'a.arrow': stream([none]), 'b.arrow': stream([one])}
    check(objects, [{'n': 7}])


def test_types_of_a_file_without_rows_do_not_count():
    none, one = pa.record_batch([pa.nulls(0)], ['n']), pa.record_batch([pa.array([7])], ['n'])
    objects = {'a.arrow': stream([none]), 'b.arrow': stream([one])}
    check(objects, [{'n': 7}])
    check(objects, [{'n': 7}], columns=['n'])
