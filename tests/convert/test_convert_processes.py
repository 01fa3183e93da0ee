"""Worker processes of a conversion: how they start and end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace.errors import ConfigError, ConversionError
from tests.support.programs.killed_children import in_a_child
from tests.support.sources.converted import KILL, convert
from tests.support.sources.sources_to_convert import digests, make_images, rows_of


@pytest.mark.parametrize('method', ['spawn', 'forkserver'])
def test_a_lambda_needs_fork(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=rf'start by .{method}.* cannot be pickled.*top of a module'):
        convert(
            [1, 2], tmp_path / 'out', function=lambda i: {'i': i}, columns={'i': 'int'}, workers=2, start_method=method
        )


@pytest.mark.slow
def test_spawned_workers(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 10, 'b': 11})
    for method in ('fork', 'spawn'):
        convert(tmp_path / 'data', tmp_path / method, workers=2, start_method=method, size_limit=2000)
    assert digests(tmp_path / 'fork') == digests(tmp_path / 'spawn')


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
