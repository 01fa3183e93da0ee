"""Writers that continue: behind the whole shards of a killed one, and behind a finished dataset."""

from __future__ import annotations

import functools
import io
import itertools
import os
import random
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from headrace import JSONWriter, MDSWriter, StreamingDataset
from headrace.convert import merge_index
from headrace.errors import ConfigError
from headrace.storage import open_store, register_store
from headrace.storage.stores.local import LocalStore
from tests.support.programs.killed_children import in_a_child
from tests.support.programs.waiting import until

N = 120
stores = functools.cache(open_store)


def write(out, begin=0, end=N, columns=('id', 'text'), **options):
    """Write what is missing of some samples; returns how many were there."""
    encodings = {'id': 'int', 'text': 'str'}
    arguments = {'size_limit': 500, 'hashes': ['sha1'], 'compression': 'zstd', 'resume': True, **options}
    with MDSWriter(out=out, columns={name: encodings[name] for name in columns}, **arguments) as writer:
        there = writer.num_samples
        for i in range(begin + there, end):
            writer.write({'id': i, 'text': str(i)})
        assert writer.num_samples == end - begin
    return there


def content(url):
    """Name and bytes of each object."""
    found = {}
    for info in stores(url).list(''):
        out = io.BytesIO()
        stores(url).get(info.key, out)
        found[info.key] = out.getvalue()
    return found


def ids(url, cache):
    return [sample['id'] for sample in StreamingDataset(remote=url, local=str(cache))[:]]


@pytest.fixture(params=['a folder', 's3', 'a folder and a file URL'])
def target(request, tmp_path):
    """A function that makes an `out`, its URL and further arguments; new ones at each call."""
    numbers = itertools.count()
    bucket = request.getfixturevalue('s3_server').new_bucket() if request.param == 's3' else ''

    def make():
        number = next(numbers)
        if bucket:
            return f's3://{bucket}/{number}', f's3://{bucket}/{number}', {}
        if request.param == 'a folder':
            return str(tmp_path / f'data-{number}'), f'file://{tmp_path}/data-{number}', {}
        url = f'file://{tmp_path}/remote-{number}'
        return (str(tmp_path / f'local-{number}'), url), url, {'keep_local': number % 2 == 1}

    return make


def kill_at(moments, make, action, expected):
    """Kill an action at each of some random moments, once or twice, and let it continue; returns the samples kept."""
    dice = random.Random(moments)
    out, _, options = make()
    status, steps = in_a_child(lambda: action(out, **options), 0)
    assert status == 0
    kept = []
    for _ in range(moments):
        out, url, options = make()
        for _ in range(dice.choice([1, 1, 2])):
            if content(url) != expected:  # a finished append would append again
                in_a_child(lambda out=out, options=options: action(out, **options), dice.randint(1, steps))
        if has_to_continue := content(url) != expected:
            kept.append(action(out, **options))
        assert content(url) == expected
        # One that is killed behind its last upload leaves its mark in the folder.
        if isinstance(out, tuple) and has_to_continue:
            left = {name: Path(out[0], name).read_bytes() for name in os.listdir(out[0])}
            assert left == (expected if options['keep_local'] else {})
    assert os.listdir(tempfile.gettempdir()) == []
    return kept


@pytest.mark.parametrize('moments', [6, pytest.param(50, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_moment_continues_to_the_same_dataset(target, moments):
    out, url, options = target()
    assert write(out, **options) == 0
    kept = kill_at(moments, target, write, content(url))
    # Threads decide what a step is, so a few moments may all lie before the first shard or behind the last one.
    assert moments < 50 or any(0 < samples < N for samples in kept)


@pytest.mark.parametrize('moments', [4, pytest.param(50, marks=pytest.mark.slow)])
def test_an_append_killed_at_any_moment_continues_to_the_same_dataset(target, moments, tmp_path):
    def begun():
        out, url, options = target()
        write(out, 0, 40, **options)
        return out, url, options

    def append(out, **options):
        return write(out, 40, N, append=True, **options)

    out, url, options = begun()
    old = StreamingDataset(remote=url, local=str(tmp_path / 'old'))
    append(out, **options)
    assert [sample['id'] for sample in old[:]] == list(range(40))
    assert ids(url, tmp_path / 'new') == list(range(N))
    kill_at(moments, begun, append, content(url))


def test_the_index_of_an_append_is_the_old_one_or_the_new_one(tmp_path):
    out = str(tmp_path / 'data')
    write(out, 0, 40)
    options = {'append': True, 'resume': False, 'max_workers': 1}  # one thread: the steps are always the same
    _, steps = in_a_child(lambda: write(out, 40, **options), 0)
    sizes = set()
    for number, last in enumerate([*range(1, steps, steps // 5), steps]):
        out = str(tmp_path / str(number))
        write(out, 0, 40)
        in_a_child(lambda out=out: write(out, 40, **options), last)
        sizes.add(len(ids(f'file://{out}', tmp_path / f'cache-{number}')))
        if len(sizes) == 1:  # an append that does not continue begins again
            write(out, 40, **options)
            assert ids(f'file://{out}', tmp_path / f'again-{number}') == list(range(N))
    assert sizes == {40, N}


def raises_at(out, last, **options):
    with (
        pytest.raises(ZeroDivisionError),
        MDSWriter(out=out, columns={'id': 'int'}, size_limit=300, **options) as writer,
    ):
        for i in range(writer.num_samples, last):
            writer.write({'id': i})
        raise ZeroDivisionError


def test_a_writer_killed_between_shards_continues_behind_them(target):
    def killed(out, url, options):
        columns = {'id': 'int', 'text': 'str'}
        arguments = {'size_limit': 500, 'hashes': ['sha1'], 'compression': 'zstd', 'resume': True, 'max_workers': 1}
        writer = MDSWriter(out=out, columns=columns, **arguments, **options)
        for i in range(N - 1):
            writer.write({'id': i, 'text': str(i)})
        # One thread stores shard after shard: with the third one there, the first is whole.
        until(lambda: sum('.mds' in info.key for info in stores(url).list('')) >= 3)
        os.kill(os.getpid(), signal.SIGKILL)

    out, url, options = target()
    write(out, **options)
    expected = content(url)
    out, url, options = target()
    status, _ = in_a_child(lambda: killed(out, url, options), 0)
    assert os.WIFSIGNALED(status)
    assert 0 < write(out, **options) < N
    assert content(url) == expected


def test_after_an_error_the_whole_shards_stay(tmp_path):
    out = str(tmp_path / 'data')
    raises_at(out, 100, resume=True)
    with MDSWriter(out=out, columns={'id': 'int'}, size_limit=300, resume=True) as writer:
        assert 0 < writer.num_samples < 100
        for i in range(writer.num_samples, 120):
            writer.write({'id': i})
    assert [sample['id'] for sample in StreamingDataset(local=out)[:]] == list(range(120))


def test_a_damaged_shard_is_where_a_writer_continues(tmp_path):
    out = tmp_path / 'data'
    raises_at(str(out), 100, resume=True)
    shards = sorted(path for path in out.iterdir() if path.name.startswith('shard.'))
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    with MDSWriter(out=str(out), columns={'id': 'int'}, size_limit=300, resume=True) as writer:
        there = writer.num_samples
        for i in range(there, 50):
            writer.write({'id': i})
    dataset = StreamingDataset(local=str(out))
    assert there == dataset.shards[0].samples
    assert [sample['id'] for sample in dataset[:]] == list(range(50))
    assert len(list(out.glob('shard.*'))) == len(dataset.shards)


def test_a_finished_dataset_is_left_as_it_is(target):
    out, url, options = target()
    write(out, **options)
    before = content(url)
    assert write(out, **options) == N
    assert content(url) == before
    with (
        pytest.raises(
            FileExistsError, match=f'the {N} samples of `num_samples`. Leave these out, or pass `append=True`'
        ),
        MDSWriter(out=out, columns=None, compression='zstd', hashes=['sha1'], size_limit=500, resume=True) as writer,
    ):
        writer.write({'id': 1, 'text': ''})
    assert content(url) == before


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'columns': ('id',)}, 'must have the same column_names'),
        ({'compression': 'gz'}, 'must have the same compression'),
        ({'size_limit': 600}, 'must have the same size_limit, but they are 500 and 600'),
        ({'hashes': None}, 'must have the same hashes'),
    ],
)
def test_a_writer_continues_with_the_same_settings(tmp_path, change, message):
    out = str(tmp_path / 'data')
    _, steps = in_a_child(lambda: write(out, max_workers=1), 0)
    out = str(tmp_path / 'killed')
    in_a_child(lambda: write(out, max_workers=1), steps // 2)
    before = sorted(os.listdir(out))
    with pytest.raises(ConfigError, match=message):
        write(out, **change)
    assert sorted(os.listdir(out)) == before
    write(out)


def test_appended_samples_have_the_same_columns_and_any_compression(tmp_path):
    out = str(tmp_path / 'data')
    write(out, 0, 30)
    for options in ({'columns': ('id',)}, {'columns': ('text',)}):
        with pytest.raises(ConfigError, match='that are appended, must have the same column_names'):
            write(out, 30, append=True, **options)
    with pytest.raises(ConfigError, match='must have the same format'):
        JSONWriter(out=out, columns={'id': 'int', 'text': 'str'}, append=True)
    write(out, 30, 60, append=True, resume=False, compression=None, hashes=None, size_limit=None)
    with MDSWriter(out=out, append=True) as writer:  # the columns are those of the dataset
        assert writer.num_samples == 0
        writer.write({'id': 60, 'text': ''})
    assert ids(f'file://{out}', tmp_path / 'cache') == list(range(61))


def test_an_append_to_nothing_is_a_new_dataset(target, tmp_path):
    out, url, options = target()
    write(out, append=True, resume=False, **options)
    assert ids(url, tmp_path / 'cache') == list(range(N))


def test_an_interrupted_append_is_continued_by_an_append(tmp_path):
    out = str(tmp_path / 'data')
    write(out, 0, 40)
    _, steps = in_a_child(lambda: write(out, 40, append=True, max_workers=1), 0)
    out = str(tmp_path / 'killed')
    write(out, 0, 40)
    in_a_child(lambda: write(out, 40, append=True, max_workers=1), steps // 2)
    with pytest.raises(ConfigError, match='Pass `append=True` too'):
        write(out, 40)
    with pytest.raises(FileExistsError, match='Directory is not empty'):
        write(out, 40, resume=False)
    assert write(out, 40, append=True) > 0


def test_a_failed_append_leaves_the_dataset(tmp_path):
    out = str(tmp_path / 'data')
    write(out, 0, 40)
    before = content(f'file://{out}')
    with pytest.raises(AttributeError), MDSWriter(out=out, append=True, size_limit=300) as writer:
        for i in range(50):
            writer.write({'id': i, 'text': 'x'})
        writer.write({'id': 'x', 'text': 'x'})
    assert content(f'file://{out}') == before


def test_a_writer_continues_on_another_machine(s3_server, tmp_path, monkeypatch):
    url = f's3://{s3_server.new_bucket()}/data'
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, 'gethostname', lambda: 'elsewhere')
        raises_at(url, 100, resume=True)
    with pytest.raises(FileExistsError, match='pass `resume=True` to continue it'):
        raises_at(url, 100)
    with MDSWriter(out=url, columns={'id': 'int'}, size_limit=300, resume=True) as writer:
        assert writer.num_samples > 0
        writer.write({'id': writer.num_samples})
    assert ids(url, tmp_path / 'cache') == list(range(writer.num_samples))


@pytest.mark.parametrize('is_store', [False, True])
def test_appends_to_a_dataset_of_parts_leave_the_parts(tmp_path, is_store, own_stores):
    root = tmp_path / 'data'
    register_store('parts', lambda url, _: LocalStore(Path(url.removeprefix('parts://'))))
    parts = ['part-00000-01234567-89abcdef', 'part-00001-01234567-89abcdef']
    for number, part in enumerate(parts):
        write(str(root / part), 20 * number, 20 * number + 20)
    merge_index(str(root))
    out = f'parts://{root}' if is_store else str(root)
    before = content(f'file://{root}')
    with pytest.raises(ZeroDivisionError), MDSWriter(out=out, append=True, size_limit=500) as writer:
        writer.write_batch({'id': range(50), 'text': ['x'] * 50})
        raise ZeroDivisionError
    assert before.items() <= content(f'file://{root}').items()
    _, steps = in_a_child(lambda: write(out, 40, 60, append=True, resume=False, max_workers=1), 0)
    assert before.keys() <= content(f'file://{root}').keys()
    in_a_child(lambda: write(out, 60, append=True, max_workers=1), steps // 2)
    write(out, 60, append=True)
    assert ids(f'file://{root}', tmp_path / 'cache') == list(range(N))


def test_appends_leave_the_shards_of_replaced_indexes(tmp_path):
    root = tmp_path / 'data'
    write(str(root), 0, 40)
    (root / 'index.json').rename(root / 'index.00001.json')
    write(str(root / 'part'), 40, 60)
    merge_index([str(root / 'part' / 'index.json')], str(root))
    before = content(f'file://{root}')
    assert 'shard.00000.mds.zstd' in before
    with pytest.raises(ZeroDivisionError), MDSWriter(out=str(root), append=True, size_limit=500) as writer:
        writer.write_batch({'id': range(50), 'text': ['x'] * 50})
        raise ZeroDivisionError
    assert before == content(f'file://{root}')
    _, steps = in_a_child(lambda: write(str(root), 60, append=True, max_workers=1), 0)
    shutil.rmtree(root)
    for name, data in before.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    in_a_child(lambda: write(str(root), 60, append=True, max_workers=1), steps // 2)
    write(str(root), 60, append=True)
    found = content(f'file://{root}')
    assert {**before, 'index.json': found['index.json']}.items() <= found.items()
    assert ids(f'file://{root}', tmp_path / 'cache') == list(range(40, N))
