"""Damaged shards of each kind are named with the reason; good ones pass, in any number of processes."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import CSVWriter, JSONWriter, MDSWriter
from headrace.errors import ConfigError, ObjectNotFoundError, StorageError
from headrace.format import Encoding, parse_index, unpack_file
from headrace.format.encodings.encoding import ENCODINGS
from headrace.inspect import verify
from tests.support.programs.processes import Program, clean_environment, is_alive
from tests.support.programs.waiting import until

SAMPLES = 40


def write(folder: Path, **options: Any) -> Path:
    with MDSWriter(
        out=str(folder), columns={'id': 'int', 'text': 'str', 'doc': 'json'}, size_limit=600, **options
    ) as writer:
        for i in range(SAMPLES):
            writer.write({'id': i, 'text': 'né ' * 9, 'doc': {'i': i}})
    return folder


def edit_index(folder: Path, change: Any) -> None:
    index = json.loads((folder / 'index.json').read_text())
    change(index['shards'])
    (folder / 'index.json').write_text(json.dumps(index))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, 'r+b') as file:
        file.seek(at)
        file.write(data)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Without checksums: only the content can tell."""
    return write(tmp_path / 'plain')


@pytest.fixture
def hashed(tmp_path: Path) -> Path:
    return write(tmp_path / 'hashed', hashes=['sha1', 'xxh64'])


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return write(tmp_path / 'packed', compression='zstd:3', hashes=['xxh64'])


def only_bad(folder: Path, **options: Any) -> tuple[int, str, str]:
    report = verify(folder, jobs=1, **options)
    (bad,) = report.bad
    assert not report.is_good
    return bad.shard, bad.check, bad.reason


@pytest.mark.parametrize('jobs', [1, 2])
@pytest.mark.parametrize('options', [{}, {'hashes': ['sha1']}, {'compression': 'gz', 'hashes': ['md5', 'xxh32']}])
def test_good_shards_pass(tmp_path: Path, options: dict[str, Any], jobs: int) -> None:
    report = verify(write(tmp_path / 'data', **options), jobs=jobs)
    assert report.is_good
    assert report.samples == SAMPLES
    assert report.shards > 3


@pytest.mark.parametrize('writer', [JSONWriter, CSVWriter])
def test_lines(tmp_path: Path, writer: Any) -> None:
    with writer(out=str(tmp_path / 'data'), columns={'a': 'int', 'b': 'str'}, size_limit=100) as out:
        for i in range(30):
            out.write({'a': i, 'b': 'x' * i})
    assert verify(tmp_path / 'data', jobs=1).is_good
    meta = sorted((tmp_path / 'data').glob('*.meta'))[1]
    data = bytearray(meta.read_bytes())
    data[8] += 1  # where the second line begins
    meta.write_bytes(data)
    shard, check, reason = only_bad(tmp_path / 'data')
    assert (shard, check) == (1, 'samples')
    assert 'newline' in reason or 'line' in reason


def test_a_flipped_byte_under_a_checksum(hashed: Path) -> None:
    overwrite(hashed / 'shard.00001.mds', 300, b'\xff')
    shard, check, reason = only_bad(hashed)
    assert (shard, check) == (1, 'checksum')
    assert 'sha1' in reason


def test_a_wrong_checksum_in_the_index(hashed: Path) -> None:
    """Of any algorithm, not only of the first one."""
    edit_index(hashed, lambda shards: shards[2]['raw_data']['hashes'].update(xxh64='0' * 16))
    shard, check, reason = only_bad(hashed)
    assert (shard, check) == (2, 'checksum')
    assert 'xxh64' in reason


def test_a_flipped_byte_of_a_text_without_checksums(plain: Path) -> None:
    path = plain / 'shard.00001.mds'
    overwrite(path, path.read_bytes().rindex('é'.encode()), b'\xff')
    shard, check, reason = only_bad(plain)
    assert (shard, check) == (1, 'samples')
    assert "column 'text'" in reason
    assert 'sample' in reason


@pytest.mark.parametrize('fast', [False, True])
def test_a_truncated_file(plain: Path, fast: bool) -> None:
    path = plain / 'shard.00003.mds'
    path.write_bytes(path.read_bytes()[:-1])
    shard, check, reason = only_bad(plain, fast=fast)
    assert (shard, check) == (3, 'size')
    assert 'the index gives' in reason


@pytest.mark.parametrize('fast', [False, True])
def test_a_missing_file(packed: Path, fast: bool) -> None:
    (packed / 'shard.00000.mds.zstd').unlink()
    assert only_bad(packed, fast=fast)[:2] == (0, 'missing')


def test_wrong_offsets(plain: Path) -> None:
    path = plain / 'shard.00001.mds'
    offsets = struct.unpack_from('<3I', path.read_bytes(), 4)
    overwrite(path, 8, struct.pack('<I', offsets[2] + 10_000))
    assert only_bad(plain)[:2] == (1, 'offsets')


def test_offsets_that_only_the_samples_contradict(plain: Path) -> None:
    path = plain / 'shard.00001.mds'
    offsets = struct.unpack_from('<3I', path.read_bytes(), 4)
    overwrite(path, 8, struct.pack('<I', offsets[1] + 1))
    shard, check, reason = only_bad(plain)
    assert (shard, check) == (1, 'samples')
    assert 'variable size' in reason


def test_columns_that_the_file_has_under_other_encodings(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'x': 'float32'}) as writer:
        writer.write({'x': 1.5})
    edit_index(tmp_path / 'data', lambda shards: shards[0].update(column_encodings=['int32']))
    shard, check, reason = only_bad(tmp_path / 'data')
    assert (shard, check) == (0, 'columns')
    assert 'float32' in reason


def test_a_damaged_compressed_file(packed: Path) -> None:
    edit_index(packed, lambda shards: [shard['zip_data'].update(hashes={}) for shard in shards])
    path = packed / 'shard.00002.mds.zstd'
    overwrite(path, 40, b'\0' * 30)
    shard, check, _ = only_bad(packed)
    assert shard == 2
    assert check in ('unpack', 'checksum')


def unpack_beside(packed: Path) -> None:
    for info in parse_index((packed / 'index.json').read_bytes(), source='index'):
        file = info.files[0]
        assert file.zip is not None
        unpack_file('zstd', packed / file.zip.basename, packed / file.raw.basename, file.raw.bytes)


def test_a_folder_of_unpacked_files_is_read_as_a_cache(packed: Path) -> None:
    unpack_beside(packed)
    for path in packed.glob('*.zstd'):
        path.unlink()
    assert verify(packed, jobs=1).is_good
    assert verify(packed, fast=True).is_good


def test_compressed_and_raw_files_are_both_read(packed: Path) -> None:
    unpack_beside(packed)
    assert verify(packed, jobs=1).is_good
    overwrite(packed / 'shard.00001.mds', 300, b'\xff')
    assert only_bad(packed)[:2] == (1, 'checksum')


class Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path('/tmp/headrace-test-bomb'),)


def test_pickles_are_checked_and_never_made(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb())
    with MDSWriter(out=str(tmp_path / 'data'), columns={'o': 'pkl', 'n': 'int'}) as writer:
        writer.write({'o': bomb, 'n': 1})
        writer.write({'o': {'a': np.arange(3)}, 'n': 2})
    assert verify(tmp_path / 'data', jobs=1).is_good
    assert not Path('/tmp/headrace-test-bomb').exists()
    path = tmp_path / 'data' / 'shard.00000.mds'
    overwrite(path, path.stat().st_size - 1, b'N')
    shard, check, reason = only_bad(tmp_path / 'data')
    assert (shard, check) == (0, 'samples')
    assert "sample 1, column 'o'" in reason


def test_every_bad_shard_is_named(hashed: Path) -> None:
    (hashed / 'shard.00000.mds').unlink()
    overwrite(hashed / 'shard.00002.mds', 300, b'\xff')
    (hashed / 'left.tmp').write_bytes(b'x')
    report = verify(hashed, jobs=2)
    assert [(bad.shard, bad.file, bad.check) for bad in report.bad] == [
        (0, 'shard.00000.mds', 'missing'),
        (2, 'shard.00002.mds', 'checksum'),
    ]
    assert report.unknown_files == 1
    assert report.to_json()['bad'][1]['shard'] == 2
    assert 'bad shard 2 (shard.00002.mds): checksum' in str(report)


def test_passed_shards_are_passed_over_unless_they_change(hashed: Path, tmp_path: Path) -> None:
    state, shards = tmp_path / 'state', len(list(hashed.glob('*.mds')))
    overwrite(hashed / 'shard.00002.mds', 300, b'\xff')
    assert len(verify(hashed, jobs=1, state=state).bad) == 1
    report = verify(hashed, jobs=1, state=state)
    assert (report.passed_before, len(report.bad)) == (shards - 1, 1)
    # A line that was cut short counts for nothing.
    state.write_text(state.read_text()[:-5])
    overwrite(hashed / 'shard.00001.mds', 300, b'\xff')
    report = verify(hashed, jobs=1, state=state)
    assert [bad.shard for bad in report.bad] == [1, 2]
    assert report.passed_before == shards - 3
    assert verify(hashed, jobs=1, state=state).passed_before == shards - 2


def test_a_state_is_of_one_place(hashed: Path, tmp_path: Path) -> None:
    """A copy may be damaged where the original is not."""
    shutil.copytree(hashed, tmp_path / 'copy')
    assert verify(hashed, jobs=1, state=tmp_path / 'state').is_good
    assert verify(tmp_path / 'copy', jobs=1, state=tmp_path / 'state').passed_before == 0
    assert verify(hashed, jobs=1, state=tmp_path / 'state').passed_before > 0


@pytest.mark.parametrize('content', ['', 'shards that', 'shards that passed headrace verify\n'])
def test_a_state_of_a_process_that_was_killed_at_once(hashed: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / 'state').write_text(content)
    for passed_before in (False, True):
        report = verify(hashed, jobs=1, state=tmp_path / 'state')
        assert report.is_good
        assert bool(report.passed_before) == passed_before


def test_wrong_arguments(hashed: Path, tmp_path: Path) -> None:
    (tmp_path / 'notes').write_text('my notes')
    with pytest.raises(ConfigError, match='another file'):
        verify(hashed, state=tmp_path / 'notes')
    assert (tmp_path / 'notes').read_text() == 'my notes'
    with pytest.raises(ConfigError, match='from 1'):
        verify(hashed, jobs=0)
    with pytest.raises(ConfigError, match='leave it out'):
        verify(hashed, state=tmp_path / 'state', fast=True)
    with pytest.raises(ObjectNotFoundError, match=r'index\.json'):
        verify(tmp_path / 'nothing')


VERIFY = """
import sys, threading
from headrace.inspect import verify
from tests.support.programs.processes import Program, clean_environment, is_alive
from tests.support.programs.waiting import until
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore

class Stuck(LocalStore):
    "Hangs at the third shard."
    def get(self, key, out, **options):
        if key == 'shard.00002.mds':
            threading.Event().wait()
        return super().get(key, out, **options)

register_store('stuck', lambda url, options: Stuck(url.removeprefix('stuck://')))
verify(sys.argv[1], state=sys.argv[2], jobs=2)
"""


def test_a_killed_verify_leaves_nothing_and_continues(hashed: Path, tmp_path: Path) -> None:
    state, temporary = tmp_path / 'state', tmp_path / 'tmp'
    temporary.mkdir()
    shards = len(list(hashed.glob('*.mds')))
    environ = {**clean_environment(), 'TMPDIR': str(temporary)}
    with Program([sys.executable, '-c', VERIFY, f'stuck://{hashed}', str(state)], environ=environ) as program:
        until(lambda: state.exists() and len(state.read_text().splitlines()) == shards)  # a title, and all but one
        children = Path(f'/proc/{program.process.pid}/task/{program.process.pid}/children').read_text().split()
        assert len(children) >= 2
        program.process.kill()
        program.process.wait()
        until(lambda: not any(is_alive(int(pid)) for pid in children))
    assert not list(temporary.iterdir())
    report = verify(hashed, jobs=1, state=state)
    # The entries are the same, the versions of the files, too: this store is the same folder.
    assert (report.passed_before, report.is_good) == (shards - 1, True)


class Strict(Encoding):
    """Raises what no reader expects."""

    trusted_name = True

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, data: Any) -> Any:
        return {0: 'good'}[len(data)]


def test_errors_of_own_encodings_are_of_their_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODINGS, 'strict', Strict())
    with MDSWriter(out=str(tmp_path / 'data'), columns={'x': 'strict'}) as writer:
        writer.write({'x': b''})
    assert verify(tmp_path / 'data', jobs=1).is_good
    with MDSWriter(out=str(tmp_path / 'bad'), columns={'x': 'strict'}) as writer:
        writer.write({'x': b'1'})
    shard, check, reason = only_bad(tmp_path / 'bad')
    assert (shard, check, reason) == (0, 'samples', 'KeyError: 1')


class Killer(Encoding):
    """Ends the process that reads it, as a lack of memory may do."""

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, data: Any) -> Any:
        os._exit(9)


def test_a_killed_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODINGS, 'killer', Killer())
    with MDSWriter(out=str(tmp_path / 'data'), columns={'x': 'killer'}) as writer:
        writer.write({'x': b''})
    with pytest.raises(StorageError, match='was killed'):
        verify(tmp_path / 'data', jobs=2)


def test_a_process_that_is_killed_as_it_begins_is_an_error(hashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules['headrace.inspect.verify'], '_begin_worker', lambda *_: os._exit(9))
    with pytest.raises(StorageError, match='was killed'):
        verify(hashed, jobs=2)


class StoppedOrKilled(Encoding):
    """Its values stop a process so that SIGTERM does not reach it, or kill it."""

    def encode(self, obj: Any) -> bytes:
        return bytes(obj)

    def decode(self, data: Any) -> Any:
        if bytes(data) == b'stop':
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(9)


def test_a_killed_process_ends_the_others_although_they_do_not_hear_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODINGS, 'stopper', StoppedOrKilled())
    with MDSWriter(out=str(tmp_path / 'data'), columns={'x': 'stopper'}, size_limit=1) as writer:
        writer.write({'x': b'stop'})
        writer.write({'x': b'kill'})
    with pytest.raises(StorageError, match='was killed'):
        verify(tmp_path / 'data', jobs=2)
