"""A run trains the same global batches after any interruption and on any ranks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.support import support_file
from tests.support.suite.covering import covering, pairs
from tests.support.trainers.composer_legs import Leg
from tests.support.trainers.composer_matrix import (
    BATCHES,
    DIMENSIONS,
    EPOCHS,
    OPTIONS,
    SAMPLES,
    WORLDS,
    Scenario,
    batches_behind,
    chain_of,
    scenarios,
    without_units,
)
from tests.support.trainers.composer_oracle import judge, random_fault, resumed_at
from tests.support.trainers.composer_runs import launch, lines, make_data, sequence, trained
from tests.support.trainers.ranks import run_chains

pytestmark = [pytest.mark.composer, pytest.mark.timeout(600)]


def processes(scenario: Scenario) -> int:
    """Of both legs, workers included, and what any leg costs."""
    return sum(1 + ranks * (1 + workers) for ranks, _, workers in (WORLDS[scenario.before], WORLDS[scenario.after]))


def own(scenario: Scenario) -> set[Hashable]:
    """Each value, and the pairs that Composer's own code brings together; of the ranks, whether they become more.

    Options meet each other's values in `test_a_training_resumed_with_any_two_values_continues_exactly`.
    """
    before, after = WORLDS[scenario.before][0], WORLDS[scenario.after][0]
    change = 'more' if after > before else 'fewer' if after < before else 'as many'
    return {
        *enumerate(dataclasses.astuple(scenario)),
        (scenario.place, 'interval', scenario.interval),
        *itertools.combinations((scenario.place, scenario.resume, change), 2),
    }


@functools.cache
def few() -> list[Scenario]:
    return list(covering(scenarios(), own, processes))


@functools.cache
def chosen() -> list[Scenario]:
    return list(covering(scenarios(), lambda case: pairs(dataclasses.astuple(case)), processes))


def outcome(scenario: Scenario, first: Leg, second: Leg) -> str:
    """The trained samples, and other differences from a run without interruption."""
    option = OPTIONS[scenario.option]
    wrong: list[str] = []
    behind = batches_behind(scenario)
    epoch, batch_in_epoch = divmod(behind, option.batches)
    if scenario.place == 'last batch':
        epoch, batch_in_epoch = epoch - 1, option.batches
    file = first.latest.with_name(f'ep{epoch}-ba{behind}-rank0.pt')
    if not file.exists():
        return f'there is no {file.name}'
    time = torch.load(file, weights_only=False)['state']['timestamp']['Timestamp']
    if time['batch_in_epoch'] != batch_in_epoch:
        wrong.append(f'{file.name} is at batch {time["batch_in_epoch"]} of its epoch')
    if resumed_at(second) != behind:
        wrong.append(f'it continued from batch {resumed_at(second)}')
    verdict = judge([first, second], limit=option.batches if option.batches != BATCHES else None)
    if scenario.duration == 'ba':
        is_end = verdict.trained == EPOCHS * option.batches
    else:
        is_end = (verdict.epochs, verdict.position) == (EPOCHS, 0)
    if not is_end:
        wrong.append('training did not end where it should')
    if scenario.option != 'plain DataLoader':
        wrong += filter(None, [random_fault(first, second)])
    return '; '.join([str(verdict), *wrong] if wrong or not verdict.is_exact else ['exact'])


def check(cases: Sequence[Scenario], folder: Path, table: list[str], timeout: float, server: str | None = None) -> None:
    data, evaluate = make_data(folder / 'data', SAMPLES), make_data(folder / 'evaluate', 10)
    chains = [chain_of(case, f's{number}', str(folder), data, evaluate) for number, case in enumerate(cases)]
    program = support_file('trainers/composer_chains.py')
    fields = [[dataclasses.asdict(leg) for leg in legs] for legs in chains]
    failures: list[str] = []
    outcomes = run_chains(program, fields, folder, timeout, server=server)
    for case, legs, error in zip(cases, chains, outcomes, strict=True):
        text = error or outcome(case, *legs)
        table.append(f'{case}  {text.splitlines()[0]}')
        if text != 'exact':
            failures.append(f'{case}: {text}')
    assert not failures, f'{len(failures)} of {len(cases)} failed:\n' + '\n'.join(failures)


@pytest.fixture(scope='module')
def table() -> Iterator[list[str]]:
    lines: list[str] = []
    yield lines
    head = f'{"checkpoint":<12} save, max {"resumed after, by":<20} {"option":<30} ranks x workers'
    print('\n'.join(['', head, *sorted(lines)]))


def test_any_two_values_meet_that_can() -> None:
    possible = set().union(*(pairs(dataclasses.astuple(case)) for case in scenarios()))
    assert set().union(*(pairs(dataclasses.astuple(case)) for case in chosen())) == possible
    everything = {
        pair for (i, one), (j, other) in itertools.combinations(enumerate(DIMENSIONS), 2)
        for pair in (((i, a), (j, b)) for a in one for b in other)
    }  # fmt: skip
    impossible = (
        {((0, place), (1, 'ep')) for place in ('mid-epoch', 'last batch')}
        | {((0, place), (1, unit)) for place in ('epoch end', 'end of a fit') for unit in ('ba', 'sp', 'tok')}
        | {((3, 'SIGKILL, autoresume'), (dimension, '2x1, 2 nodes')) for dimension in (5, 6)}
        | {((4, 'replication=2'), (dimension, world)) for dimension in (5, 6) for world in ('1x0', '1x2')}
    )
    assert everything - possible == impossible


def test_a_resumed_training_continues_exactly(tmp_path: Path, table: list[str]) -> None:
    check(few(), tmp_path, table, timeout=580, server='composer')


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_training_resumed_with_any_two_values_continues_exactly(tmp_path: Path, table: list[str]) -> None:
    check([case for case in chosen() if case not in set(few())], tmp_path, table, timeout=1180)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('option', OPTIONS)
def test_any_resumed_training_continues_exactly(tmp_path: Path, table: list[str], option: str) -> None:
    """With each of the other dimensions' values; the units of time take turns."""
    cases = [case for case in without_units() if case.option == option]
    check(cases, tmp_path, table, timeout=3500)


@pytest.mark.slow
def test_launchers_of_composer_and_torch(data: str, uneven: str, tmp_path: Path) -> None:
    """Two ranks of one launcher, then of the other: what is killed continues by itself."""
    options = {'data': data, 'out': str(tmp_path), 'workers': 1, 'folder': 'saved', 'autoresume': True, 'ranks': 2}
    legs = [Leg('first', kill_after=5, **options), Leg('second', **options)]
    padded = Leg('padded', uneven, str(tmp_path), ranks=2, save=True, evaluate=uneven)
    padded_rest = Leg('padded-rest', uneven, str(tmp_path), ranks=2, load=f'{tmp_path}/padded-thirteenth.pt')
    launch(['composer', '-n', '2'], legs[:1], killed=True)
    launch(['torchrun', '--nproc-per-node', '2'], [legs[1], padded, padded_rest])

    # Saved every third batch: what was trained after that is trained again, as the model forgot it.
    assert [resumed_at(leg) for leg in legs] == [0, 3]
    verdict = judge(legs)
    assert verdict.is_exact, verdict
    assert (verdict.epochs, verdict.position) == (2, 0)

    # The last global batch has 5 samples, so one of the ranks repeats one; evaluation does not see it.
    assert [line['sample_in_epoch'] for line in lines(padded)] == [8 * k for k in range(13)] * 2
    assert list(trained(padded_rest, 2).values())[:12] == sequence(uneven, 1)[:12]
    assert len(trained(padded_rest, 2)) == 13
    evaluated = [[line['evaluated'] for line in lines(padded, rank, 'evaluated')] for rank in (0, 1)]
    assert len(evaluated[0]) == 5
    for one, other in zip(*evaluated, strict=True):
        assert sorted(one + other) == list(range(101))
        assert one == evaluated[0][0]
