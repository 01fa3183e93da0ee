"""Resuming with each pair, and slowly with all, of strategies, checkpoints, options of the trainer, and ranks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import support_file
from tests.support.suite.covering import covering, pairs
from tests.support.trainers.lightning_matrix import (
    BATCHES,
    DIMENSIONS,
    KINDS,
    OPTIONS,
    STRATEGIES,
    WORLDS,
    Scenario,
    chain_of,
    scenarios,
)
from tests.support.trainers.lightning_oracle import judge, records
from tests.support.trainers.lightning_run import EPOCHS, Run, newest
from tests.support.trainers.ranks import run_chains
from tests.support.trainers.resume_oracle import Verdict


def processes(scenario: Scenario) -> int:
    """Of both runs, workers included."""
    worlds = (WORLDS[scenario.before], WORLDS[scenario.after])
    return sum(ranks * (1 + workers) for ranks, workers in worlds)


def own(scenario: Scenario) -> set[Hashable]:
    """Each value, and the pairs that Lightning's own code brings together; of the ranks, whether they become more.

    Kinds of checkpoints meet options in `test_lightning_resume`, in one process, and options meet all else in
    `test_a_run_resumed_with_any_two_values_continues_exactly`.
    """
    before, after = WORLDS[scenario.before][0], WORLDS[scenario.after][0]
    change = 'more' if after > before else 'fewer' if after < before else 'as many'
    return {
        *enumerate(dataclasses.astuple(scenario)),
        (scenario.strategy, scenario.kind),
        *((value, change) for value in (scenario.strategy, scenario.kind)),
    }


@functools.cache
def few() -> list[Scenario]:
    return list(covering(scenarios(), own, processes))


@functools.cache
def chosen() -> list[Scenario]:
    return list(covering(scenarios(), lambda case: pairs(dataclasses.astuple(case)), processes))


def verdict_of(scenario: Scenario, first: Run, second: Run) -> tuple[Verdict, list[str]]:
    """The trained samples, and other differences from a run without interruption."""
    option = OPTIONS[scenario.option]
    limits = {
        'limit': option.batches if option.batches != BATCHES else None,
        'fixed_epoch': 0 if 'overfit_batches' in option.trainer else None,
    }
    checkpoint = newest(first.checkpoints)
    verdict = judge([(first, checkpoint), (second, None)], **limits)
    wrong: list[str] = []
    if (verdict.epochs, verdict.position) != (EPOCHS, 0):
        wrong.append('training did not end where it should')
    begun = judge([(first, checkpoint)], **limits).epochs
    hooks = records(second, 'hook')[0]
    ends = [record['epoch'] for record in hooks if record['hook'] == 'epoch_end']
    if ends != list(range(begun, EPOCHS)):
        wrong.append(f'epochs {ends} ended')
    if second.validate and 'val_check_interval' not in option.trainer:
        # Lightning checks its sanity again, in some batches, where an epoch begins.
        validated = [
            record['epoch']
            for record in records(second, 'validation')[0]
            if record['validation'] == 0 and not record['is_sanity_check']
        ]
        if validated != list(range(begun, EPOCHS)):
            wrong.append(f'epochs {validated} were validated')
    estimates = {record['steps'] for record in hooks if record['hook'] == 'estimated'}
    if estimates - {EPOCHS * option.steps}:
        wrong.append(f'estimated {estimates} steps')
    logged = hooks[-1]['logged']
    if option.accumulate == 1 and not hooks[-1]['step'] == logged == verdict.trained:
        wrong.append(f'step {hooks[-1]["step"]} was logged as {logged} after {verdict.trained} batches')
    return verdict, wrong


def check(
    cases: Sequence[Scenario],
    mixes: dict[str, dict[str, str]],
    folder: Path,
    table: list[str],
    *,
    timeout: float,
    server: str | None = None,
    change: Callable[[Run], Run] = lambda run: run,
) -> None:
    chains = [
        [change(run) for run in chain_of(case, f's{number}', str(folder), mixes['even'])]
        for number, case in enumerate(cases)
    ]
    failures: dict[str, str] = {}
    program = support_file('trainers/lightning_chains.py')
    fields = [[dataclasses.asdict(run) for run in runs] for runs in chains]
    outcomes = run_chains(program, fields, folder, timeout, server=server)
    for case, (first, second), error in zip(cases, chains, outcomes, strict=True):
        if error is None:
            verdict, wrong = verdict_of(case, first, second)
            text = '; '.join([str(verdict), *wrong])
            is_right = verdict.is_exact and not wrong
        else:
            text, is_right = error, False
        table.append(f'{case} {text.splitlines()[0]}')
        if not is_right:
            failures[str(case)] = text
    assert not failures, f'{len(failures)} of {len(cases)} failed:\n' + '\n'.join(
        f'{case}: {text}' for case, text in failures.items()
    )


@pytest.fixture(scope='module')
def table() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    head = f'{"strategy":<14} {"checkpoint":<13} {"option":<35} ranks x workers'
    print('\n'.join(['', head, *sorted(lines)]))


def test_any_two_values_meet_that_can():
    possible = set().union(*(pairs(dataclasses.astuple(case)) for case in scenarios()))
    assert set().union(*(pairs(dataclasses.astuple(case)) for case in chosen())) == possible
    everything = {
        pair for (i, one), (j, other) in itertools.combinations(enumerate(DIMENSIONS), 2)
        for pair in (((i, a), (j, b)) for a in one for b in other)
    }  # fmt: skip
    single, multiple = {'1x0'}, [world for world in WORLDS if world != '1x0']
    impossible = (
        {((0, 'single'), (dimension, world)) for dimension in (3, 4) for world in multiple}
        | {((0, strategy), (2, 'BatchSizeFinder')) for strategy in STRATEGIES if strategy != 'single'}
        | {((2, 'BatchSizeFinder'), (dimension, world)) for dimension in (3, 4) for world in multiple}
        | {((0, strategy), (2, 'two nodes')) for strategy in ('single', 'ddp_spawn')}
        | {((2, 'two nodes'), (4, world)) for world in single}
    )
    assert everything - possible == impossible


@pytest.mark.timeout(600)
def test_a_resumed_run_continues_exactly(mixes, tmp_path, table):
    check(few(), mixes, tmp_path, table, timeout=580, server='lightning')


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_resumed_with_any_two_values_continues_exactly(mixes, tmp_path, table):
    check([case for case in chosen() if case not in set(few())], mixes, tmp_path, table, timeout=1100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('strategy', STRATEGIES)
def test_any_resumed_run_continues_exactly(strategy, kind, mixes, tmp_path, table):
    cases = [case for case in scenarios() if (case.strategy, case.kind) == (strategy, kind)]
    check([case for case in cases if case not in set(chosen())], mixes, tmp_path, table, timeout=3500)


@pytest.mark.slow
def test_ranks_may_begin_as_fresh_interpreters(mixes, tmp_path, table):
    """ddp_spawn itself."""

    def spawned(run: Run) -> Run:
        return dataclasses.replace(run, strategy='ddp_spawn') if run.devices > 1 else run

    cases = [
        Scenario('ddp_spawn', 'step', 'none', '1x0', '2x0'),
        Scenario('ddp_spawn', 'last step', 'none', '2x0', '2x2'),
        Scenario('ddp_spawn', 'epoch end', 'max_steps', '2x0', '1x0'),
    ]
    check(cases, mixes, tmp_path, table, timeout=280, change=spawned)
