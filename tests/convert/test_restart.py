"""A conversion that is killed at any moment continues where it was, and gives the same files."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sources_to_convert import digests, make_images, rows_of

from headrace.convert import convert as convert_with_bar
from headrace.convert.claim import LOCKS
from headrace.errors import ConfigError, ConversionError
from headrace.storage import open_store
from killed_children import in_a_child
from waiting import until

convert = partial(convert_with_bar, progress_bar=False)
SETTINGS = {'size_limit': 1500, 'hashes': ['xxh64']}


stores = functools.cache(open_store)


def contents(url: str) -> dict[str, str]:
    if not url.startswith('s3:'):
        return digests(Path(url))
    return {info.key: info.etag for info in stores(url).list('')}


def killed_at(moments: Callable[[int], range], data: Path, new_out: Callable[[], str], beside: str) -> None:
    """Kill a conversion at some of its steps, and start it again."""
    whole = new_out()
    _, steps = in_a_child(lambda: convert(data, whole, **SETTINGS), 0, beside)
    expected = contents(whole)
    assert 'index.json' in expected
    kept: list[int] = []
    for last in moments(steps):
        out = new_out()
        status, _ = in_a_child(lambda out=out: convert(data, out, **SETTINGS), last, beside)
        assert os.WIFSIGNALED(status), last
        try:
            kept.append(convert(data, out, workers=1 + last % 2, **SETTINGS).tasks_done_before)
        except FileExistsError:
            # The dataset was whole, and the plan gone.
            assert 'index.json' in contents(out)
        assert {name: found for name, found in contents(out).items() if not name.startswith('.')} == expected
    assert max(kept) > min(kept)


def test_killed_at_some_steps(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 6, 'b': 5})
    numbers = itertools.count()

    killed_at(
        lambda steps: range(2, steps, max(1, steps // 12)),
        tmp_path / 'data',
        lambda: str(tmp_path / f'out-{next(numbers)}'),
        str(tmp_path / 'out-'),
    )


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['folder', pytest.param('s3', marks=pytest.mark.s3)])
def test_killed_at_every_step(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    make_images(tmp_path / 'data', {'a': 12, 'b': 13})
    numbers = itertools.count()
    if kind == 's3':
        bucket = request.getfixturevalue('s3_server').new_bucket()
    killed_at(
        lambda steps: range(1, steps, max(1, steps // 60)),
        tmp_path / 'data',
        lambda: f's3://{bucket}/{next(numbers)}' if kind == 's3' else str(tmp_path / f'out-{next(numbers)}'),
        str(tmp_path / 'out-'),
    )


@pytest.mark.s3
def test_a_store_of_objects(tmp_path: Path, s3_server) -> None:
    make_images(tmp_path / 'data', {'a': 6, 'b': 5})
    url = f's3://{s3_server.new_bucket()}/data'
    for path in (tmp_path / 'data').rglob('*.jpg'):
        with open(path, 'rb') as file:
            key = path.relative_to(tmp_path / 'data').as_posix()
            open_store(f'{url}/in').put(key, file, size=path.stat().st_size)
    convert(tmp_path / 'data', tmp_path / 'out', **SETTINGS)
    convert(f'{url}/in', f'{url}/out', workers=2, **SETTINGS)
    store = open_store(f'{url}/out')

    names = [info.key for info in store.list('')]
    assert names == sorted(digests(tmp_path / 'out'))
    for name in names:
        with open(tmp_path / 'copy', 'wb') as file:
            store.get(name, file)
        assert (tmp_path / 'copy').read_bytes() == (tmp_path / 'out' / name).read_bytes()


KILL: dict[str, int] = {}


def square_or_kill(number: int) -> dict[str, int]:
    """One sample; an input of `KILL` ends a process."""
    if number == KILL.get('worker'):
        os.kill(os.getpid(), signal.SIGKILL)
    if number == KILL.get('parent'):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # ends with its parent
    return {'n': number, 'square': number**2}


def test_a_killed_worker_is_named_with_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KILL, 'worker', 17)
    options = {'function': square_or_kill, 'columns': {'n': 'int', 'square': 'int'}, 'workers': 2}
    with pytest.raises(ConversionError, match=r'worker process \(pid \d+\).* died by SIGKILL, at input 17 \(17\)'):
        convert(range(30), tmp_path / 'out', **options)
    monkeypatch.delitem(KILL, 'worker')
    report = convert(range(30), tmp_path / 'out', **options)

    assert report.tasks_done_before >= 10
    assert [row['n'] for row in rows_of(tmp_path / 'out')] == list(range(30))


def test_workers_end_with_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {'function': square_or_kill, 'columns': {'n': 'int', 'square': 'int'}, 'workers': 2}
    monkeypatch.setitem(KILL, 'parent', 17)
    status, _ = in_a_child(lambda: convert(range(30), tmp_path / 'out', **options), 0, 'none')
    assert os.WIFSIGNALED(status)
    monkeypatch.delitem(KILL, 'parent')
    # Waits for the lock of the workers.
    report = convert(range(30), tmp_path / 'out', **options)

    assert report.tasks_done_before >= 10
    assert [row['n'] for row in rows_of(tmp_path / 'out')] == list(range(30))


STOPPED: dict[str, Path] = {}


def stop_at_17(number: int) -> dict[str, int]:
    """One sample; a worker that reads input 17 writes its pid and stops."""
    if number == 17 and 'pid' in STOPPED:
        STOPPED['pid'].write_text(f'{os.getpid()}.')
        os.setsid()  # the kernel wakes stopped processes of a session whose parents end
        os.kill(os.getpid(), signal.SIGSTOP)
    return {'n': number}


def test_the_next_conversion_waits_for_workers_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file, out = tmp_path / 'pid', tmp_path / 'out'
    options = {'function': stop_at_17, 'columns': {'n': 'int'}, 'workers': 2}
    monkeypatch.setitem(STOPPED, 'pid', pid_file)
    parent = multiprocessing.get_context('fork').Process(target=lambda: convert(range(30), out, **options))
    parent.start()
    until(lambda: pid_file.exists() and pid_file.read_text().endswith('.'))
    worker = int(pid_file.read_text().rstrip('.'))
    try:
        until(lambda: Path(f'/proc/{worker}/stat').read_text().rpartition(')')[2].split()[0] == 'T')
        parent.kill()
        parent.join()
        with claim_of_workers(out) as is_free:
            assert not is_free  # it could still write
    finally:
        os.kill(worker, signal.SIGKILL)
    monkeypatch.delitem(STOPPED, 'pid')
    convert(range(30), out, **options)

    assert [row['n'] for row in rows_of(out)] == list(range(30))


@contextlib.contextmanager
def claim_of_workers(out: Path) -> Iterator[bool]:
    """Whether the lock for which the next conversion waits is free."""
    (name,) = (name for name in LOCKS if 'workers' in name)
    with open(out / name, 'rb') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def interrupt(number: int) -> dict[str, int]:
    if number == 5:
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    return {'n': number}


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # an import of Composer replaces it
    try:
        with pytest.raises(KeyboardInterrupt):
            convert(range(30), tmp_path / 'out', function=interrupt, columns={'n': 'int'}, workers=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert convert(range(5), tmp_path / 'out', function=interrupt, exist_ok=True).rows == 5


def fail_once(number: int) -> dict[str, int]:
    if number == KILL.get('fail'):
        raise ValueError('not now')
    return {'n': number}


@pytest.mark.parametrize('kind', ['function', 'iterable'])
def test_what_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def run() -> object:
        samples = map(fail_once, range(300))
        if kind == 'iterable':
            return convert(samples, tmp_path / 'out', size_limit=400)
        return convert(range(300), tmp_path / 'out', function=fail_once)

    monkeypatch.setitem(KILL, 'fail', 250)
    with pytest.raises(ConversionError, match=r'ValueError: not now'):
        run()
    assert not (tmp_path / 'out' / 'index.json').exists()
    monkeypatch.delitem(KILL, 'fail')
    report = run()

    assert report.tasks_done_before > 4
    assert [row['n'] for row in rows_of(tmp_path / 'out')] == list(range(300))


def test_other_settings_or_inputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path / 'data', {'a': 4, 'b': 5})
    bad = tmp_path / 'data' / 'b' / 'zz.jpg'
    bad.write_bytes(b'')
    run = partial(convert, tmp_path / 'data', tmp_path / 'out', size_limit=1500)
    with pytest.raises(ConversionError, match=r'b/zz\.jpg cannot be converted'):
        run()
    with pytest.raises(ConfigError, match=r'with size_limit 1500, and got 2000'):
        run(size_limit=2000)
    with pytest.raises(ConfigError, match=r'with compression null, and got "zstd"'):
        run(compression='zstd')
    with pytest.raises(ConfigError, match=r'with columns .*"label".* and got \{\}'):
        run(columns=['image'])
    bad.unlink()
    with pytest.raises(ConfigError, match=r'with inputs .*data"\}, and got .*other'):
        shutil.copytree(tmp_path / 'data', tmp_path / 'other')
        convert(tmp_path / 'other', tmp_path / 'out', size_limit=1500)
    assert convert(tmp_path / 'other', tmp_path / 'out', exist_ok=True, on_error='skip').rows == 9


@pytest.mark.parametrize('change', ['skip', 'remove', 'correct', 'add a class'])
def test_a_stopped_conversion_continues_with_the_inputs_of_now(tmp_path: Path, change: str) -> None:
    make_images(tmp_path / 'data', {'b': 20, 'd': 5})
    bad = tmp_path / 'data' / 'd' / 'zz.jpg'
    bad.write_bytes(b'')
    with pytest.raises(ConversionError, match=r'zz\.jpg'):
        convert(tmp_path / 'data', tmp_path / 'out', size_limit=1500)
    options = {'size_limit': 1500}
    if change == 'skip':
        options['on_error'] = 'skip'
    elif change == 'correct':
        shutil.copy(tmp_path / 'data' / 'b' / '0-0.jpg', bad)
    else:
        bad.unlink()
    if change == 'add a class':
        make_images(tmp_path / 'data', {'a': 1})
    report = convert(tmp_path / 'data', tmp_path / 'out', **options)
    convert(tmp_path / 'data', tmp_path / 'fresh', **options)

    assert (report.tasks_done_before > 5) == (change != 'add a class')
    assert digests(tmp_path / 'out') == digests(tmp_path / 'fresh')


def test_bad_inputs_that_were_skipped_stop_a_stricter_restart(tmp_path: Path) -> None:
    def fail(number: int) -> dict[str, int]:
        if number in {3, KILL.get('fail')}:
            raise ValueError(f'no {number}')
        return {'n': number}

    options = {'function': fail, 'columns': {'n': 'int'}}
    store = tmp_path / 'out'
    status, _ = in_a_child(lambda: convert(range(30), store, on_error='skip', **options), 60, str(store))
    assert os.WIFSIGNALED(status)
    with pytest.raises(ConversionError, match='no 3'):
        convert(range(30), store, **options)
    assert convert(range(30), store, on_error='collect', **options).num_errors == 1


def test_an_iterable_that_became_shorter(tmp_path: Path) -> None:
    def samples(count: int, last: str):
        for i in range(count):
            yield {'i': i}
        if last:
            raise ValueError(last)

    with pytest.raises(ConversionError, match='failed after 200 samples'):
        convert(samples(200, 'broken'), tmp_path / 'out', size_limit=400)
    convert(samples(90, ''), tmp_path / 'out', size_limit=400)
    convert(samples(90, ''), tmp_path / 'fresh', size_limit=400)
    assert digests(tmp_path / 'out') == digests(tmp_path / 'fresh')


def test_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'mine.txt').write_text('mine')
    with pytest.raises(FileExistsError, match=r'holds mine\.txt'):
        convert([{'i': 1}], tmp_path / 'out')
    assert list(digests(tmp_path / 'out')) == ['mine.txt']
    assert not (tmp_path / 'out' / '.headrace-convert').exists()
    convert([{'i': 1}], tmp_path / 'out', exist_ok=True)
    assert sorted(digests(tmp_path / 'out')) == ['index.json', 'shard.00000.00000.mds']
    with pytest.raises(FileExistsError, match=r'holds index\.json'):
        convert([{'i': 1}], tmp_path / 'out')


def test_two_conversions_to_one_folder(tmp_path: Path) -> None:
    def samples():
        yield from ({'i': i} for i in range(100))
        with pytest.raises(ConversionError, match='Another conversion is writing'):
            convert([{'i': 1}], tmp_path / 'out')
        yield {'i': 2}

    assert convert(samples(), tmp_path / 'out').rows == 101


def fewer(number: int):
    """More samples before a restart than after it."""
    for part in range(1 if KILL.get('few') else 200):
        yield {'n': number, 'part': part}
    if number == 3 and not KILL.get('few'):
        os.kill(os.getpid(), signal.SIGKILL)


def test_leftover_shards_of_a_killed_task_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {'function': fewer, 'columns': {'n': 'int', 'part': 'int'}, 'size_limit': 600}
    status, _ = in_a_child(lambda: convert(range(5), tmp_path / 'out', **options), 0, 'none')
    assert os.WIFSIGNALED(status)
    assert (tmp_path / 'out' / 'shard.00003.00002.mds').exists()
    monkeypatch.setitem(KILL, 'few', 1)
    convert(range(5), tmp_path / 'out', **options)

    listed = {
        shard['raw_data']['basename'] for shard in json.loads((tmp_path / 'out/index.json').read_text())['shards']
    }
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {*listed, 'index.json'}


def test_rows_of_random_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Random:
        """Map-style data whose rows differ each time."""

        calls = 0

        def __len__(self):
            return 400

        def __getitem__(self, i):
            Random.calls += 1
            if i == KILL.get('fail'):
                raise ValueError('not now')
            return {'i': i, 'x': b'x' * (Random.calls * 7 % 50)}

    monkeypatch.setitem(KILL, 'fail', 390)
    with pytest.raises(ConversionError, match='row 390'):
        convert(Random(), tmp_path / 'out', size_limit=2000)
    monkeypatch.delitem(KILL, 'fail')

    assert convert(Random(), tmp_path / 'out', size_limit=2000).tasks_done_before > 2
    assert [row['i'] for row in rows_of(tmp_path / 'out')] == list(range(400))
