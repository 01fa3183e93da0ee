"""For any fault of the store, training has every sample once, or gets one error soon."""

import contextlib
import itertools
import time

import pytest

from tests.support.pages.fault_matrix import CASES, START_METHODS, Case, expected_ids, run, served_dataset, small_disk

pytestmark = [pytest.mark.once, pytest.mark.s3]


@pytest.fixture(scope='module')
def served(tmp_path_factory, moto):
    with served_dataset(tmp_path_factory.mktemp('served'), moto) as url:
        yield moto, url, expected_ids(url, moto, tmp_path_factory.mktemp('undisturbed'))


USUAL = {
    'none': {
        'latency of 200 ms',
        'each first body is cut short',
        'each first body has a wrong bit',
        '500 for 3 s',
        '500 for ever',
        'the server is gone',
        'a shard has always a wrong bit',
        '403 for a shard',
        '404 for a shard',
        'the disk is full',
    },
    'fork': {'each first body is cut short', 'the disk is full'},
}
"""Of each kind one; `make test-all` has them all, and the contract of stores has each fault in `make test`."""


def started(case, start):
    marks = [] if case.name in USUAL.get(start, ()) else pytest.mark.slow
    return pytest.param(case, start, marks=marks, id=f'{case.name}, {start}')


@pytest.mark.parametrize(('case', 'start'), [started(*both) for both in itertools.product(CASES, START_METHODS)])
def test_faults(served, tmp_path, case, start):
    server, url, expected = served
    local = tmp_path / 'cache'
    with contextlib.ExitStack() as stack:
        if case.is_disk_full:
            try:
                stack.enter_context(small_disk(local))
            except PermissionError as error:
                pytest.skip(str(error))
        run(case, url, server, local, *START_METHODS[start]).check(case, expected)
    if case.raises is None or case.is_disk_full:
        return
    # The next start has everything, and takes over what killed workers left. In this process, though, fetches that
    # are under way end by themselves, and who waits for them is told how.
    quiet = 0
    while start == 'none' and quiet < 20:
        quiet = 0 if (local / '.headrace').exists() else quiet + 1
        time.sleep(0.05)
    again = run(Case('nothing', list), url, server, local, *START_METHODS['none'])
    assert again.error is None
    assert again.ids == expected
