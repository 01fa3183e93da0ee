"""Writers whose system calls fail, once or for good: no sample is lost or repeated, no index names a missing shard."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from headrace import CSVWriter, JSONWriter, LocalDataset, MDSWriter
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.failing_calls import DISK, FULL, STOP, calls_of, in_a_child

OLD, N = 30, 75
WRITERS = {'mds': MDSWriter, 'json': JSONWriter, 'csv': CSVWriter}


def write(out, begin, end, *, kind='mds', **options):
    """Write what is missing of some samples."""
    with WRITERS[kind](out=out, columns={'id': 'int'}, size_limit=300, max_workers=1, retry=0, **options) as writer:
        for i in range(begin + writer.num_samples, end):
            writer.write({'id': i})


def ids(folder):
    """The samples of a folder, whose index names only whole shards; None without an index."""
    index = Path(folder, 'index.json')
    if not index.exists():
        return None
    for shard in json.loads(index.read_text())['shards']:
        assert Path(folder, shard['raw_data']['basename']).stat().st_size == shard['raw_data']['bytes']
    return [sample['id'] for sample in LocalDataset(str(folder))]


PLACES = ['a folder', 'a URL', 'both', 'both, kept']


@pytest.fixture
def make(tmp_path, own_stores):
    """A function that makes an `out`, the folder of its dataset, and further arguments; new ones at each call."""
    register_store('objects', lambda url, _: LocalStore(Path(url.removeprefix('objects://'))))
    numbers = itertools.count()

    def make(place):
        number = next(numbers)
        folder, remote = f'{tmp_path}/data-{number}', f'{tmp_path}/data-{number}-remote'
        if place == 'a folder':
            return folder, folder, {}
        if place == 'a URL':
            return f'objects://{remote}', remote, {}
        return (folder, f'objects://{remote}'), remote, {'keep_local': 'kept' in place}

    return make


def fail_at(moments, make, place, error, tmp_path, *, for_good=False, append=False, **given):
    """Fail the calls of a writer with these numbers, and write again with `resume`."""

    def begun():
        out, folder, options = make(place)
        options = {**options, **given}
        if append:
            write(out, 0, OLD, **options)
        return out, folder, options

    begin = OLD if append else 0
    old, new = list(range(OLD)) if append else None, list(range(N))
    out, folder, options = begun()
    assert ids(folder) == old
    calls = calls_of(lambda: write(out, begin, N, append=append, **options), tmp_path, error)
    outcomes = set()
    for at in moments(calls):
        out, folder, options = begun()
        outcome, _ = in_a_child(
            lambda out=out, options=options: write(out, begin, N, append=append, **options),
            tmp_path,
            at,
            error,
            for_good=for_good,
        )
        found = ids(folder)
        outcomes.add((outcome == 'done', found == new))
        assert found in (old, new), (at, outcome)
        if outcome == 'done':
            assert found == new, at
        else:
            kinds = ['KeyboardInterrupt'] if error is STOP else ['TransferError', 'DiskFullError', 'StorageError']
            assert outcome.partition(':')[0] in kinds, (at, outcome)
            write(out, begin, N, append=append, **{**options, 'resume': True})
            assert ids(folder) == new, (at, outcome)
            left = sorted(name for name in os.listdir(folder) if name.startswith('.'))
            assert left == [], (at, outcome)
        if options.get('keep_local'):
            assert ids(out[0]) in (old, new), (at, outcome)
    return outcomes


ERRORS = [
    pytest.param(DISK, id='disk'),
    pytest.param(FULL, id='full', marks=pytest.mark.slow),
    pytest.param(STOP, id='ctrl-c'),
]


@pytest.mark.parametrize(
    ('place', 'append'), [('a folder', False), pytest.param('a folder', True, marks=pytest.mark.slow), ('both', True)]
)
@pytest.mark.parametrize('error', ERRORS)
def test_any_call_fails_once(make, tmp_path, error, place, append):
    fail_at(
        lambda calls: [*range(1, calls - 9, 9), *range(calls - 9, calls + 1)],
        make,
        place,
        error,
        tmp_path,
        append=append,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:Files of a writer', 'ignore:Shards without')
@pytest.mark.parametrize('resume', [False, True])
@pytest.mark.parametrize('kind', WRITERS)
@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('append', [False, True])
@pytest.mark.parametrize('for_good', [False, True])
@pytest.mark.parametrize('error', ERRORS)
def test_every_call_fails(make, tmp_path, place, kind, error, for_good, append, resume):
    fail_at(
        lambda calls: range(1, calls + 1),
        make,
        place,
        error,
        tmp_path,
        for_good=for_good,
        append=append,
        resume=resume,
        kind=kind,
    )
