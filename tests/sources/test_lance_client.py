"""The process of Lance: its turns, its end by a kill, and the folder that it reads."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamingDataLoader
from headrace.errors import DiskFullError, StorageError
from headrace.sources import lance_client
from tests.support.sources.lance_datasets import opened, write_lance


def test_threads_take_turns_at_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lance(tmp_path / 'a', 60, 5)
    started: list[int] = []
    start = lance_client._start
    monkeypatch.setattr(lance_client, '_start', lambda: started.append(1) or start())
    monkeypatch.setattr(lance_client, '_idle', {})
    dataset = opened(tmp_path / 'a', tmp_path / 'b', shuffle=True, columns=['id'])  # a batch needs several parts
    assert sorted(int(n) for batch in StreamingDataLoader(dataset) for n in batch['id']) == [*range(60)]
    assert len(started) == 1


@pytest.mark.parametrize('call', ['mkdtemp', 'write'])
def test_a_full_temporary_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    write_lance(tmp_path / 'a', 12)
    dataset = opened(tmp_path / 'a', tmp_path / 'b')

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(*((tempfile, 'mkdtemp') if call == 'mkdtemp' else (lance_client, '_write')), full)
    with pytest.raises(DiskFullError, match=f'{tempfile.gettempdir()} has no room for pages of Lance.* set TMPDIR'):
        dataset[0]


def test_a_process_that_is_killed_or_cannot_start_is_no_bad_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lance(tmp_path / 'a', 12)
    monkeypatch.setattr(lance_client, '_idle', {})
    dataset = opened(tmp_path / 'a', tmp_path / 'b', columns=['id'], on_bad_sample='skip')
    ask = lance_client._ask

    def kill_and_ask(process: subprocess.Popen[bytes], line: bytes) -> Any:
        process.kill()
        return ask(process, line)

    def no_process(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')

    with monkeypatch.context() as patch:
        patch.setattr(lance_client, '_ask', kill_and_ask)
        with pytest.raises(StorageError, match='was killed'):
            next(iter(StreamingDataLoader(dataset)))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, 'Popen', no_process)
        with pytest.raises(StorageError, match='cannot start'):
            next(iter(StreamingDataLoader(dataset)))
    turn, _ = lance_client._idle[os.getpid()]
    assert not turn.locked()  # or each later read would wait for a minute
    assert [int(sample['id']) for sample in dataset[:]] == [*range(12)]
