"""Whatever the store does, training goes on with every sample once, or gets one error soon."""

import contextlib
import time

import pytest
from fault_matrix import CASES, START_METHODS, Case, expected_ids, run, served_dataset, small_disk

pytestmark = [pytest.mark.once, pytest.mark.s3]


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    with served_dataset(tmp_path_factory.mktemp('served')) as (server, url):
        yield server, url, expected_ids(url, server, tmp_path_factory.mktemp('undisturbed'))


WITH_WORKERS = {'each first body is cut short', 'each first body stalls', '500 for ever', '404 for a shard'}
"""Of each kind one; `make test-all` has them all."""


def starts():
    for case in CASES:
        for start in START_METHODS:
            usual = start == 'none' or (start == 'fork' and (case.name in WITH_WORKERS or case.is_disk_full))
            yield pytest.param(case, start, marks=[] if usual else pytest.mark.slow, id=f'{case.name}, {start}')


@pytest.mark.parametrize(('case', 'start'), starts())
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
