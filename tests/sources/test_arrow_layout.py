"""Columns with nulls or without values."""

from __future__ import annotations

import pytest
from arrow_files import check, stream

pa = pytest.importorskip('pyarrow')


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
