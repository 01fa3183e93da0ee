"""The proof must notice everything that could be wrong: each test breaks one thing in records that are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from examples.demo.proof import Promise, Proof, check_mix, prove
from examples.demo.records import Run, Step

# Two epochs of four batches of three; 1 is due twice in the first.
PROMISE: Promise = [
    [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 1]],
    [[6, 5, 4], [3, 2, 1], [9, 8, 7], [12, 11, 10]],
]
Steps = dict[int, Step]


def right_steps() -> Steps:
    batches = [(epoch, batch) for epoch, batches in enumerate(PROMISE) for batch in batches]
    return {n: Step(epoch, tuple(sorted(batch)), 5.0 - n / 10) for n, (epoch, batch) in enumerate(batches, start=1)}


def proof(
    *,
    break_killed: Callable[[Steps], object] = len,
    break_resumed: Callable[[Steps], object] = len,
    break_uninterrupted: Callable[[Steps], object] = len,
    checkpoint: int = 2,
) -> Proof:
    """Killed after step 3, resumed after step 2; each run as the given function leaves it."""
    killed = {n: step for n, step in right_steps().items() if n <= 3}
    resumed = {n: step for n, step in right_steps().items() if n > checkpoint}
    uninterrupted = right_steps()
    break_killed(killed)
    break_resumed(resumed)
    break_uninterrupted(uninterrupted)
    return prove(
        PROMISE,
        uninterrupted=Run(0, uninterrupted),
        killed=Run(0, killed),
        resumed=Run(checkpoint, resumed),
        compared_steps=4,
        loss_tolerance=1e-4,
    )


def test_it_holds_for_records_that_are_right() -> None:
    good = proof()

    assert good.holds
    assert (good.expected, good.seen, good.lost, good.repeated) == (24, 24, 0, 0)
    assert (good.checkpoint, good.killed_at) == (2, 3)
    assert (good.loss_difference, good.whole_loss_difference) == (0, 0)


def test_steps_after_the_checkpoint_do_not_count_twice() -> None:
    # Step 3 was done by both runs, and is in the killed one's records: only the resumed one's counts.
    assert proof().seen == 24


def test_a_step_that_is_missing_is_lost() -> None:
    bad = proof(break_resumed=lambda steps: steps.pop(5))

    assert not bad.holds
    assert (bad.seen, bad.lost, bad.repeated, bad.wrong_batches) == (21, 3, 0, 1)


def test_a_step_too_many_is_repeated() -> None:
    bad = proof(break_resumed=lambda steps: steps.update({9: replace(steps[8])}))

    assert not bad.holds
    assert (bad.seen, bad.lost, bad.repeated) == (27, 0, 3)


def test_a_sample_in_the_place_of_another_is_one_lost_and_one_repeated() -> None:
    bad = proof(break_resumed=lambda steps: steps.update({7: replace(steps[7], ids=(7, 8, 12))}))

    assert not bad.holds
    assert (bad.seen, bad.lost, bad.repeated) == (24, 1, 1)


def test_an_upsampled_row_that_is_lost_once_is_noticed() -> None:
    bad = proof(break_resumed=lambda steps: steps.update({4: replace(steps[4], ids=(10, 11))}))

    assert (bad.lost, bad.repeated) == (1, 0)


def test_samples_of_the_next_epoch_make_up_for_nothing() -> None:
    """The epoch ends early: all is trained, but a batch of epoch 0 comes in epoch 1."""
    bad = proof(break_resumed=lambda steps: steps.update({4: replace(steps[4], epoch=1)}))

    assert not bad.holds
    assert (bad.lost, bad.repeated) == (3, 3)


def test_batches_that_changed_places_are_wrong_though_nothing_is_lost() -> None:
    bad = proof(break_resumed=lambda steps: steps.update({5: steps[6], 6: steps[5]}))

    assert not bad.holds
    assert (bad.lost, bad.repeated, bad.wrong_batches) == (0, 0, 2)


def test_an_uninterrupted_run_with_other_batches_is_no_reference() -> None:
    bad = proof(break_uninterrupted=lambda steps: steps.update({5: steps[6], 6: steps[5]}))

    assert not bad.holds
    assert bad.wrong_batches == 2


def test_a_batch_that_died_with_the_killed_run_must_come_back() -> None:
    bad = proof(break_killed=lambda steps: steps.update({3: replace(steps[3], ids=(7, 8, 10))}))

    assert not bad.holds
    assert (bad.lost, bad.repeated, bad.wrong_replays) == (0, 0, 1)


@pytest.mark.parametrize('loss', [4.601, math.nan, math.inf])
def test_another_loss_after_the_resume_is_noticed(loss: float) -> None:
    bad = proof(break_resumed=lambda steps: steps.update({4: replace(steps[4], loss=loss)}))

    assert not bad.holds
    assert bad.loss_difference > 1e-4


def test_a_resume_at_the_very_end_compares_nothing_and_does_not_hold() -> None:
    assert not proof(checkpoint=8).holds


def test_the_mix_is_checked_by_counting() -> None:
    promise = [[[0, 1], [1_000_000, 1_000_001]], [[1, 0], [1_000_001, 1_000_000]]]
    repeats = {'code': 1, 'prose': 1}
    check_mix(promise, rows=2, repeats=repeats)

    with pytest.raises(RuntimeError, match='not the mix: 2 epochs make 2 passes over code'):
        check_mix([promise[0], [[1, 1], [1_000_001, 1_000_000]]], rows=2, repeats=repeats)
    with pytest.raises(RuntimeError, match='5 samples in 1 epochs'):
        check_mix([[*promise[0], [77]]], rows=2, repeats=repeats)


def test_a_stream_that_repeats_continues_where_the_epoch_before_left_it() -> None:
    # One and a half passes an epoch: 0 and 1 once, one of them again; then the other first.
    check_mix([[[0, 1, 0]], [[1, 1, 0]]], rows=2, repeats={'code': 1.5})

    with pytest.raises(RuntimeError, match='a row 2 to 4 times'):
        check_mix([[[0, 1, 0]], [[0, 1, 0]]], rows=2, repeats={'code': 1.5})
