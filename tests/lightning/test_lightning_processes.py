"""Resuming across numbers of ranks and workers, with real processes: torchrun and Lightning's own launchers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import support_file
from tests.support.programs.processes import Program, run_program, run_well, torchrun
from tests.support.servers.process import free_port
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import EPOCHS, Crash, Run, train
from tests.support.trainers.ranks import run_alone, run_ranks

pytestmark = [pytest.mark.filterwarnings('ignore')]

GLOBAL_BATCH = 8
WORLDS = {'1x0': (1, 0), '1x2': (1, 2), '2x0': (2, 0), '2x1': (2, 1)}
KINDS = {
    'step': 'step4',
    'last-batch': 'step12',
    'epoch-end': 'epoch0',
    'validation-end': 'val12',
    'exception': 'exception',
}


@dataclasses.dataclass(frozen=True)
class Case:
    before: str
    after: str
    kind: str
    per_rank: bool
    """Keep the batch size of a rank, so that the global one changes, or the global one."""

    def __str__(self) -> str:
        kept = 'rank' if self.per_rank else 'global'
        return f'{self.before} -> {self.after} {self.kind} ({kept} batch kept)'


ALL = [
    Case(before, after, kind, per_rank)
    for before, after, kind in itertools.product(WORLDS, WORLDS, KINDS)
    for per_rank in (False, True)
    if not per_rank or WORLDS[before][0] != WORLDS[after][0]
]
# Each pair of worlds, and each kind with each world on either side, at least once.
CHOSEN = {
    Case(before, after, list(KINDS)[(i + j) % 5], per_rank)
    for (i, before), (j, after) in itertools.product(enumerate(WORLDS), enumerate(WORLDS))
    for per_rank in (False, WORLDS[before][0] != WORLDS[after][0])
} | {Case(a, b, k, False) for a, b, k in (('2x0', '1x0', 'exception'), ('1x0', '2x0', 'exception'))}


def launch(runs: Sequence[Run], folder: Path, launcher: Sequence[str] = (sys.executable,)) -> int:
    """Run the rank program over some runs; its exit status."""
    return run_program(rank_program(runs, folder, launcher), cwd=folder).returncode


def launch_well(runs: Sequence[Run], folder: Path, launcher: Sequence[str] = (sys.executable,)) -> None:
    run_well(rank_program(runs, folder, launcher), cwd=folder)


def launch_on_nodes(runs: Sequence[Run], folder: Path, *, nodes: int, ranks: int) -> None:
    """Run the rank program on nodes of equally many ranks: one agent of torchrun for each, as on several machines."""
    agent = [sys.executable, '-m', 'torch.distributed.run', '--nnodes', str(nodes), '--nproc-per-node', str(ranks)]
    agent += ['--master-addr', '127.0.0.1', '--master-port', str(free_port())]
    with contextlib.ExitStack() as running:
        agents = [
            running.enter_context(Program(rank_program(runs, folder, [*agent, '--node-rank', str(node)]), cwd=folder))
            for node in range(nodes)
        ]
        for agent_of_node in agents:
            done = agent_of_node.wait()
            assert done.returncode == 0, f'{done.stdout[-4000:]}\n{done.stderr[-8000:]}'


def rank_program(runs: Sequence[Run], folder: Path, launcher: Sequence[str]) -> list[str]:
    path = folder / f'{runs[0].name}.runs.json'
    path.write_text(json.dumps([dataclasses.asdict(run) for run in runs]))
    return [*launcher, str(support_file('trainers/lightning_run.py')), str(path)]


def run_forked(runs: Sequence[Run], folder: Path, *, ranks: int) -> None:
    """Run the rank program on ranks that no launcher has started."""
    program, path = rank_program(runs, folder, [])
    run_ranks('lightning', ranks, Path(program), path, folder=folder)


def run_all(runs: Sequence[Run], folder: Path) -> None:
    """Single ranks here, pairs of ranks as two that were forked: one run after the other."""
    for run in runs:
        if run.devices == 1:
            try:
                train(run)
            except Crash:
                assert run.crash_at is not None
    pairs = [run for run in runs if run.devices == 2]
    if pairs:
        run_forked(pairs, folder, ranks=2)


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('processes')


@pytest.fixture(scope='module')
def first(mixes: dict[str, dict[str, str]], folder: Path) -> Callable[[str], Run]:
    """A run in a world that was interrupted in its second epoch, and left a checkpoint of every kind."""
    made = {
        name: Run(
            name=f'first-{name}',
            out=str(folder),
            streams=mixes['even'],
            devices=ranks,
            workers=workers,
            batch_size=GLOBAL_BATCH // ranks,
            strategy='ddp' if ranks > 1 else 'auto',
            every_steps=4,
            every_epoch=True,
            after_validation=True,
            on_exception=True,
            validate=True,
            crash_at=17,
        )
        for name, (ranks, workers) in WORLDS.items()
    }
    run_all(list(made.values()), folder)
    return made.__getitem__


def second_run(case: Case, before: Run) -> Run:
    ranks, workers = WORLDS[case.after]
    fields = {
        'name': str(case).replace(' ', '_').replace('>', ''),
        'devices': ranks,
        'workers': workers,
        'batch_size': before.batch_size if case.per_rank else GLOBAL_BATCH // ranks,
        'strategy': 'ddp' if ranks > 1 else 'auto',
        'checkpoint': str(before.checkpoints / f'{KINDS[case.kind]}.ckpt'),
        'crash_at': None,
        'every_steps': None,
        'every_epoch': False,
        'after_validation': False,
        'on_exception': False,
    }
    return Run(**{**dataclasses.asdict(before), **fields})


def check(cases: Sequence[Case], first: Callable[[str], Run], folder: Path, table: list[str]) -> None:
    seconds = {case: second_run(case, first(case.before)) for case in cases}
    run_all(list(seconds.values()), folder)
    wrong: dict[str, str] = {}
    for case, second in seconds.items():
        assert second.checkpoint is not None
        verdict = judge([(first(case.before), Path(second.checkpoint)), (second, None)])
        table.append(f'{case!s:<55} {verdict}')
        ends = [record['epoch'] for record in records(second, 'hook')[0] if record['hook'] == 'epoch_end']
        validated = [record['epoch'] for record in records(second, 'validation')[0] if record['validation'] == 0]
        # The epoch that a checkpoint ends is not ended again; every other one ends, and is validated, once.
        begun = 1 if case.kind != 'step' else 0
        whole = list(range(begun, EPOCHS))
        if (
            not verdict.is_exact
            or (verdict.epochs, verdict.position) != (EPOCHS, 0)
            or ends != whole
            or validated != whole
        ):
            wrong[str(case)] = f'{verdict}, ended {ends}, validated {validated}'
    assert not wrong


@pytest.fixture(scope='module')
def table() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    print('\n'.join(['', 'Lightning, ranks x workers before -> after', *lines]))


@pytest.mark.slow
def test_ranks_and_workers_may_change_at_a_resume(first, folder, table):
    check([case for case in ALL if case in CHOSEN], first, folder, table)


@pytest.mark.slow
@pytest.mark.parametrize('before', WORLDS)
def test_ranks_and_workers_may_change_at_any_resume(before, first, folder, table):
    check([case for case in ALL if case.before == before and case not in CHOSEN], first, folder, table)


def pair(mixes: dict[str, dict[str, str]], folder: Path, name: str, **fields: Any) -> Run:
    common = {'out': str(folder), 'streams': mixes['even'], 'devices': 2, 'batch_size': 4, 'strategy': 'ddp'}
    return Run(**{'name': name, **common, **fields})


def test_lightnings_launcher_needs_no_environment_and_survives_kill(mixes, tmp_path, table):
    yaml = tmp_path / 'mix.yaml'
    streams = ''.join(f'    {name}: {{local: {folder}}}\n' for name, folder in mixes['even'].items())
    yaml.write_text(
        f'global_batch_size: 8\ntrain:\n  shuffle: true\n  loader: {{num_workers: 1}}\n  streams:\n{streams}'
    )
    first = pair(mixes, tmp_path, 'first', every_steps=5, kill_at=13, yaml=str(yaml))
    assert launch([first], tmp_path) == -signal.SIGKILL
    checkpoint = first.checkpoints / 'step10.ckpt'
    no_workers = {'overrides': ['train.loader.num_workers=0']}
    second = pair(mixes, tmp_path, 'second', checkpoint=str(checkpoint), yaml=str(yaml), module=no_workers)
    run_alone('lightning', *map(Path, rank_program([second], tmp_path, [])), folder=tmp_path)
    verdict = judge([(first, checkpoint), (second, None)])
    table.append(f'{"2x1 -> 2x0 SIGKILL, strategy=ddp":<55} {verdict}')
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS


@pytest.mark.slow
def test_a_killed_rank_continues_as_two(mixes, tmp_path, table):
    first = Run(name='first', out=str(tmp_path), streams=mixes['even'], every_steps=5, kill_at=13, workers=2)
    assert launch([first], tmp_path) == -signal.SIGKILL
    checkpoint = first.checkpoints / 'step5.ckpt'
    second = pair(mixes, tmp_path, 'second', checkpoint=str(checkpoint), strategy='ddp_spawn')
    launch_well([second], tmp_path)
    verdict = judge([(first, checkpoint), (second, None)])
    table.append(f'{"1x2 -> 2x0 SIGKILL, strategy=ddp_spawn":<55} {verdict}')
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS


@pytest.mark.slow
def test_ranks_share_a_remainder_equally(mixes, tmp_path, table):
    """101 samples in batches of 8: the last batch has 5, and one of them twice where two ranks share it."""
    common = {'streams': mixes['uneven'], 'on_exception': True}
    first = pair(mixes, tmp_path, 'first', crash_at=17, **common)
    checkpoint = first.checkpoints / 'exception.ckpt'
    second = pair(mixes, tmp_path, 'second', checkpoint=str(checkpoint), **common)
    launch_well([first, second], tmp_path, torchrun(2))
    verdict = judge([(first, checkpoint), (second, None)])
    table.append(f'{"2x0 -> 2x0 exception, 101 samples":<55} {verdict}')
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS
    assert {len(record['ids']) for rank in records(second) for record in rank} == {4, 3}


@pytest.mark.slow
def test_nodes_may_change_at_a_resume(mixes, tmp_path, table):
    first = pair(mixes, tmp_path, 'first', every_steps=5, crash_at=17, nodes=2)
    launch_on_nodes([first], tmp_path, nodes=2, ranks=1)
    checkpoint = first.checkpoints / 'step15.ckpt'
    second = Run(name='second', out=str(tmp_path), streams=mixes['even'], checkpoint=str(checkpoint))
    train(second)
    verdict = judge([(first, checkpoint), (second, None)])
    table.append(f'{"2 nodes of 1x0 -> 1x0 step":<55} {verdict}')
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS


@pytest.mark.slow
def test_loaders_passed_by_hand_resume_between_batches(mixes, tmp_path, table):
    """Lightning's own state of a loader: right while the global batch size is the same, and nothing fails."""
    first = pair(mixes, tmp_path, 'first', every_steps=5, crash_at=13, by_hand=True)
    launch_well([first], tmp_path)
    checkpoint = first.checkpoints / 'step5.ckpt'
    second = Run(name='second', out=str(tmp_path), streams=mixes['even'], checkpoint=str(checkpoint), by_hand=True)
    train(second)
    verdict = judge([(first, checkpoint), (second, None)])
    table.append(f'{"2x0 -> 1x0 step, loaders passed by hand":<55} {verdict}')
    assert verdict.is_exact


@pytest.mark.slow
def test_tensor_parallel_ranks_share_their_samples(mixes, tmp_path, table):
    parallel = {'strategy': 'tensor_parallel', 'batch_size': 8}
    first = pair(mixes, tmp_path, 'first', every_steps=5, crash_at=7, **parallel)
    checkpoint = first.checkpoints / 'step5.ckpt'
    second = pair(mixes, tmp_path, 'second', checkpoint=str(checkpoint), **parallel)
    launch_well([first, second], tmp_path, torchrun(2))
    verdict = judge([(first, checkpoint), (second, None)])
    table.append(f'{"2x0 -> 2x0 step, tensor parallel":<55} {verdict}')
    assert verdict.is_exact
    assert verdict.epochs == EPOCHS
