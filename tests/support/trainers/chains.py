"""Chains of training runs, each run in ranks of its own, from few programs that have imported all they need.

Importing torch and a trainer takes longer than a small run. Ranks are therefore forked from such a program, with the
environment that a launcher gives them. A test gives its chains to `ranks.run_chains`, which starts the programs; a
program hands its command line to `serve`; what does a run of several ranks there calls `fork_ranks`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from tests.support.programs.forking import prepare_forks
from tests.support.servers.process import free_port


class HangError(Exception):
    """A run did not end."""


# -- in a program -----------------------------------------------------------------------------------------------------


def serve(run: Callable[[dict[str, Any]], None], logs: Callable[[dict[str, Any]], Sequence[Path]]) -> None:
    """Run the chains of the file that the command line names first, and write to the second what went wrong in each.

    Args:
        run: does a run, of which it is given the fields. Where it fails, the chain ends.
        logs: names the files that say why it failed.
    """
    prepare_forks()
    given, outcomes = map(Path, sys.argv[1:])
    with outcomes.open('a', buffering=1) as file:
        for chain in json.loads(given.read_text()):
            begun, wrong = time.monotonic(), None
            for fields in chain:
                try:
                    run(fields)
                except Exception as error:
                    said = [path.read_text(errors='replace')[-3000:] for path in logs(fields)]
                    wrong = f'{fields["name"]}: {type(error).__name__}: {error}\n' + '\n'.join(said)
                    break
            file.write(json.dumps({'runs': chain, 'error': wrong, 'seconds': time.monotonic() - begun}) + '\n')


def fork_ranks(
    work: Callable[[], None],
    *,
    ranks: int,
    nodes: int,
    log: Callable[[int], Path],
    launcher: Mapping[str, Any] | None,
    node_variable: str = '',
    seconds: float,
    may_die: bool = False,
) -> None:
    """Do `work` in ranks that are forked from here.

    Args:
        work: what each rank does. It finds its rank in the environment.
        ranks: on all nodes.
        nodes: that the ranks are told they are on.
        log: where a rank's output goes.
        launcher: environment variables that the launcher sets, beside those of the rank; None for no launcher.
        node_variable: the name by which the launcher tells a rank its node.
        seconds: that the run may take.
        may_die: whether a rank may end in any way.

    Raises:
        HangError: a rank did not end; it has written where it was, and was killed.
        RuntimeError: a rank failed.
    """
    port, local_size = free_port(), ranks // nodes
    context = multiprocessing.get_context('fork')
    ended = context.Barrier(ranks)

    def variables(rank: int) -> dict[str, Any]:
        return (
            {}
            if launcher is None
            else {
                **launcher,
                'RANK': rank,
                'WORLD_SIZE': ranks,
                'LOCAL_RANK': rank % local_size,
                'LOCAL_WORLD_SIZE': local_size,
                node_variable: rank // local_size,
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': port,
            }
        )

    started = [context.Process(target=_rank, args=(work, log(rank), variables(rank), ended)) for rank in range(ranks)]
    for rank in started:
        rank.start()
        assert rank.pid
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            os.setpgid(rank.pid, rank.pid)
    end = time.monotonic() + seconds
    for rank in started:
        rank.join(max(end - time.monotonic(), 0))
    hanging = [number for number, rank in enumerate(started) if rank.is_alive()]
    # Their stacks first. Each leads a process group, which its workers are in.
    for number in signal.SIGABRT, signal.SIGKILL:
        for rank in started if hanging else ():
            if rank.is_alive() and rank.pid:
                os.killpg(rank.pid, number)
                rank.join(2)
    if hanging:
        raise HangError(f'ranks {hanging} did not end within {seconds} s')
    for rank in started:
        assert rank.pid
        _end_group(rank.pid)
    failed = {number: rank.exitcode for number, rank in enumerate(started) if rank.exitcode}
    if failed and not may_die:
        raise RuntimeError(f'ranks failed: {failed}')


def _rank(work: Callable[[], None], log: Path, variables: Mapping[str, Any], ended: Barrier) -> None:
    os.setpgid(0, 0)  # as its parent does, whoever is first
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    os.environ.update({name: str(value) for name, value in variables.items()})
    work()
    # A rank that ends closes connections that another rank may still read.
    with contextlib.suppress(threading.BrokenBarrierError):
        ended.wait(5)


def _end_group(group: int) -> None:
    """End what a rank that has ended left behind, if it was killed its workers, and wait for it.

    Its resource tracker takes no SIGTERM, and ends by itself when it has removed the rank's shared memory.
    """
    end = time.monotonic() + 10
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(group, signal.SIGTERM)
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)
