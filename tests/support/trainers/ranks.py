"""Programs on several ranks, for tests of what the ranks do and not of their launcher.

Importing torch and a trainer takes longer than such a program, and each rank does it. Here ranks are forked, with the
environment that the trainer's launcher gives them, from a server that has imported the trainer. A process of tests has
one server for each trainer, which ends with it.

As a program, the server: `python ranks.py TRAINER`, with a `Job` as JSON in each line of its standard input.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.programs.forking import prepare_forks
from tests.support.programs.processes import Program
from tests.support.servers.process import free_port
from tests.support.trainers.chains import fork_ranks

_IMPORTS = {
    'torch': ['torch.distributed'],
    'accelerate': ['accelerate', 'headrace'],
    'transformers': ['headrace.transformers'],
    'lightning': ['lightning.pytorch', 'headrace.lightning', 'headrace.metrics', 'headrace.mixing'],
    'composer': [
        'composer.algorithms',
        'tests.support.trainers.composer_machine',
        'transformers',
        'headrace.composer',
        'headrace.metrics',
        'headrace.mixing',
    ],
}
"""What a server imports, by its trainer."""

PROGRAMS = 2
"""That `run_chains` has at a time; a run of several ranks waits more than it computes."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A program to run on ranks of one node."""

    program: str
    arguments: Sequence[str]
    ranks: int
    folder: str
    seconds: float
    """That it may take."""
    launched: bool = True
    """Whether ranks find the environment of a launcher."""


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
    _do(trainer, Job(str(program), list(map(str, arguments)), ranks, str(folder), seconds))


def run_alone(trainer: str, program: Path, *arguments: object, folder: Path, seconds: float = 120) -> None:
    """The same as one process, which no launcher has started, and which may start ranks itself."""
    _do(trainer, Job(str(program), list(map(str, arguments)), 1, str(folder), seconds, launched=False))


def run_chains(
    program: Path,
    chains: Sequence[Sequence[Mapping[str, Any]]],
    folder: Path,
    timeout: float,
    *,
    server: str | None = None,
) -> list[str | None]:
    """Have programs run each chain, given as the fields of its runs; returns what went wrong in it, if anything did.

    Args:
        program: see `chains.py`.
        chains: to run.
        folder: where programs run, and write.
        timeout: seconds that they may take.
        server: the trainer of whose server one program is forked for few chains, which take less than its imports.
            None: `PROGRAMS` programs of their own.
    """
    programs = 1 if server else PROGRAMS
    given = [folder / f'chains{number}.json' for number in range(programs)]
    outcomes: list[str | None] = ['not run'] * len(chains)
    for number, path in enumerate(given):
        path.write_text(json.dumps(chains[number::programs]))
    if server:
        arguments = [str(given[0]), str(given[0].with_suffix('.out'))]
        _do(server, Job(str(program), arguments, 1, str(folder), timeout, launched=False))
    else:
        with ExitStack() as stack:
            commands = [[sys.executable, str(program), str(path), str(path.with_suffix('.out'))] for path in given]
            for running in [stack.enter_context(Program(command, cwd=folder)) for command in commands]:
                done = running.wait(timeout)
                assert done.returncode == 0, done.stderr[-8000:]
    for number, path in enumerate(given):
        lines = path.with_suffix('.out').read_text().splitlines()
        outcomes[number::programs] = [json.loads(line)['error'] for line in lines]
    return outcomes


def _do(trainer: str, job: Job) -> None:
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
    assert error is None, f'{Path(job.program).name} on {job.ranks} ranks: {error}'


@functools.cache
def _server(trainer: str) -> Program:
    return Program([sys.executable, __file__, trainer], talks=True)


# -- in a server ------------------------------------------------------------------------------------------------------


def _run(job: Job) -> None:
    if not job.launched:
        os.environ['STANDALONE_PORT'] = str(free_port())  # Lightning's own choice may be taken before a rank listens
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
    prepare_forks()
    with tempfile.TemporaryDirectory() as logs:
        for number, line in enumerate(sys.stdin):
            job = Job(**json.loads(line))
            files = [Path(logs, f'{number}.rank{rank}') for rank in range(job.ranks)]
            launcher = {} if trainer == 'composer' else {'TORCHELASTIC_RUN_ID': str(number)}
            error = None
            try:
                fork_ranks(
                    functools.partial(_run, job),
                    ranks=job.ranks,
                    nodes=1,
                    log=files.__getitem__,
                    launcher=launcher if job.launched else None,
                    node_variable='NODE_RANK' if trainer == 'composer' else 'GROUP_RANK',
                    seconds=job.seconds,
                )
            except Exception as failure:
                said = [file.read_text(errors='replace')[-20000:] for file in files if file.exists()]
                error = '\n'.join([f'{type(failure).__name__}: {failure}', *said])
            print(json.dumps(error), file=answers, flush=True)


if __name__ == '__main__':
    _serve(sys.argv[1])
