"""The bitmap of a selection: worked out once, kept, and mapped by all processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamingDataset, Where
from headrace.errors import CacheError, DiskFullError, StreamError
from headrace.selection import bitmap_file
from tests.support.datasets.selected import SAMPLES, bits, ids
from tests.support.packings.no_tokens import no_tokens  # noqa: F401

processes = multiprocessing.get_context('fork')


def _evaluate(data: Path, log: int, barrier: Any) -> None:
    def counted(sample: dict[str, Any]) -> bool:
        os.write(log, b'x')
        return sample['id'] < 70

    barrier.wait()
    dataset = StreamingDataset(local=str(data), where=Where(counted, name='counted', columns=['id']))
    os._exit(0 if ids(dataset) == list(range(70)) else 1)


def test_processes_that_start_together_evaluate_once(data: Path, tmp_path: Path) -> None:
    log = os.open(tmp_path / 'log', os.O_CREAT | os.O_RDWR | os.O_APPEND)
    barrier = processes.Barrier(3)
    crowd = [processes.Process(target=_evaluate, args=(data, log, barrier)) for _ in range(3)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(60)
    assert [process.exitcode for process in crowd] == [0] * 3
    assert (tmp_path / 'log').read_bytes() == b'x' * SAMPLES


def _hang(data: Path, when: str, ready: Any) -> None:
    def hang(*_: Any) -> None:
        ready.set()
        time.sleep(100)

    def slow(sample: dict[str, Any]) -> bool:
        if when == 'evaluating' and sample['id'] == 60:
            hang()
        return sample['id'] < 70

    if when == 'writing':
        os.fsync = hang  # all is written under the temporary name
    StreamingDataset(local=str(data), where=Where(slow, name='slow', columns=['id']))


@pytest.mark.parametrize('when', ['evaluating', 'writing'])
def test_a_process_killed_on_the_way_holds_nobody_up_and_leaves_nothing(data: Path, private: Path, when: str) -> None:
    ready = processes.Event()
    process = processes.Process(target=_hang, args=(data, when, ready))
    process.start()
    assert ready.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert bits(private) == []
    where = Where(lambda s: s['id'] < 70, name='slow', columns=['id'])
    assert ids(StreamingDataset(local=str(data), where=where)) == list(range(70))
    assert [path for path in private.rglob('*') if path.is_file()] == bits(private)


def test_it_is_evaluated_once_and_found_again(data: Path) -> None:
    def where(count: list[int]) -> Where:
        return Where(lambda s: count.append(1) or s['id'] < 9, name='few', columns=['id'])

    count: list[int] = []
    assert ids(StreamingDataset(local=str(data), where=where(count))) == list(range(9))
    assert len(count) == SAMPLES
    assert ids(StreamingDataset(local=str(data), where=where(count))) == list(range(9))
    assert ids(StreamingDataset(local=str(data), where=where(count), fraction=[0, 0.9]))
    assert len(count) == SAMPLES
    StreamingDataset(local=str(data), where=where(count), subset=[[0, 10]])
    assert len(count) == SAMPLES + 10


@pytest.mark.parametrize('damage', ['a bit', 'the head', 'cut', 'longer', 'empty', 'foreign', 'a folder of links'])
def test_a_file_that_is_not_what_it_should_be_is_made_anew(data: Path, private: Path, damage: str) -> None:
    where = {'lang': 'de'}
    expected = ids(StreamingDataset(local=str(data), where=where))
    (path,) = bits(private)
    good = path.read_bytes()
    if damage == 'a bit':
        path.write_bytes(good[:70] + bytes([good[70] ^ 4]) + good[71:])
    elif damage == 'the head':
        path.write_bytes(good[:16] + b'\xff' * 8 + good[24:])
    elif damage == 'cut':
        path.write_bytes(good[:-8])
    elif damage == 'longer':
        path.write_bytes(good + b'12345678')
    elif damage == 'empty':
        path.write_bytes(b'')
    elif damage == 'foreign':
        StreamingDataset(local=str(data), where={'lang': 'fr'})
        (other,) = set(bits(private)) - {path}
        path.write_bytes(other.read_bytes())
    else:
        path.rename(private / 'elsewhere')
        path.symlink_to(private / 'elsewhere')
    assert ids(StreamingDataset(local=str(data), where=where)) == expected
    assert path.read_bytes() == good
    assert not path.is_symlink()


def test_workers_that_are_spawned_map_the_same_file(data: Path, private: Path) -> None:
    where = Where(lambda s: s['id'] % 2 == 0, name='even', columns=['id'])
    dataset = StreamingDataset(local=str(data), where=where, batch_size=5)
    again = pickle.loads(pickle.dumps(dataset))
    assert ids(again) == ids(dataset) == list(range(0, SAMPLES, 2))
    assert len(pickle.dumps(dataset.streams[0].row_selection)) < 1000 + 8 * dataset.num_shards
    with pytest.raises(StreamError, match='cannot be pickled'):
        again.streams[0].where.function({})
    sent = pickle.dumps(dataset)
    bits(private)[0].unlink()
    with pytest.raises(CacheError, match='while it was in use'):
        pickle.loads(sent)
    shutil.rmtree(private)  # by who is not known; the data themselves are still mapped
    sent = pickle.dumps(dataset)
    assert ids(pickle.loads(sent)) == list(range(0, SAMPLES, 2))


def test_a_folder_that_cannot_be_written_to_is_named(data: Path, private: Path) -> None:
    private.mkdir()
    (private / bitmap_file.FOLDER).write_bytes(b'in the way')
    with pytest.raises(CacheError, match=r'\.headrace-selections'):
        StreamingDataset(local=str(data), where={'lang': 'de'})


def test_a_link_in_place_of_its_folder_is_refused(data: Path, private: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    (elsewhere / 'thesis.tmp').write_text('mine')
    private.mkdir(mode=0o700)
    (private / bitmap_file.FOLDER).symlink_to(elsewhere)
    with pytest.raises(CacheError, match=r'\.headrace-selections, but that is a symbolic link'):
        StreamingDataset(local=str(data), where={'lang': 'de'})
    assert os.listdir(elsewhere) == ['thesis.tmp']


def test_a_full_disk_is_said_to_be_full(data: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(bitmap_file, 'publish', full)
    with pytest.raises(DiskFullError, match=r'\.headrace-selections has no room .*\. Make room'):
        StreamingDataset(local=str(data), where={'id': {'below': 30}})
