"""A writer and a conversion that are killed at random moments, again and again, end with the files of a whole run."""

from __future__ import annotations

import functools
import io
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import MDSWriter
from headrace.convert import convert
from headrace.inspect.verify import verify
from headrace.storage import open_store
from tests.support.programs.killed_children import killed_after
from tests.support.sources.sources_to_convert import make_images

KILLS = 50
PLAN = '.headrace-convert/plan.json'

pytestmark = pytest.mark.slow


@pytest.fixture(params=['folder', pytest.param('s3', marks=pytest.mark.s3)])
def new_out(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Another place for a dataset at each call."""
    numbers = itertools.count()
    if request.param == 'folder':
        return lambda: str(tmp_path / f'out-{next(numbers)}')
    bucket = request.getfixturevalue('s3_server').new_bucket()
    return lambda: f's3://{bucket}/{next(numbers)}'


stores = functools.cache(open_store)


def contents(url: str) -> dict[str, bytes]:
    """All files; those of an unfinished conversion begin with a dot."""
    store, found = stores(url), dict[str, bytes]()
    for info in store.list(''):
        file = io.BytesIO()
        store.get(info.key, file)
        found[info.key] = file.getvalue()
    return found


def kill_again_and_again(run: Callable[[str, int], object], new_out: Callable[[], str], name: str) -> None:
    """Kill runs until enough of them had left an unfinished dataset, and start each again until it is whole.

    The seed makes the draws the same each time. No assertion depends on the moment of a kill.
    """
    draws = random.Random(17)
    out = new_out()
    # The first run imports everything here, so that the children need not.
    run(out, 1)
    expected = {key: data for key, data in contents(out).items() if not key.startswith('.')}
    assert 'index.json' in expected
    seconds = min(killed_after(functools.partial(run, new_out(), 1), None)[1] for _ in range(3))
    kills = late = wholes = again = 0
    out, begun = new_out(), False
    while kills < KILLS or begun:
        delay = draws.uniform(0, seconds) if kills < KILLS else None
        is_killed, _ = killed_after(functools.partial(run, out, 1 + draws.randrange(2)), delay)
        again += begun
        begun = True
        if is_killed:
            keys = {info.key for info in stores(out).list('')}
            if 'index.json' not in keys:
                kills += 1
                continue
            late += 1
            if PLAN in keys:
                continue
        found = contents(out)
        assert {key: data for key, data in found.items() if not key.startswith('.')} == expected
        report = verify(out, jobs=1)
        assert report.is_good, str(report)
        wholes += 1
        out, begun = new_out(), False
    assert wholes
    print(
        f'{name}: a whole run takes {seconds:.2f} s; {kills} kills of unfinished runs, {late} after the index, '
        f'{again} restarts, {wholes} datasets verified and equal.'
    )


def test_a_writer(new_out: Callable[[], str]) -> None:
    def run(out: str, threads: int) -> None:
        with MDSWriter(
            columns={'id': 'int', 'data': 'bytes'},
            out=out,
            compression='zstd',
            hashes=['sha1'],
            size_limit=6000,
            resume=True,
            max_workers=threads,
        ) as writer:
            for number in range(writer.num_samples, 2000):
                writer.write({'id': number, 'data': random.Random(number).randbytes(number % 150)})

    kill_again_and_again(run, new_out, 'writer')


def test_a_conversion(new_out: Callable[[], str], tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 60, 'b': 61})

    def run(out: str, workers: int) -> None:
        convert(tmp_path / 'data', out, workers=workers, size_limit=3000, hashes=['xxh64'], progress_bar=False)

    kill_again_and_again(run, new_out, 'conversion')
