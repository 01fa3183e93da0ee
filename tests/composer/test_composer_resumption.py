"""Whatever a run was interrupted by and resumed on, it trains the global batches that it would have trained."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from composer_legs import Leg
from composer_runs import launch, lines, sequence, trained

pytestmark = [pytest.mark.composer, pytest.mark.timeout(600)]

TOPOLOGIES = {'1x0': (1, 0), '1x2': (1, 2), '2x0': (2, 0), '2x1': (2, 1)}
BEHIND = {'mid': 5, 'last': 12, 'boundary': 12, 'second': 17}
EVERY = list(itertools.product(TOPOLOGIES, TOPOLOGIES, BEHIND))
# A Latin square: each two of old topology, new topology and checkpoint meet once.
PAIRS = [
    (before, after, list(BEHIND)[(row + column) % 4])
    for (row, before), (column, after) in itertools.product(enumerate(TOPOLOGIES), enumerate(TOPOLOGIES))
]


def faults(leg: Leg, ranks: int, expected: list[list[int]], behind: int) -> str:
    """What is wrong with a leg that follows `behind` batches of a run of which all batches are known."""
    got = trained(leg, ranks)
    wanted = {batch: ids for batch, ids in enumerate(expected) if batch >= behind}
    if got == wanted:
        return ''
    had, want = sorted(sum(got.values(), [])), sorted(sum(wanted.values(), []))
    repeated = sum(had.count(one) > want.count(one) for one in set(had))
    lost = sum(had.count(one) < want.count(one) for one in set(want))
    other = [batch for batch in wanted if got.get(batch) != wanted[batch]]
    return f'{repeated} repeated, {lost} lost, {len(got)} batches of {len(wanted)}, other ids in {other[:4]}'


def random_faults(leg: Leg, reference: Leg, ranks: int) -> str:
    """Whether each rank drew the random numbers that it draws without interruption."""
    # Workers are seeded anew when they start, so a sample's own numbers are the run's only without workers.
    count = 3 if leg.workers else 4
    for rank in range(ranks):
        wanted = {line['batch']: line['drawn'][:count] for line in lines(reference, rank)}
        for line in lines(leg, rank):
            if line['drawn'][:count] != wanted[line['batch']]:
                return f'other random numbers from batch {line["batch"]} on rank {rank}'
    return ''


def check_table(references: Path, data: str, tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    """Resume each row's checkpoint on its new topology, one process start for each number of ranks; print a table."""
    expected = sequence(data, 0) + sequence(data, 1)
    out = str(tmp_path)
    table: list[str] = []
    for ranks in (1, 2):
        legs = {
            row: Leg(
                '-'.join(row), data, out, workers=TOPOLOGIES[row[1]][1], load=str(references / f'{row[0]}-{row[2]}.pt')
            )
            for row in rows
            if TOPOLOGIES[row[1]][0] == ranks
        }
        if not legs:
            continue
        launch(['composer', '-n', '1'] if ranks == 1 else ['torchrun', '--nproc-per-node', '2'], list(legs.values()))
        for (before, after, kind), leg in legs.items():
            fault = faults(leg, ranks, expected, BEHIND[kind])
            if not fault and before == after:
                fault = random_faults(leg, Leg(before, data, str(references), workers=leg.workers), ranks)
            table.append(f'{before} -> {after}  {kind:8}  {fault or "exact"}')
    print('\n'.join(['', 'ranks x workers, checkpoint, outcome', *table]))
    assert not [line for line in table if not line.endswith('exact')]


def test_the_uninterrupted_runs_train_the_plans_global_batches(references: Path, data: str) -> None:
    expected = sequence(data, 0) + sequence(data, 1)
    for name, (ranks, workers) in TOPOLOGIES.items():
        assert not faults(Leg(name, data, str(references), workers=workers), ranks, expected, 0)


def test_runs_resume_on_each_topology_from_each_checkpoint(references: Path, data: str, tmp_path: Path) -> None:
    check_table(references, data, tmp_path, PAIRS)


@pytest.mark.slow
def test_runs_resume_on_any_topology_from_any_checkpoint(references: Path, data: str, tmp_path: Path) -> None:
    check_table(references, data, tmp_path, EVERY)


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        pytest.param(['torchrun', '--nproc-per-node', '2'], ['composer', '-n', '1'], id='2-to-1'),
        pytest.param(['composer', '-n', '1'], ['composer', '-n', '2'], id='1-to-2', marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_in_mid_epoch_goes_on_by_itself(
    data: str, tmp_path: Path, before: list[str], after: list[str]
) -> None:
    options = {'data': data, 'out': str(tmp_path), 'workers': 1, 'autoresume': True, 'run': 'run'}
    killed, resumed = Leg('killed', kill_after=5, **options), Leg('resumed', **options)
    launch(before, [killed], killed=True)
    launch(after, [resumed])
    expected = sequence(data, 0) + sequence(data, 1)
    # Saved every third batch: what was trained after the third is trained again, as the model forgot it.
    assert not faults(killed, int(before[-1]), expected[:5], 0)
    assert not faults(resumed, int(after[-1]), expected, 3)


def test_two_ranks_with_other_options(references: Path, data: str, uneven: str, tmp_path: Path) -> None:
    """Several legs in one start of two processes."""
    out = str(tmp_path)

    def kept(kind: str) -> Leg:
        return Leg(f'kept-{kind}', data, out, global_batch=16, load=str(references / f'1x0-{kind}.pt'))

    kept_batches = [kept('mid'), kept('last'), kept('boundary')]
    subset = Leg('subset', data, out, workers=1, subset=8, save=True)
    subset_rest = [
        Leg(f'subset-{kind}', data, out, subset=8, load=f'{out}/subset-{kind}.pt') for kind in ('mid', 'eighth')
    ]
    padded = Leg('padded', uneven, out, save=True, evaluate=uneven)
    padded_rest = Leg('padded-rest', uneven, out, load=f'{out}/padded-thirteenth.pt')
    plain = Leg('plain', data, out, plain=True, workers=1, load=str(references / '1x0-mid.pt'))
    launch(['composer', '-n', '2'], [*kept_batches, subset, *subset_rest, padded, padded_rest, plain])

    # The batch of each rank was kept, so that the global batch has doubled: the cut is another, the sequence is not.
    at_40, second = sequence(data, 0, 40, 16), sequence(data, 1, 0, 16)
    assert [len(batch) for batch in at_40] == [16, 16, 16, 8]
    assert [list(trained(leg, 2).values()) for leg in kept_batches] == [at_40 + second, second, second]
    # An epoch has 6 batches of the new size. 4 are left, so 2 count as done.
    assert [line['batch_in_epoch'] for line in lines(kept_batches[0])] == [2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert {line['len'] for line in lines(kept_batches[0])} == {6}

    short = sequence(data, 0)[:8] + sequence(data, 1)[:8]
    assert not faults(subset, 2, short, 0)
    assert not faults(subset_rest[0], 2, short, 5)
    assert not faults(subset_rest[1], 2, short, 8)
    assert {line['len'] for line in lines(subset_rest[0])} == {8}

    # The last global batch has 5 samples, so one of the ranks repeats one; evaluation does not see it.
    assert [line['sample_in_epoch'] for line in lines(padded)] == [8 * k for k in range(13)] * 2
    assert list(trained(padded_rest, 2).values())[:12] == sequence(uneven, 1)[:12]
    assert len(trained(padded_rest, 2)) == 13
    evaluated = [[line['evaluated'] for line in lines(padded, rank, 'evaluated')] for rank in (0, 1)]
    assert len(evaluated[0]) == 5
    for one, other in zip(*evaluated, strict=True):
        assert sorted(one + other) == list(range(101))
        assert one == evaluated[0][0]

    assert not faults(plain, 2, sequence(data, 0) + sequence(data, 1), 5)
