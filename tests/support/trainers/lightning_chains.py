"""Chains of Lightning's training runs, as `chains` has them.

As a program: `python lightning_chains.py CHAINS.json OUTCOMES.jsonl`, where the first file holds a list of lists of the
fields of `Run`s. Ranks are forked with the environment that torchrun gives them, or by Lightning's own launcher from a
server that has imported what they need too.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.support.servers.process import free_port
from tests.support.trainers.chains import HangError, fork_ranks, serve
from tests.support.trainers.lightning_run import Crash, Run, train

BY_LIGHTNING = ('ddp_forkserver', 'ddp_spawn')
SECONDS = 40
"""That a run may take, which is some 30 times what it does."""


def do(fields: dict[str, Any]) -> None:
    """Do a run."""
    run = Run(**fields)
    if run.strategy in BY_LIGHTNING:
        _by_lightning(run)
        return
    fork_ranks(
        functools.partial(_work, run),
        ranks=run.devices,
        nodes=run.nodes,
        log=lambda rank: Path(run.out, f'{run.name}.rank{rank}.log'),
        launcher={'TORCHELASTIC_RUN_ID': run.name} if run.devices > 1 else None,
        node_variable='GROUP_RANK',
        seconds=SECONDS,
    )


def _work(run: Run) -> None:
    try:
        train(run)
    except (Crash, SystemExit):  # which is how Lightning ends at a SIGTERM
        if not run.is_to_die:
            raise


def _by_lightning(run: Run) -> None:
    """Have a run launch its ranks."""

    def end(*_: Any) -> None:
        for number in signal.SIGABRT, signal.SIGKILL:
            for rank in multiprocessing.active_children():
                if rank.pid:
                    os.kill(rank.pid, number)
            time.sleep(1)
        raise HangError(f'did not end within {SECONDS} s')

    if run.strategy == 'ddp_forkserver':  # the imports of the server are no part of the run
        first = multiprocessing.get_context('forkserver').Process()
        first.start()
        first.join()
    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    environ = dict(os.environ)
    os.environ['STANDALONE_PORT'] = str(free_port())  # Lightning's own choice may be taken before a rank listens
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
    root = str(Path(__file__).parents[3])
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [root, os.environ.get('PYTHONPATH')]))
    multiprocessing.set_forkserver_preload(['tests.support.trainers.lightning_run'])
    serve(do, lambda fields: sorted(Path(fields['out']).glob(f'{fields["name"]}.rank*.log')))


if __name__ == '__main__':
    main()
