"""Commands that look at data: `inspect`, `verify` and `cache`."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.cli.inspect import print_preview
from headrace.inspect import describe_decoded
from headrace.storage.cache.fetch_lock import FetchLock


def test_inspect(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['inspect', str(data), '--samples', '1']) == 0
    shown = capsys.readouterr().out
    assert 'ndarray:float32:4' in shown
    assert 'sample 0' in shown
    assert 'sample 1' not in shown
    assert main(['inspect', str(data), '--json', '--samples', '2']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['samples'] == 100
    assert [each['id']['value'] for each in found['first_samples']] == [0, 1]


def test_inspect_takes_the_options_of_a_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ('train', 'test'):
        (tmp_path / f'{name}.csv').write_text(f'1;{name}\n')
        (tmp_path / f'{name}.jsonl').write_text('{"a": 1}\n')
    asked = [
        'inspect',
        str(tmp_path),
        '--format',
        'csv',
        '--format-option',
        'delimiter=;',
        '--format-option',
        'header=false',
    ]
    assert main([*asked, '--split', 'train', '--json']) == 0
    (first,) = json.loads(capsys.readouterr().out)['first_samples']
    assert {name: value['value'] for name, value in first.items()} == {'0': 1, '1': 'train'}
    assert main(asked) == 1
    assert 'has several: test, train' in capsys.readouterr().err
    with MDSWriter(out=str(tmp_path / 'x[1]' / 'train'), columns={'a': 'int'}) as writer:
        writer.write({'a': 1})
    assert main(['inspect', str(tmp_path / 'x[1]'), '--split', 'train', '--format', 'mds']) == 0


def test_inspect_saves_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    png = b'\x89PNG\r\n\x1a\n and so on'
    with MDSWriter(out=str(tmp_path / 'data'), columns={'b': 'bytes'}) as writer:
        writer.write({'b': png})
    assert main(['inspect', str(tmp_path / 'data'), '--save', str(tmp_path / 'out')]) == 0
    assert '1 picture saved' in capsys.readouterr().out
    assert [path.read_bytes() for path in (tmp_path / 'out').iterdir()] == [png]


def test_inspect_shows_thumbnails_in_a_terminal_with_colours(tmp_path: Path) -> None:
    image = pytest.importorskip('PIL.Image')
    with MDSWriter(out=str(tmp_path / 'data'), columns={'p': 'png'}) as writer:
        writer.write({'p': image.new('RGB', (4, 4), (1, 2, 3))})
    ours, theirs = pty.openpty()
    environ = {**os.environ, 'TERM': 'xterm-256color', 'NO_COLOR': ''}
    program = [sys.executable, '-m', 'headrace.cli', 'inspect', str(tmp_path / 'data')]
    with subprocess.Popen(program, stdout=theirs, env=environ) as running:
        os.close(theirs)
        shown = b''
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # Linux says so when the other end is closed
            pass
        os.close(ours)
    assert running.returncode == 0
    assert '\x1b[38;2;1;2;3;48;2;1;2;3m▀'.encode() in shown


def test_a_preview_says_the_size_of_a_picture_once(capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip('PIL.Image')

    print_preview('Row 0', {'image': describe_decoded(image.new('RGB', (40, 20))), 'label': describe_decoded(3)})

    assert capsys.readouterr().out.splitlines()[:3] == ['Row 0', '  image: picture, 40 x 20 RGB', '  label: 3']


def damage(data: Path) -> None:
    path = data / 'shard.00001.mds'
    path.write_bytes(path.read_bytes()[:-1] + b'?')


@pytest.mark.parametrize('arguments', [[], ['--fast'], ['-j', '2'], ['--state', 'state']])
def test_verify_of_a_good_dataset(
    data: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    assert main(['verify', 'data', *arguments]) == 0
    assert 'with 100 samples in all' in capsys.readouterr().out
    assert main(['verify', 'data', *arguments, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['ok'] is True


def test_verify_of_a_bad_dataset(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(data)
    assert main(['verify', str(data), '-j', '1']) == 1
    assert 'bad shard 1 (shard.00001.mds): checksum: ' in capsys.readouterr().out
    assert main(['verify', str(data), '-j', '1', '--json']) == 1
    assert json.loads(capsys.readouterr().out)['bad'][0]['check'] == 'checksum'


def test_verify_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['verify', str(tmp_path)]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert error.startswith('headrace: ')
    assert error.count('\n') == 1


_HOLD = """
import sys
from pathlib import Path
from headrace.storage.cache.entry import CacheEntry, CachePart
from headrace.storage.cache.shard_cache import ShardCache
from headrace.storage.stores.local import LocalStore
remote, local, name = sys.argv[1:]
entry = CacheEntry((CachePart(name, Path(local, name).stat().st_size),))
with ShardCache(local, store=LocalStore(remote), limit=1 << 20).acquire(entry):
    print('holds', flush=True)
    sys.stdin.read()
"""


def write(folder: Path) -> Path:
    with MDSWriter(out=str(folder), columns={'x': 'ndarray:int32:16'}, size_limit=1024) as writer:
        for row in range(60):
            writer.write({'x': np.full(16, row, np.int32)})
    return folder


def fill(remote: Path, cache: Path) -> int:
    """Cache all shards; returns their number."""
    dataset = StreamingDataset(remote=str(remote), local=str(cache), batch_size=4)
    assert [int(dataset[row]['x'][0]) for row in range(60)] == list(range(60))
    return len(dataset.shards)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return write(tmp_path / 'remote')


@pytest.fixture
def cache(tmp_path: Path, remote: Path) -> Path:
    fill(remote, tmp_path / 'cache')
    return tmp_path / 'cache'


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob('shard.*'))


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(['cache', *arguments, '--json']) == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_is_shown(cache: Path, remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = shards_of(cache)
    size = sum(path.stat().st_size for path in shards[1:])
    shards[0].unlink()
    (found,) = listed(capsys, str(cache))
    assert found == {
        'folder': str(cache),
        'remote': str(remote),
        'shards': len(shards),
        'present': len(shards) - 1,
        'bytes': size,
        'in_use': 0,
        'fetches': 0,
        'fetch_bytes': 0,
        'limit': None,
    }
    assert main(['cache', str(cache)]) == 0
    assert f'{len(shards) - 1} of {len(shards)}' in capsys.readouterr().out
    assert shards_of(cache) == shards[1:]


def test_folders_of_streams_are_found_below(tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(remote, tmp_path / 'all' / 'a')
    fill(remote, tmp_path / 'all' / 'b' / 'train')
    (tmp_path / 'all' / 'link').symlink_to(tmp_path / 'all' / 'a')
    names = [Path(each['folder']).relative_to(tmp_path / 'all') for each in listed(capsys, str(tmp_path / 'all'))]
    assert names == [Path('a'), Path('b/train')]


def test_a_configuration_gives_folders_and_limits(
    tmp_path: Path, cache: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / 'train.yaml'
    streams = f'{{a: {{remote: {remote}, local: {cache}}}, b: {{remote: {remote}, local: {tmp_path / "new"}}}}}'
    config.write_text(f'device_batch_size: 4\ntrain:\n  cache_limit: 1mb\n  streams: {streams}\n')
    a, b = listed(capsys, str(config))
    assert (a['limit'], a['present']) == (1 << 20, len(shards_of(cache)))
    assert (b['folder'], b['remote'], b['present']) == (str(tmp_path / 'new'), '', 0)
    assert listed(capsys, str(config), 'train.cache_limit=2mb')[0]['limit'] == 2 << 20
    assert main(['cache', 'clear', '--yes', str(config)]) == 0
    assert not shards_of(cache)
    assert not (tmp_path / 'new').exists()


def test_a_shard_that_a_process_uses_stays(cache: Path, remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = shards_of(cache)
    program = [sys.executable, '-c', _HOLD, str(remote), str(cache), shards[0].name]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == 'holds\n'
        assert listed(capsys, str(cache))[0]['in_use'] == 1
        assert main(['cache', 'clear', str(cache), '--yes']) == 0
        assert f'removed {len(shards) - 1} shards' in (shown := capsys.readouterr().out)
        assert '1 in use stay' in shown
        assert shards_of(cache) == shards[:1]
        holder.stdin.close()
    size = shards[0].stat().st_size
    assert listed(capsys, 'clear', str(cache), '--yes') == [
        {'folder': str(cache), 'removed': 1, 'bytes': size, 'in_use': 0, 'links': 0}
    ]
    assert fill(remote, cache) == len(shards)  # the index has stayed, and the shards come again


def test_a_fetch_under_way_is_counted(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FetchLock(cache, 'shard.00000.mds') as fetch:
        fetch.reserve(5000)
        (found,) = listed(capsys, str(cache))
        assert (found['fetches'], found['fetch_bytes']) == (1, 5000)
        assert main(['cache', str(cache)]) == 0
        assert '1, 4.88 KiB' in capsys.readouterr().out
    (found,) = listed(capsys, str(cache))
    assert (found['fetches'], found['fetch_bytes']) == (0, 0)


def test_only_shards_go(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = shards_of(cache)
    elsewhere = tmp_path / 'elsewhere'
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    (cache / 'notes.txt').write_text('mine')
    (answer,) = listed(capsys, 'clear', str(cache), '--yes')
    assert (answer['removed'], answer['links'], answer['in_use']) == (len(others), 1, 0)
    assert first.is_symlink()
    assert elsewhere.stat().st_size > 0
    left = {path.name for path in cache.iterdir()}
    assert left == {'notes.txt', 'index.json', '.headrace-remote', first.name}


def test_a_folder_that_is_no_cache_is_refused(tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(remote.iterdir())
    assert main(['cache', 'clear', str(remote), '--yes']) == 1
    assert 'A cache folder holds the file .headrace-remote' in capsys.readouterr().err
    assert main(['cache', 'clear', str(tmp_path / 'absent'), '--yes']) == 1
    assert 'is no folder: check the path' in capsys.readouterr().err
    (remote / '.headrace-remote').symlink_to(tmp_path / 'note')
    (tmp_path / 'note').write_text('s3://bucket/data\n')
    assert main(['cache', 'clear', str(remote), '--yes']) == 1  # a note that is a link marks nothing
    (remote / '.headrace-remote').unlink()
    assert sorted(remote.iterdir()) == before


def test_a_link_to_a_cache_is_refused(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shards_of(cache)
    (tmp_path / 'link').symlink_to(cache)
    assert main(['cache', 'clear', str(tmp_path / 'link'), '--yes']) == 1
    assert f'is a link to {cache}: name that folder' in capsys.readouterr().err
    assert shards_of(cache) == before


@pytest.mark.parametrize(
    ('answer', 'goes'), [('y\n', True), ('yes\n', True), ('\n', False), ('no\n', False), ('', False)]
)
def test_it_asks(
    answer: str,
    goes: bool,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr('sys.stdin', io.StringIO(answer))
    before = shards_of(cache)
    assert main(['cache', 'clear', str(cache)]) == (0 if goes else 1)
    assert f'Remove {len(before)} shards' in capsys.readouterr().err
    assert shards_of(cache) == ([] if goes else before)


def test_yes_belongs_to_clear(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['cache', str(cache), '--yes']) == 1
    assert 'add clear' in capsys.readouterr().err


def test_data_of_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrow = pytest.importorskip('pyarrow')
    parquet = pytest.importorskip('pyarrow.parquet')
    (tmp_path / 'table').mkdir()
    parquet.write_table(arrow.table({'x': list(range(40))}), tmp_path / 'table' / 'a.parquet', row_group_size=10)
    dataset = StreamingDataset(remote=str(tmp_path / 'table'), local=str(tmp_path / 'cache'), batch_size=4)
    assert dataset[0]['x'] == 0
    del dataset
    (found,) = listed(capsys, str(tmp_path / 'cache'))
    assert (found['present'], found['shards']) == (1, 4)
    assert found['bytes'] > 0
    (answer,) = listed(capsys, 'clear', str(tmp_path / 'cache'), '--yes')
    assert (answer['removed'], answer['bytes']) == (1, found['bytes'])


def test_only_what_is_missing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(['cache'])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith('required: DIR|CONFIG')
