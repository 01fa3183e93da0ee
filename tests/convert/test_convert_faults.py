"""Conversions whose system calls fail, or that are killed in their clean-up: the same call gives the whole dataset."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from headrace.convert import ConversionReport
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs import killed_children
from tests.support.programs.failing_calls import DISK, FULL, STOP, calls_of, in_a_child
from tests.support.sources.converted import convert
from tests.support.sources.sources_to_convert import digests, rows_of

ERRORS = [
    pytest.param(DISK, id='disk'),
    pytest.param(FULL, id='full', marks=pytest.mark.slow),
    pytest.param(STOP, id='ctrl-c'),
]


def squares(number: int) -> dict[str, int]:
    if number == 3:
        raise ValueError('three')
    return {'n': number, 'square': number**2}


def run(out: object) -> ConversionReport:
    return convert(
        range(9), out, function=squares, columns={'n': 'int', 'square': 'int'}, on_error='collect', size_limit=200
    )


@pytest.fixture(params=['folder', 'store'])
def make(request, tmp_path, own_stores):
    """A function that makes an `out` and its folder; new ones at each call."""

    register_store('objects', lambda url, _: Objects(LocalStore(Path(url.removeprefix('objects://')))))
    numbers = itertools.count()

    def make():
        folder = tmp_path / f'out-{next(numbers)}'
        return (str(folder) if request.param == 'folder' else f'objects://{folder}'), folder

    return make


class Objects:
    """A folder that is no folder to conversions."""

    def __init__(self, store):
        self.url = f'objects:/{store.url}'
        for name in ('get', 'put', 'head', 'list', 'delete'):
            setattr(self, name, getattr(store, name))


def same(report: ConversionReport, expected: ConversionReport) -> bool:
    def figures(each):
        return each.inputs, each.rows, each.shards, each.raw_bytes, each.stored_bytes, each.errors, each.num_errors

    return figures(report) == figures(expected)


def test_killed_at_any_step_of_its_clean_up(make, tmp_path):
    out, folder = make()
    _, steps = killed_children.in_a_child(lambda: run(out), 0, str(tmp_path / 'out-'))
    expected, whole = run(make()[0]), digests(folder)
    finished = 0
    for last in range(steps, 0, -1):
        out, folder = make()
        status, _ = killed_children.in_a_child(lambda out=out: run(out), last, str(tmp_path / 'out-'))
        assert os.WIFSIGNALED(status)
        if not (folder / 'index.json').exists():
            break
        assert same(run(out), expected), last
        assert digests(folder) == whole, last
        finished += 1
    assert finished > 9


def fail_at(moments, make, tmp_path, error, *, for_good=False):
    out, folder = make()
    calls = calls_of(lambda: run(out), tmp_path / 'out-', error)
    whole = digests(folder)
    for at in moments(calls):
        out, folder = make()
        outcome, _ = in_a_child(lambda out=out: run(out), tmp_path / 'out-', at, error, for_good=for_good)
        there = {name: found for name, found in digests(folder).items() if not name.startswith('.')}
        assert there == whole or ('index.json' not in there and outcome != 'done'), (at, outcome)
        if outcome != 'done':
            assert outcome.partition(':')[0] != 'OSError', (at, outcome)
            run(out)
            assert digests(folder) == whole, (at, outcome)


@pytest.mark.parametrize('error', ERRORS)
def test_any_call_fails_once(make, tmp_path, error):
    fail_at(lambda calls: [*range(1, calls - 20, 29), *range(calls - 20, calls + 1, 4)], make, tmp_path, error)


def fail_append_at(moments, make, tmp_path, error, *, for_good=False):
    def added(out):
        return convert(range(9, 15), out, function=squares, columns={'n': 'int', 'square': 'int'}, append=True)

    out, folder = make()
    run(out)
    old = [row['n'] for row in rows_of(folder)]
    calls = calls_of(lambda: added(out), tmp_path / 'out-', error)
    new = [row['n'] for row in rows_of(folder)]
    assert new == [*old, *range(9, 15)]
    for at in moments(calls):
        out, folder = make()
        run(out)
        outcome, _ = in_a_child(lambda out=out: added(out), tmp_path / 'out-', at, error, for_good=for_good)
        assert [row['n'] for row in rows_of(folder)] in (old, new), (at, outcome)
        if outcome != 'done':
            added(out)
        assert [row['n'] for row in rows_of(folder)] == new, (at, outcome)


@pytest.mark.parametrize('error', ERRORS)
def test_an_append_whose_calls_fail_once(make, tmp_path, error):
    fail_append_at(lambda calls: [*range(1, calls - 20, 41), *range(calls - 20, calls + 1, 5)], make, tmp_path, error)


@pytest.mark.slow
@pytest.mark.parametrize('for_good', [False, True])
@pytest.mark.parametrize('error', ERRORS)
def test_every_call_of_an_append_fails(make, tmp_path, error, for_good):
    fail_append_at(lambda calls: range(1, calls + 1), make, tmp_path, error, for_good=for_good)


@pytest.mark.slow
@pytest.mark.parametrize('for_good', [False, True])
@pytest.mark.parametrize('error', ERRORS)
def test_every_call_fails(make, tmp_path, error, for_good):
    fail_at(lambda calls: range(1, calls + 1), make, tmp_path, error, for_good=for_good)
