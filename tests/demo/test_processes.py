from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.demo.processes import ProcessGroup, RankProgramError
from tests.support.programs.processes import is_alive
from tests.support.programs.waiting import until

# A leader, a child and a grandchild that each write down their id and sleep, deaf to everything but SIGKILL.
FAMILY = """
import os, pathlib, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
generations = 0
while generations < 2 and os.fork() == 0:
    generations += 1
(folder / f'{os.getpid()}.pid').touch()
time.sleep(600)
"""


def started(program: str, folder: Path) -> ProcessGroup:
    command = [sys.executable, '-c', program, str(folder)]
    return ProcessGroup(command, log=folder / 'log.txt', temporary=folder)


def family(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob('*.pid')]


def test_kill_reaches_children_and_grandchildren(tmp_path: Path) -> None:
    with started(FAMILY, tmp_path) as group:
        assert group.watch(lambda: len(family(tmp_path)) == 3, timeout=60)
        assert group.kill() == 3

    assert not any(map(is_alive, family(tmp_path)))


def test_nothing_outlives_the_block(tmp_path: Path) -> None:
    def interrupted() -> None:
        with started(FAMILY, tmp_path) as group:
            group.watch(lambda: len(family(tmp_path)) == 3, timeout=60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    until(lambda: not any(map(is_alive, family(tmp_path))))


def test_a_program_that_ends_well_is_no_error(tmp_path: Path) -> None:
    with started('print("done")', tmp_path) as group:
        assert not group.watch(lambda: False, timeout=60)

    assert (tmp_path / 'log.txt').read_text() == 'done\n'


def test_the_error_of_a_program_that_fails_says_what_it_said(tmp_path: Path) -> None:
    with (
        started('raise SystemExit("no such bucket")', tmp_path) as group,
        pytest.raises(RankProgramError, match=r'(?s)log\.txt\nno such bucket\nexit status 1'),
    ):
        group.watch(lambda: False, timeout=60)


def test_a_program_that_hangs_is_an_error(tmp_path: Path) -> None:
    with (
        started('import time; time.sleep(600)', tmp_path) as group,
        pytest.raises(RankProgramError, match='no end after 0 seconds'),
    ):
        group.watch(lambda: False, timeout=0.1)


def test_temporary_files_go_where_they_are_told(tmp_path: Path) -> None:
    with started('import tempfile; print(tempfile.gettempdir())', tmp_path) as group:
        group.watch(lambda: False, timeout=60)

    assert (tmp_path / 'log.txt').read_text().strip() == str(tmp_path)
