"""Copies of datasets between stores: whole, verified, continued, and never over another dataset."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.convert import copy_dataset
from headrace.convert.copy import COPY_MARK
from headrace.errors import ConfigError, FormatError, ObjectNotFoundError
from headrace.inspect import describe, verify
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.failing_calls import DISK, FULL, STOP, calls_of, in_a_child
from tests.support.programs.processes import Program
from tests.support.programs.waiting import until
from tests.support.servers.s3 import S3Server


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


class PlainStore(LocalStore):
    """A folder that counts as far away: nothing of it is read in place."""


@pytest.fixture
def far(own_stores: None) -> None:
    register_store('far', lambda url, options: PlainStore(url.removeprefix('far://')))


@pytest.mark.usefixtures('far')
@pytest.mark.parametrize('source', ['', 'far://'])
@pytest.mark.parametrize('destination', ['', 'far://'])
@pytest.mark.parametrize('options', [{}, {'compression': 'zstd', 'hashes': ['sha1', 'xxh64']}])
def test_a_copy_has_the_same_files(
    make_dataset: Any, tmp_path: Path, source: str, destination: str, options: dict[str, Any]
) -> None:
    data, out = make_dataset(**options), tmp_path / 'out' / 'copy'
    seen: list[tuple[int, int]] = []
    report = copy_dataset(f'{source}{data}', f'{destination}{out}', progress=lambda *each: seen.append(each))
    assert content(out) == content(data)
    assert report.copied == report.files == len(content(data))
    assert report.bytes == sum(map(len, content(data).values()))
    assert seen[-1][0] == seen[-1][1]
    again = copy_dataset(f'{source}{data}', f'{destination}{out}')
    assert (again.copied, again.bytes) == (0, 0)


def test_shards_in_folders_are_copied_to_folders(make_dataset: Any, tmp_path: Path) -> None:
    data = make_dataset()
    index = json.loads((data / 'index.json').read_text())
    (data / 'part').mkdir()
    for shard in index['shards']:
        name = shard['raw_data']['basename']
        (data / name).rename(data / 'part' / name)
        shard['raw_data']['basename'] = f'part/{name}'
    (data / 'index.json').write_text(json.dumps(index))
    copy_dataset(data, tmp_path / 'out')
    assert content(tmp_path / 'out') == content(data)


def test_files_that_the_index_does_not_name_are_left(make_dataset: Any, tmp_path: Path) -> None:
    data = make_dataset()
    (data / 'notes.txt').write_text('x')
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'own.txt').write_text('y')
    copy_dataset(data, tmp_path / 'out')
    assert 'notes.txt' not in content(tmp_path / 'out')
    assert content(tmp_path / 'out')['own.txt'] == b'y'


def test_another_dataset_is_kept_unless_it_may_be_replaced(make_dataset: Any, tmp_path: Path) -> None:
    """Shards of equal names and sizes, too."""
    data, other = make_dataset('data'), make_dataset('other', 80, first=1000)
    with MDSWriter(out=str(tmp_path / 'old'), columns={'id': 'int', 'row': 'ndarray:float32:4'}, hashes=['md5']) as out:
        out.write({'id': 1, 'row': np.zeros(4, np.float32)})
    before = content(other)
    with pytest.raises(FileExistsError, match='of another dataset already'):
        copy_dataset(data, other)
    assert content(other) == before
    copy_dataset(data, other, overwrite=True)
    assert content(other) == content(data)
    copy_dataset(tmp_path / 'old', other, overwrite=True)
    assert content(other) == content(tmp_path / 'old')


def test_shards_without_an_index_are_of_another_dataset(make_dataset: Any, tmp_path: Path) -> None:
    data, other = make_dataset('data'), make_dataset('other', first=1000)
    (other / 'index.json').unlink()
    with pytest.raises(FileExistsError, match='of another dataset already'):
        copy_dataset(data, other)
    copy_dataset(data, other, overwrite=True)
    assert content(other) == content(data)


def test_with_checksums_equal_files_are_not_copied_again(make_dataset: Any, tmp_path: Path) -> None:
    data = make_dataset(hashes=['xxh64'])
    copy_dataset(data, tmp_path / 'out')
    (tmp_path / 'out' / 'index.json').unlink()
    damaged = tmp_path / 'out' / 'shard.00001.mds'
    damaged.write_bytes(damaged.read_bytes()[:-1] + b'?')
    report = copy_dataset(data, tmp_path / 'out', overwrite=True)
    assert report.copied == 2  # the damaged shard and the index
    assert content(tmp_path / 'out') == content(data)


def test_a_dataset_that_is_being_written_is_kept(make_dataset: Any, tmp_path: Path) -> None:
    columns = {'id': 'int'}
    with MDSWriter(out=str(tmp_path / 'out'), columns=columns) as writer:
        with pytest.raises(FileExistsError, match='still being written'):
            copy_dataset(make_dataset(), tmp_path / 'out', overwrite=True)
        writer.write({'id': 1})


@pytest.mark.parametrize('damage', ['flipped', 'short', 'missing'])
@pytest.mark.usefixtures('far')
@pytest.mark.parametrize('source', ['', 'far://'])
def test_a_damaged_source_gives_no_dataset(make_dataset: Any, tmp_path: Path, damage: str, source: str) -> None:
    data = make_dataset(hashes=['sha1'])
    path = data / 'shard.00003.mds'
    whole = path.read_bytes()
    if damage == 'missing':
        path.unlink()
    else:
        path.write_bytes(whole[:-1] + (b'?' if damage == 'flipped' else b''))
    with pytest.raises(ObjectNotFoundError if damage == 'missing' else FormatError, match=r'shard\.00003\.mds'):
        copy_dataset(f'{source}{data}', tmp_path / 'out')
    assert 'index.json' not in content(tmp_path / 'out')
    path.write_bytes(whole)
    report = copy_dataset(data, tmp_path / 'out')  # continues from there
    assert content(tmp_path / 'out') == content(data)
    assert report.copied <= report.files


def test_an_index_that_changes_meanwhile(make_dataset: Any, tmp_path: Path, own_stores: None) -> None:
    data = make_dataset()

    class Changing(LocalStore):
        def get(self, key: str, out: Any, **options: Any) -> str:
            if key == 'shard.00002.mds':
                (data / 'index.json').write_bytes((data / 'index.json').read_bytes() + b' ')
            return super().get(key, out, **options)

    register_store('changing', lambda url, options: Changing(url.removeprefix('changing://')))
    with pytest.raises(FormatError, match='changed while the dataset was copied'):
        copy_dataset(f'changing://{data}', tmp_path / 'out')
    assert 'index.json' not in content(tmp_path / 'out')


COPY = """
import sys, threading, time
from headrace.convert import copy_dataset
from headrace.inspect import describe, verify
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore

class Stuck(LocalStore):
    "Hangs at the third shard."
    def get(self, key, out, **options):
        if key == 'shard.00002.mds':
            threading.Event().wait()
        return super().get(key, out, **options)

register_store('stuck', lambda url, options: Stuck(url.removeprefix('stuck://')))
copy_dataset(*sys.argv[1:], jobs=2)
"""


def test_a_copy_continues_after_a_kill(make_dataset: Any, tmp_path: Path) -> None:
    data, out = make_dataset(), tmp_path / 'out'
    with Program([sys.executable, '-c', COPY, f'stuck://{data}', str(out)]) as program:
        until(lambda: len(list(out.glob('*.mds'))) == len(list(data.glob('*.mds'))) - 1)
        program.process.kill()
        program.process.wait()
    there = content(out)
    assert COPY_MARK in there
    assert {'index.json', 'shard.00002.mds'}.isdisjoint(there)
    # Without the marker nobody knows whose they are.
    report = copy_dataset(data, out)
    assert report.copied == 2  # the missing shard and the index
    assert content(out) == content(data)
    assert len(list(StreamingDataset(local=str(out), batch_size=4))) == 100


@pytest.mark.s3
@pytest.mark.filterwarnings('ignore:The copy is whole')
@pytest.mark.parametrize('error', [DISK, pytest.param(FULL, marks=pytest.mark.slow), STOP])
def test_any_call_fails(make_dataset: Any, tmp_path: Path, error: BaseException) -> None:
    data = make_dataset()
    calls = calls_of(lambda: copy_dataset(data, tmp_path / 'out-'), tmp_path / 'out-', error)
    for at in [*range(1, calls - 12, 11), *range(calls - 12, calls + 1)]:
        out = tmp_path / f'out-{at}'
        outcome, _ = in_a_child(lambda out=out: copy_dataset(data, out), tmp_path / 'out-', at, error)
        if outcome == 'done' or (out / 'index.json').exists():
            assert content(data).items() <= content(out).items()
        if outcome != 'done':
            assert outcome.partition(':')[0] != 'OSError', (at, outcome)
            copy_dataset(data, out)
            assert content(out) == content(data), (at, outcome)


def test_to_s3_and_back(make_dataset: Any, tmp_path: Path, s3_server: S3Server) -> None:
    """And what is there is described and verified."""
    data, url = make_dataset(hashes=['sha1'], compression='zstd'), f's3://{s3_server.new_bucket()}/a/b'
    copy_dataset(data, url)
    assert copy_dataset(data, url).copied == 0
    copy_dataset(url, tmp_path / 'back')
    assert content(tmp_path / 'back') == content(data)
    with pytest.raises(FileExistsError, match='s3://'):
        copy_dataset(make_dataset('other', first=5), url)
    assert describe(url).samples[2]['id'].value == 2
    state = tmp_path / 'state'
    assert verify(url, jobs=2, state=state).is_good
    store = s3_server.store(url.split('/')[2], 'a/b')
    store.put('shard.00001.mds.zstd', io.BytesIO(b'x'), size=1)
    report = verify(url, jobs=1, state=state)
    assert [(bad.shard, bad.check) for bad in report.bad] == [(1, 'size')]
    assert report.passed_before == report.shards - 1
    assert [bad.check for bad in verify(url, fast=True).bad] == ['size']


@pytest.mark.parametrize('below', ['', '/sub'])
def test_a_destination_that_is_a_file(make_dataset: Any, tmp_path: Path, below: str) -> None:
    (tmp_path / 'taken').write_text('x')
    with pytest.raises(ConfigError, match=f"is '{tmp_path}/taken{below}', and {tmp_path}/taken is a file"):
        copy_dataset(make_dataset(), f'{tmp_path}/taken{below}')
    assert (tmp_path / 'taken').read_text() == 'x'
