"""Rank programs as process groups: all of a run's processes are watched, killed and reaped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

__all__ = ['ProcessGroup', 'RankProgramError']

_POLL_SECONDS = 0.02
_GONE_SECONDS = 20.0
_LOG_LINES = 30


class RankProgramError(RuntimeError):
    """A rank program failed, hung, or left a process behind."""


class ProcessGroup:
    """A command and all its descendants, in a session of their own; leaving the ``with`` block kills what is left.

    Args:
        command: The program and its arguments.
        log: The file for all that it prints.
        temporary: The folder for its temporary files, which a killed process cannot remove.
    """

    def __init__(self, command: Sequence[str], *, log: Path, temporary: Path) -> None:
        self._command = command
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open('wb') as output:
            self._leader = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_RANK_ENVIRONMENT, 'PYTHONPATH': _PATH, 'TMPDIR': str(temporary)},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._signal_group()
        self._leader.wait()

    def watch(self, tick: Callable[[], bool], *, timeout: float) -> bool:
        """Call ``tick`` until it answers True (then the group still runs) or the command has ended well (False).

        Raises:
            RankProgramError: If the command failed, or did neither within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            code = self._leader.poll()
            if tick():
                return True
            if code is not None:
                if code == 0:
                    return False
                raise RankProgramError(f'{self._said()}\nexit status {code}')
            time.sleep(_POLL_SECONDS)
        raise RankProgramError(f'{self._said()}\nno end after {timeout:.0f} seconds')

    def kill(self) -> int:
        """SIGKILL for every process of the group at once; returns how many there were.

        Raises:
            RankProgramError: If one of them is still there 20 seconds later.
        """
        number = len(_members(self._leader.pid))
        self._signal_group()
        self._leader.wait()
        deadline = time.monotonic() + _GONE_SECONDS
        while left := _members(self._leader.pid):
            if time.monotonic() > deadline:
                raise RankProgramError(f'processes {left} outlived SIGKILL by {_GONE_SECONDS:.0f} seconds')
            time.sleep(_POLL_SECONDS)
        return number

    def _signal_group(self) -> None:
        # The group may be gone already. macOS says EPERM for a group of zombies.
        try:
            os.killpg(self._leader.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def _said(self) -> str:
        lines = self._log.read_text(encoding='utf-8', errors='replace').splitlines()[-_LOG_LINES:]
        return '\n'.join([f'{" ".join(self._command)}: the last lines of {self._log}', *lines])


_RANK_ENVIRONMENT = {
    # One thread a rank: two ranks share two cores, and a sum over fixed threads does not depend on the machine.
    'OMP_NUM_THREADS': '1',
    # gloo would pick the interface that the host name resolves to; the demo stays on the loopback.
    'GLOO_SOCKET_IFNAME': 'lo0' if sys.platform == 'darwin' else 'lo',
}
_PATH = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get('PYTHONPATH')]))
"""Rank programs import `examples.demo`."""


def _members(group: int) -> list[int]:
    """The ids of the living processes of a group. Zombies are dead: where nothing reaps orphans, they stay for ever."""
    rows = _proc_rows() if Path('/proc/self/stat').exists() else _ps_rows()
    return [pid for pid, its_group, state in rows if its_group == group and not state.startswith('Z')]


def _proc_rows() -> list[tuple[int, int, str]]:
    rows: list[tuple[int, int, str]] = []
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            # 'pid (name) state parent group ...', and the name may hold spaces and parentheses.
            state, _, group = (folder / 'stat').read_text().rpartition(')')[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        rows.append((int(folder.name), int(group), state))
    return rows


def _ps_rows() -> list[tuple[int, int, str]]:
    listing = subprocess.run(
        ['/bin/ps', '-A', '-o', 'pid=', '-o', 'pgid=', '-o', 'stat='], check=True, capture_output=True, text=True
    )
    return [(int(pid), int(group), state) for pid, group, state in map(str.split, listing.stdout.splitlines())]
