"""Skipped ranges of a training: Composer's position counts them, and its epochs end where the data does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer import Trainer
from headrace.composer import StreamingPosition
from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError, ResumeError
from tests.support.trainers.composer_legs import Leg, Linear, run, trainer_of
from tests.support.trainers.composer_runs import lines, run_legs, trained

pytestmark = [pytest.mark.composer, pytest.mark.filterwarnings('ignore')]

# 96 samples an epoch, in batches of 8. Epoch 0 is short, epoch 1 skipped, epoch 2 short in another way.
SKIP = (('2ba', '4ba'), (70, 75), (96, 200), (230, 235))
RANGES = [(16, 32), (70, 75), (96, 200), (230, 235)]


def expected(data: str, skip: list[tuple[int, int]], epochs: int, start: int = 0) -> list[list[int]]:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=8, shuffle_seed=7)
    batches: list[list[int]] = []
    for epoch in range(epochs):
        first = 96 * epoch
        kept = [s for s in range(first, first + 96) if not any(a <= s < b for a, b in skip) and s >= start]
        ids = dataset.order(epoch).at(np.array(kept, np.int64) - first).tolist()
        batches += [sorted(ids[k : k + 8]) for k in range(0, len(ids), 8)]
    return batches


def batches(leg: Leg, ranks: int = 1) -> list[list[int]]:
    return list(trained(leg, ranks).values())


@pytest.mark.parametrize('workers', [0, 1])
def test_skipped_samples_count_in_the_position(data: str, tmp_path: Path, workers: int) -> None:
    leg = Leg('whole', data, str(tmp_path), skip=SKIP, duration='4ep', workers=workers)
    run(leg)
    assert batches(leg) == expected(data, RANGES, 4)
    found = lines(leg)
    assert [line['epoch'] for line in found] == [0] * 10 + [2] * 11 + [3] * 12
    assert [line['len'] for line in found] == [10] * 10 + [11] * 11 + [12] * 12
    assert [line['sample_in_epoch'] for line in found[:10]] == [0, 8, 32, 40, 48, 56, 64, 77, 85, 93]
    assert [line['sample_in_epoch'] for line in found[10:12]] == [0, 16]


@pytest.mark.parametrize(('kind', 'behind'), [('mid', 5), ('eighth', 8), ('boundary', 10), ('second', 17)])
def test_a_run_continues_on_other_ranks_and_workers(data: str, tmp_path: Path, kind: str, behind: int) -> None:
    first = Leg('first', data, str(tmp_path), skip=SKIP, duration='4ep', save=True)
    rest = Leg('rest', data, str(tmp_path), skip=SKIP, duration='4ep', workers=1, load=f'{tmp_path}/first-{kind}.pt')
    run(first)
    run(rest)
    assert batches(rest) == expected(data, RANGES, 4)[behind:]

    # The number of the batch in its epoch is that of the uninterrupted run.
    def numbers(leg: Leg) -> list[int]:
        return [line['batch_in_epoch'] for line in lines(leg)]

    assert numbers(rest) == numbers(first)[behind:]


@pytest.mark.parametrize(('skip', 'ranges'), [((), []), (((60, 90), (100, 120)), [(60, 90), (100, 120)])])
def test_ranges_may_change_at_a_resume(data: str, tmp_path: Path, skip: Any, ranges: Any) -> None:
    first = Leg('first', data, str(tmp_path), skip=SKIP, duration='5ba', save=True)
    refused = Leg('refused', data, str(tmp_path), skip=skip, load=f'{tmp_path}/first-mid.pt', duration='2ep')
    rest = replace(refused, name='rest', on_mixture_change='continue')
    run(first)
    with pytest.raises(ResumeError, match=r'skip was \[70, 75\], \[96, 200\], \[230, 235\] from the checkpoint on'):
        run(refused)
    run(rest)
    # Two batches, then two that are skipped, then three.
    assert batches(rest) == expected(data, ranges, 2, start=56)


def test_batches_of_another_size_are_other_samples(data: str, tmp_path: Path) -> None:
    """Composer asks the dataset alone, before any batch size is known to it but its own."""
    first = Leg('first', data, str(tmp_path), skip=(('10ba', '11ba'),), duration='5ba', save=True)
    rest = Leg('rest', data, str(tmp_path), skip=first.skip, load=f'{tmp_path}/first-mid.pt', global_batch=4)
    run(first)
    with pytest.raises(ResumeError, match=r'was \[80, 88\] .* \[40, 44\] now, which brings back \[80, 88\]'):
        run(rest)
    run(replace(rest, skip=((80, 88),), duration='1ep'))
    assert sum(map(len, batches(replace(rest, name='rest')))) == 48


def test_a_subset_counts_what_is_trained(data: str, tmp_path: Path) -> None:
    leg = Leg('subset', data, str(tmp_path), skip=SKIP, duration='4ep', subset=9)
    run(leg)
    every = expected(data, RANGES, 4)
    assert batches(leg) == every[:9] + every[10:19] + every[21:30]


# Epochs of 10, 0, 11 and 12 batches.
@pytest.mark.parametrize('subset', [9, 10, 11, 12, 40])
def test_a_subset_holds_after_shorter_epochs_and_after_a_resume(data: str, tmp_path: Path, subset: int) -> None:
    every = expected(data, RANGES, 4)
    cut = [*every[:10][:subset], *every[10:21][:subset], *every[21:][:subset]]
    first = Leg('first', data, str(tmp_path), skip=SKIP, duration='4ep', subset=subset, save=True)
    run(first)
    assert batches(first) == cut
    for kind, behind in ('mid', 5), ('boundary', min(subset, 10)), ('second', 17):
        rest = replace(first, name=f'rest-{kind}', save=False, load=f'{tmp_path}/first-{kind}.pt')
        run(rest)
        assert batches(rest) == cut[behind:], kind
        assert [line['len'] for line in lines(rest)] == [line['len'] for line in lines(first)][behind:], kind


def test_a_subset_may_be_another_one_in_the_next_fit(data: str, tmp_path: Path) -> None:
    leg = Leg('fits', data, str(tmp_path), skip=SKIP, duration='1ep', subset=11)
    trainer = trainer_of(leg)
    trainer.fit()
    trainer.fit(duration='2ep')  # with the subset of before; epoch 1 is skipped
    trainer.fit(duration='1ep', train_subset_num_batches=10)
    trainer.fit(duration='1ep', train_subset_num_batches=-1)
    assert [line['len'] for line in lines(leg)] == [10] * 10 + [11] * 11 + [10] * 10 + [12] * 12


def test_two_ranks(data: str, tmp_path: Path) -> None:
    first = Leg('first', data, str(tmp_path), skip=SKIP, duration='3ep', save=True)
    rest = Leg('rest', data, str(tmp_path), skip=SKIP, duration='3ep', load=f'{tmp_path}/first-eighth.pt')
    run_legs(2, [first, rest])
    every = expected(data, RANGES, 3)
    # Batches that the ranks cannot share repeat a sample on one of them.
    assert [sorted(set(batch)) for batch in batches(first, 2)] == every
    assert [sorted(set(batch)) for batch in batches(rest, 2)] == every[8:]
    assert [line['sample_in_epoch'] for line in lines(first)][:10] == [0, 8, 32, 40, 48, 56, 64, 77, 85, 93]


def test_a_loader_whose_samples_composer_counts_itself_is_refused(data: str) -> None:
    model = Linear()
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=8, skip=[[0, 8]]))
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration='1ep',
        callbacks=[StreamingPosition()],
        device='cpu',
        progress_bar=False,
    )
    with pytest.raises(ConfigError, match='needs `streaming_data_spec'):
        trainer.fit()
