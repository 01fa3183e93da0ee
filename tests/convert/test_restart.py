"""A conversion that is killed at any moment continues where it was, and gives the same files."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.convert import rollback
from headrace.errors import ConfigError, ConversionError
from headrace.storage import open_store
from tests.support.programs.killed_children import in_a_child
from tests.support.sources.converted import KILL, convert
from tests.support.sources.sources_to_convert import digests, make_images, rows_of

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
    expected = {name: found for name, found in contents(whole).items() if not name.startswith('.')}
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


def test_a_killed_append_loses_nothing_and_adds_nothing_twice(tmp_path: Path) -> None:
    convert([{'n': i} for i in range(50)], tmp_path / 'before')
    before = digests(tmp_path / 'before')

    def append(out: Path, workers: int = 1) -> object:
        return convert(range(12), out, function=add_one, append=True, size_limit=400, workers=workers)

    def begun(name: str) -> Path:
        shutil.copytree(tmp_path / 'before', tmp_path / 'outs' / name)
        return tmp_path / 'outs' / name

    whole = begun('whole')
    _, steps = in_a_child(lambda: append(whole), 0, str(tmp_path / 'outs'))
    expected = digests(whole)
    assert rows_of(whole) == [{'n': i} for i in [*range(50), *range(1, 13)]]
    for last in sorted({*range(2, steps, steps // 4), *range(steps - 8, steps)}):
        out = begun(str(last))
        status, _ = in_a_child(lambda out=out: append(out), last, str(tmp_path / 'outs'))
        assert os.WIFSIGNALED(status), last
        assert rows_of(out)[:50] == rows_of(tmp_path / 'before')
        assert before.items() <= {**digests(out), 'index.json': before['index.json']}.items()
        if last < steps // 2 or (out / '.headrace-convert' / 'plan.json').exists():
            append(out, workers=1 + last % 2)
        assert {name: found for name, found in digests(out).items() if not name.startswith('.')} == expected


def add_one(number: int) -> dict[str, int]:
    return {'n': number + 1}


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
        if name == '.headrace-inputs.json':  # versions of files and objects differ
            continue
        with open(tmp_path / 'copy', 'wb') as file:
            store.get(name, file)
        assert (tmp_path / 'copy').read_bytes() == (tmp_path / 'out' / name).read_bytes()


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


def test_a_task_that_is_done_anew_is_unfinished_until_then(tmp_path: Path) -> None:
    bad, interrupts = {0, 2}, {599}

    def fail(number: int) -> dict[str, str]:
        if number in interrupts:
            raise KeyboardInterrupt
        if number in bad:
            raise ValueError(f'no {number}')
        return {'text': f'{number}' * 9}

    options = {'function': fail, 'columns': {'text': 'str'}, 'size_limit': 4096}
    with pytest.raises(KeyboardInterrupt):
        convert(range(600), tmp_path / 'out', on_error='skip', **options)
    bad.remove(0)
    interrupts.clear()
    # It corrects input 0, and ends at input 2 of the same task.
    with pytest.raises(ConversionError, match='no 2'):
        convert(range(600), tmp_path / 'out', **options)
    report = convert(range(600), tmp_path / 'out', on_error='skip', **options)
    convert(range(600), tmp_path / 'fresh', on_error='skip', **options)

    assert report.num_errors == 1
    assert digests(tmp_path / 'out') == digests(tmp_path / 'fresh')


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


def test_an_unfinished_append_is_continued_as_such(tmp_path: Path) -> None:
    out = tmp_path / 'out'
    convert([{'n': 1}], out)

    def fail(number: int) -> dict[str, int]:
        if number == 3:
            raise ValueError('no 3')
        return {'n': number}

    def append(**options: object) -> object:
        return convert(range(5), out, function=fail, **options)

    with pytest.raises(ConversionError, match='no 3'):
        append(append=True)
    for options, message in [
        ({}, 'Pass `append=True`'),
        ({'append': True, 'size_limit': 100}, 'size_limit .*remove .headrace-convert there'),
    ]:
        with pytest.raises(ConfigError, match=message):
            append(**options)
    with pytest.raises(FileExistsError, match='still being written'):
        rollback(out, 'index.00001.json')
    assert append(append=True, on_error='skip').rows_before == 1
    assert rows_of(out) == [{'n': i} for i in (1, 0, 1, 2, 4)]


def test_an_index_that_changed_meanwhile_stays(tmp_path: Path) -> None:
    out = tmp_path / 'out'
    convert([{'n': 1}], out)

    def change(number: int) -> dict[str, int]:
        (out / 'index.json').write_text('{"version": 2, "shards": []}')
        return {'n': number}

    with pytest.raises(ConversionError, match='was replaced while'):
        convert([1], out, function=change, columns={'n': 'int'}, append=True)
    assert (out / 'index.json').read_text() == '{"version": 2, "shards": []}'
