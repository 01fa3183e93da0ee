"""A job folder: after kills between any two file operations, a job ends as one that nothing disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.convert import ConversionReport
from headrace.convert.job import JobFolder, difference
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConfigError, ConversionError
from headrace.storage import Retry
from headrace.storage.stores.local import LocalStore
from tests.support.programs.killed_children import in_a_child
from tests.support.sources.converted import KILL, convert
from tests.support.sources.sources_to_convert import make_images, rows_of


def fail_once(number: int) -> dict[str, int]:
    if number == KILL.get('fail'):
        raise ValueError('not now')
    return {'n': number}


@pytest.mark.parametrize('kind', ['function', 'iterable'])
def test_what_was_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def run() -> ConversionReport:
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


Tasks = list[list[bytes]]  # The content of the files that each task writes.


def work(folder: Path, tasks: Tasks, settings: dict[str, int]) -> int:
    """Do a job whose last step lists all files in an index. Returns the number of tasks that an earlier call did."""
    place = StorePlace(LocalStore(folder), Retry(attempts=1))
    job, kept = JobFolder(place, '.headrace-test'), 0
    with job.claimed():
        if job.read():
            if differs := difference(job.plan['settings'], settings):
                raise ConfigError(f'The job has {differs}.')
        elif place.has('index.json'):
            return len(tasks)
        if job.result is None:
            job.begin(settings)
            for number, contents in enumerate(tasks):
                if number in job.records:
                    kept += 1
                    continue
                for part, content in enumerate(contents):
                    place.write(f'{number}-{part}', content)
                names = [f'{number}-{part}' for part in range(len(contents))]
                job.add(number, {'files': dict(zip(names, map(digest, contents), strict=True))})
            job.finish({name: hashed for _, record in sorted(job.records.items()) for name, hashed in files(record)})
        place.write('index.json', json.dumps(job.result).encode())
        job.remove()
    return kept


def files(record: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    return list(record['files'].items())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def model(tasks: Tasks) -> dict[str, bytes]:
    """All files of a job without a kill."""
    written = {f'{number}-{part}': data for number, parts in enumerate(tasks) for part, data in enumerate(parts)}
    index = {name: digest(data) for name, data in written.items()}
    return {**written, 'index.json': json.dumps(index).encode()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@given(
    tasks=st.lists(st.lists(st.binary(max_size=3), max_size=3), max_size=4),
    kills=st.lists(st.integers(1, 60), min_size=1, max_size=4),
)
def test_kills_between_any_two_file_operations(tasks: Tasks, kills: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, expected, settings, done = Path(name, 'out'), model(tasks), {'size': 1}, 0
        there = dict[str, bytes]()
        for step in kills:
            status, _ = in_a_child(lambda: work(folder, tasks, settings), step, name)
            assert status == 0 or os.WIFSIGNALED(status)
            there = contents(folder)
            if 'index.json' in there:  # whole at once, and nothing of it goes from then on
                assert expected.items() <= there.items()
                done = len(tasks)
            records = [json.loads(data) for path, data in there.items() if 'task-' in path]
            assert done == len(tasks) or len(records) >= done  # what was done is not done again
            done = max(done, len(records))
            assert all(digest(there[path]) == hashed for record in records for path, hashed in files(record))
            if any(path.endswith(('plan.json', '-done')) for path in there):
                with pytest.raises(ConfigError, match=r'The job has size 1, and got 2\.'):
                    work(folder, tasks, {'size': 2})
                unlocked = {path: data for path, data in contents(folder).items() if not path.endswith('.lock')}
                assert unlocked == {path: data for path, data in there.items() if not path.endswith('.lock')}
        assert work(folder, tasks, settings) >= done or 'index.json' in there
        assert contents(folder) == expected
        assert sorted(path.name for path in folder.iterdir()) == sorted(expected)


def test_every_file_operation(tmp_path: Path) -> None:
    tasks = [[b'a', b'bc'], [], [b'def']]
    _, steps = in_a_child(lambda: work(tmp_path / 'whole', tasks, {}), 0, str(tmp_path))
    assert steps > 20
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        status, _ = in_a_child(lambda folder=folder: work(folder, tasks, {}), step, str(tmp_path))
        assert os.WIFSIGNALED(status)
        work(folder, tasks, {})
        assert contents(folder) == model(tasks)
        assert sorted(path.name for path in folder.iterdir()) == sorted(model(tasks))
