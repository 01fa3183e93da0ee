"""Programs on several ranks, for tests of what the ranks do and not of their launcher.

Importing torch and a trainer takes longer than such a program, and each rank does it. Here ranks are forked, with the
environment that the trainer's launcher gives them, from a server that has imported the trainer. A process of tests has
one server for each trainer, which ends with it.

As a program, the server: `python ranks.py TRAINER`, with a `Job` as JSON in each line of its standard input.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chains import fork_ranks
from processes import Program

_IMPORTS = {
    'torch': ['torch.distributed', 'torchmetrics', 'headrace.metrics'],
    'accelerate': ['accelerate', 'headrace'],
    'lightning': ['lightning.pytorch', 'headrace.lightning', 'headrace.metrics', 'headrace.mixing'],
    'composer': [
        'composer.algorithms',
        'composer_machine',
        'transformers',
        'headrace.composer',
        'headrace.metrics',
        'headrace.mixing',
    ],
}
"""What a server imports, by its trainer."""

_NODE_VARIABLES = {
    'torch': 'GROUP_RANK',
    'accelerate': 'GROUP_RANK',
    'lightning': 'GROUP_RANK',
    'composer': 'NODE_RANK',
}


@dataclasses.dataclass(frozen=True)
class Job:
    """A program to run on ranks of one node."""

    program: str
    arguments: Sequence[str]
    ranks: int
    folder: str
    seconds: float
    """That it may take."""


# -- in a test --------------------------------------------------------------------------------------------------------


def run_ranks(trainer: str, ranks: int, program: Path, *arguments: object, folder: Path, seconds: float = 120) -> None:
    """Run a program on ranks, which must all end well.

    Args:
        trainer: whose launcher's environment they have: `composer`, or else that of torchrun.
        ranks: how many.
        program: what each runs as its main program.
        arguments: of its command line.
        folder: where it runs.
        seconds: that it may take.

    Raises:
        AssertionError: a rank failed, or did not end. The message has what the ranks wrote.
    """
    job = Job(str(program), list(map(str, arguments)), ranks, str(folder), seconds)
    server = _server(trainer)
    assert server.process.stdin
    assert server.process.stdout
    try:
        print(json.dumps(dataclasses.asdict(job)), file=server.process.stdin, flush=True)
        answer = server.process.stdout.readline()
        assert answer, f'The server of ranks has ended:\n{server.errors()[-8000:]}'
    except BaseException:  # a test's time-out too: the next test must not take this one's answer for its own
        _server.cache_clear()
        server.end()
        raise
    error = json.loads(answer)
    assert error is None, f'{program.name} on {ranks} ranks: {error}'


@functools.cache
def _server(trainer: str) -> Program:
    return Program([sys.executable, __file__, trainer], talks=True)


# -- in a server ------------------------------------------------------------------------------------------------------


def _run(job: Job) -> None:
    os.chdir(job.folder)
    sys.argv = [job.program, *job.arguments]
    sys.path[0] = str(Path(job.program).parent)
    runpy.run_path(job.program, run_name='__main__')


def _serve(trainer: str) -> None:
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # for whatever else is printed here
    import torch

    for name in _IMPORTS[trainer]:
        importlib.import_module(name)
    torch.set_num_threads(1)
    # What is imported is garbage to no rank: else each would copy it in looking.
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as logs:
        for number, line in enumerate(sys.stdin):
            job = Job(**json.loads(line))
            files = [Path(logs, f'{number}.rank{rank}') for rank in range(job.ranks)]
            error = None
            try:
                fork_ranks(
                    functools.partial(_run, job),
                    ranks=job.ranks,
                    nodes=1,
                    log=files.__getitem__,
                    launcher={} if trainer == 'composer' else {'TORCHELASTIC_RUN_ID': str(number)},
                    node_variable=_NODE_VARIABLES[trainer],
                    seconds=job.seconds,
                )
            except Exception as failure:
                said = [file.read_text(errors='replace')[-20000:] for file in files if file.exists()]
                error = '\n'.join([f'{type(failure).__name__}: {failure}', *said])
            print(json.dumps(error), file=answers, flush=True)


if __name__ == '__main__':
    _serve(sys.argv[1])
