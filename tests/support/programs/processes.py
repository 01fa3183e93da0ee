"""Programs that tests start: none outlives its test, and one that hangs says where it does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, NoReturn

__all__ = [
    'Program',
    'clean_environment',
    'end_rank',
    'end_well',
    'is_alive',
    'run_program',
    'run_well',
    'states_of',
    'torchrun',
]

# What launchers set; a user sets none of them.
_RANK_VARIABLES = (
    'RANK',
    'WORLD_SIZE',
    'LOCAL_RANK',
    'LOCAL_WORLD_SIZE',
    'NODE_RANK',
    'GROUP_RANK',
    'MASTER_ADDR',
    'MASTER_PORT',
)
_MARK = 'HEADRACE_TEST_PROGRAM'


def end_well(children: Sequence[BaseProcess], seconds: float) -> None:
    """Wait for processes, which all must end well, in time."""
    until = time.monotonic() + seconds
    for child in children:
        child.join(max(0.0, until - time.monotonic()))
    stuck = [child for child in children if child.exitcode is None]
    for child in stuck:
        child.kill()
        child.join()
    assert not stuck
    assert [child.exitcode for child in children] == [0] * len(children)


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that nobody has reaped does not: for an orphan, nobody may ever do it."""
    if Path('/proc/self/task').exists():
        return not states_of(pid) <= {'Z', 'X'}
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def states_of(pid: int) -> set[str]:
    """The letters of the states of a process' threads. One may run on for a moment when the first has stopped."""
    states: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f'/proc/{pid}/task'):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                states.add(Path(f'/proc/{pid}/task/{task}/stat').read_text().rpartition(')')[2].split()[0])
    return states


def clean_environment(**variables: str) -> dict[str, str]:
    """This process' environment without the variables of a launcher."""
    environ = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    fixed = {
        # Ranks share the cores.
        'OMP_NUM_THREADS': '1',
        # gloo would take the interface that the host name resolves to, whatever that is; tests stay on the loopback.
        'GLOO_SOCKET_IFNAME': 'lo0' if sys.platform == 'darwin' else 'lo',
        # SIGABRT then has a process print what its threads are doing.
        'PYTHONFAULTHANDLER': '1',
    }
    # Programs of tests share what tests share.
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [environ.get('PYTHONPATH')])])
    return {**environ, **fixed, 'PYTHONPATH': path, **variables}


def torchrun(ranks: int) -> list[str]:
    """The command of a launcher on one node, to be followed by a program and its arguments."""
    return [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks)]


def end_rank() -> NoReturn:
    """End this process, a rank that has done well, without its threads.

    gloo's, that is: torch 2.7 may wait for them for ever, and later versions abort now and then because they still run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Program:
    """A running program with all its descendants; those that are left at the end of the ``with`` block are killed.

    Args:
        command: the program and its arguments.
        cwd: where it runs.
        environ: its environment, by default the clean one.
        talks: whether its standard input and output are pipes, of text, in place of nothing and a file.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        talks: bool = False,
    ) -> None:
        self.command = command
        # Launchers put their ranks into sessions of their own: only what they inherit tells whose they are.
        self._mark = uuid.uuid4().hex
        environ = {**(clean_environment() if environ is None else environ), _MARK: self._mark}
        # Files, because a pipe that is full, or that an orphan holds open, would be one more way to hang.
        self._files = contextlib.ExitStack()
        self._output = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - it is one
        self._errors = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else self._output,
            stderr=self._errors,
            start_new_session=True,
            text=talks,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill those that are left, and wait for them."""
        self._kill()
        self._files.close()
        for pipe in self.process.stdin, self.process.stdout:
            if pipe:
                pipe.close()

    def wait(self, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """Its exit status and what it printed.

        Raises:
            AssertionError: it did not end in time. The message says what each of its processes was doing.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            for pid in self._processes():
                _send(pid, signal.SIGABRT)
                patience = time.monotonic() + 5
                while is_alive(pid) and time.monotonic() < patience:  # one after the other, for the reader
                    time.sleep(0.01)
            self._kill()
            raise AssertionError(
                f'{" ".join(self.command)}\nstill ran after {timeout:.0f} s; its processes were doing this:\n'
                f'{self.errors()[-20000:]}'
            ) from None
        return subprocess.CompletedProcess(self.command, code, self.output(), self.errors())

    def output(self) -> str:
        """Their standard output."""
        return _text(self._output)

    def errors(self) -> str:
        """Their standard error."""
        return _text(self._errors)

    def _kill(self) -> None:
        deadline = time.monotonic() + 20
        # Who is ending gives back its memory, the mark with it, before its files and what they lock. Who is in the
        # middle of its exec has no mark yet.
        left = {self.process.pid} if self.process.poll() is None else set[int]()
        while left := {*filter(is_alive, left), *self._processes()}:
            for pid in left:
                _send(pid, signal.SIGKILL)
            self.process.poll()
            assert time.monotonic() < deadline, f'processes {left} outlived SIGKILL by 20 seconds'
            time.sleep(0.01)
        self.process.wait()

    def _processes(self) -> Iterator[int]:
        """The living ones; where there is no /proc, only the first, if it lives."""
        if not Path('/proc/self/environ').exists():
            if self.process.poll() is None:
                yield self.process.pid
            return
        mark = f'{_MARK}={self._mark}'.encode()
        for folder in Path('/proc').glob('[0-9]*'):
            try:
                is_ours = mark in (folder / 'environ').read_bytes().split(b'\0')  # empty for one that ends
            except (OSError, ValueError):
                continue
            if is_ours:
                yield int(folder.name)


def run_program(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which must come within `timeout` seconds."""
    with Program(command, cwd=cwd, environ=environ) as program:
        return program.wait(timeout)


def run_well(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """Run a program, whose exit status must be 0."""
    done = run_program(command, cwd=cwd, environ=environ, timeout=timeout)
    assert done.returncode == 0, (
        f'{" ".join(command)}\nended with exit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}'
    )
    return done


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _text(file: IO[bytes]) -> str:
    # The program writes where this process' seek would put it.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors='replace')
