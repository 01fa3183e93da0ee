"""Chains of training runs, each run in ranks of its own, from one process that has imported all they need.

As a program: `python lightning_chains.py CHAINS.json OUTCOMES.jsonl`, where the first file holds a list of lists of the
fields of `Run`s. Importing torch and Lightning takes longer than such a run. Ranks are therefore forked from this
process, with the environment that torchrun gives them, or by Lightning's own launcher from a server that has imported
them too. A run that fails ends its chain; one that hangs is killed, after its ranks have written where they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from lightning_run import Crash, Run, train

BY_LIGHTNING = ('ddp_forkserver', 'ddp_spawn')
SECONDS = 40
"""That a run may take, which is some 30 times what it does."""


class HangError(Exception):
    """A run did not end."""


def run_chain(chain: Sequence[Run]) -> str | None:
    """Run one after the other; returns what went wrong, if anything did."""
    for run in chain:
        try:
            (_by_lightning if run.strategy in BY_LIGHTNING else _forked)(run)
        except Exception as error:
            logs = [path.read_text()[-3000:] for path in sorted(Path(run.out).glob(f'{run.name}.rank*.log'))]
            return f'{run.name}: {type(error).__name__}: {error}\n' + '\n'.join(logs)
    return None


def _forked(run: Run) -> None:
    """Have ranks do a run that are forked from here."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context('fork')
    ended = context.Barrier(run.devices)
    ranks = [context.Process(target=_rank, args=(run, rank, port, ended)) for rank in range(run.devices)]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + SECONDS
    for rank in ranks:
        rank.join(max(end - time.monotonic(), 0))
    hanging = [number for number, rank in enumerate(ranks) if rank.is_alive()]
    # Their stacks first. Each leads a process group, which its workers are in.
    for number in signal.SIGABRT, signal.SIGKILL:
        for rank in ranks if hanging else ():
            if rank.is_alive() and rank.pid:
                os.killpg(rank.pid, number)
                rank.join(2)
    if hanging:
        raise HangError(f'ranks {hanging} did not end within {SECONDS} s')
    failed = {number: rank.exitcode for number, rank in enumerate(ranks) if rank.exitcode}
    if failed:
        raise RuntimeError(f'ranks failed: {failed}')


def _rank(run: Run, rank: int, port: int, ended: Barrier) -> None:
    os.setpgid(0, 0)
    log = os.open(f'{run.out}/{run.name}.rank{rank}.log', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    local_size = run.devices // run.nodes
    if run.devices > 1:
        variables = {
            'TORCHELASTIC_RUN_ID': run.name,
            'RANK': rank,
            'WORLD_SIZE': run.devices,
            'LOCAL_RANK': rank % local_size,
            'LOCAL_WORLD_SIZE': local_size,
            'GROUP_RANK': rank // local_size,
            'MASTER_ADDR': '127.0.0.1',
            'MASTER_PORT': port,
        }
        os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        train(run)
    except (Crash, SystemExit):  # which is how Lightning ends at a SIGTERM
        if not run.is_to_die:
            raise
    # Who ends closes connections that another one may still read.
    with contextlib.suppress(threading.BrokenBarrierError):
        ended.wait(5)


def _by_lightning(run: Run) -> None:
    """Have a run launch its ranks."""

    def end(*_: Any) -> None:
        for number in signal.SIGABRT, signal.SIGKILL:
            for rank in multiprocessing.active_children():
                if rank.pid:
                    os.kill(rank.pid, number)
            time.sleep(1)
        raise HangError(f'did not end within {SECONDS} s')

    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    environ = dict(os.environ)
    try:
        train(run)
    except Exception as error:
        # Of whatever kind: a rank's comes as text, and Lightning itself fails at one in a process without a model.
        if not run.is_to_die or 'HangError' in traceback.format_exc():
            raise RuntimeError(traceback.format_exc()[-3000:]) from error
    finally:
        signal.alarm(0)
        os.environ.clear()
        os.environ.update(environ)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
    # The server has its imports from the environment's path, and says nothing where one fails.
    here = str(Path(__file__).parent)
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [here, os.environ.get('PYTHONPATH')]))
    multiprocessing.set_forkserver_preload(['lightning_run'])
    # What is imported is garbage to no rank: else each would copy it in looking.
    gc.collect()
    gc.freeze()
    given, outcomes = map(Path, sys.argv[1:])
    with outcomes.open('a', buffering=1) as file:
        for fields in json.loads(given.read_text()):
            chain = [Run(**run) for run in fields]
            begun = time.monotonic()
            outcome = {'error': run_chain(chain), 'seconds': time.monotonic() - begun}
            file.write(json.dumps({'runs': [dataclasses.asdict(run) for run in chain], **outcome}) + '\n')


if __name__ == '__main__':
    main()
