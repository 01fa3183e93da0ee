"""Batches cut by a budget of cost, against a slow model, on any topology, and from any batch on."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, ResumeError, TopologyError
from headrace.order import BatchPlan, OrderConfig, StreamSize, Topology, find_batch, lengths
from headrace.order.config import BatchCost
from headrace.order.run import Run
from headrace.order.skip import parse_skip
from headrace.order.topology import BatchSpec, Remainder, Uneven, World
from tests.support.suite.example_counts import scaled


class Costs:
    """Costs of ids, from a table."""

    digest = 'made up'

    def __init__(self, samples: int, most: int = 100) -> None:
        self.values = np.random.default_rng(samples).integers(1, most + 1, samples)

    @property
    def largest(self) -> int:
        return int(self.values.max())

    def __call__(self, ids: Any) -> Any:
        return self.values[ids]

    def kept(self, key: str, size: int, fill: Any) -> Any:
        fill(out := np.zeros(size, np.uint32))
        return out


def run_of(
    costs: Costs,
    cost: BatchCost,
    *,
    shards: int = 4,
    skip: Any = (),
    balance: Any = None,
    change: Any = 'refuse',
    **how: Any,
) -> Run:
    sizes = np.diff(np.linspace(0, len(costs.values), shards + 1).astype(int))
    halves = [StreamSize(name=name, shard_sizes=part) for name, part in zip('ab', np.split(sizes, 2), strict=True)]
    how = {'shuffle': True, 'bucket': 3, 'num_canonical_nodes': 4, **how}
    config = OrderConfig(batch_cost=cost, **how)
    options: dict[str, Any] = {'skip': parse_skip(skip), 'balance': balance, 'on_mixture_change': change}
    return Run.of(halves, config, costs=costs, **options)


def plan_of(
    run: Run, size: int, *, epoch: int = 0, start: int = 0, remainder: Remainder = 'repeat', **world: int
) -> BatchPlan:
    return run.plan(epoch, start, BatchSpec(size, Topology(**world), remainder))


def ids_of(plan: BatchPlan) -> list[list[int]]:
    """The samples of each batch without padding."""
    found: list[list[int]] = []
    for k in range(plan.num_batches):
        assert plan.own_samples(k) <= len(plan.ids(k))
        found.append(plan.ids(k)[: plan.own_samples(k)].tolist())
    return found


def modelled(run: Run, costs: Costs, size: int, cost: BatchCost) -> list[list[list[int]]]:
    """By window its batches, as sorted samples: the longest of each class of positions first, cut where it is full."""
    plain = Run.of(run.settings.streams, OrderConfig(shuffle=True, num_canonical_nodes=4, seed=run.config().seed))
    before = plain.order(0).at(np.arange(len(costs.values))).tolist()
    classes, window = int(np.gcd(4, cost.multiple)), 3 * size
    windows: list[list[list[int]]] = []
    for begin in range(0, len(before), window):
        members = before[begin : begin + window]
        queues = [members[c::classes] for c in range(classes)]
        for queue in queues:
            queue.sort(key=lambda sample: -costs.values[sample])
        line = [queues[i % classes][i // classes] for i in range(len(members))]
        batches: list[list[int]] = []
        while line:
            rows = cost.multiple
            while rows + cost.multiple <= min(len(line), size):
                lengths = [int(costs.values[sample]) for sample in line[: rows + cost.multiple]]
                if (sum(lengths) if cost.sum else len(lengths) * max(lengths)) > cost.budget:
                    break
                rows += cost.multiple
            batches.append(sorted(line[:rows]))
            line = line[rows:]
        windows.append(batches)
    return windows


@given(
    samples=st.integers(8, 90),
    multiple=st.sampled_from([1, 2, 4, 6]),
    rows=st.integers(1, 8),
    room=st.floats(0, 30),
    longest=st.sampled_from([100, 1 << 20]),
    by_sum=st.booleans(),
    remainder=st.sampled_from(['repeat', 'drop', 'exact']),
)
@settings(max_examples=scaled(30))
def test_batches_agree_with_a_slow_model(
    samples: int, multiple: int, rows: int, room: float, longest: int, by_sum: bool, remainder: Remainder
) -> None:
    costs, size = Costs(samples, longest), rows * multiple
    cost = BatchCost(multiple * costs.largest + int(room * longest), multiple, by_sum)
    run = run_of(costs, cost)
    plan = plan_of(run, size, remainder=remainder)
    found, expected = ids_of(plan), modelled(run, costs, size, cost)
    rest = samples % multiple
    if rest and remainder == 'drop':
        expected[-1].pop()
    elif rest:
        assert sorted(found[-1]) == expected[-1][-1]  # stays the last one
    at = 0
    for window in expected:  # whose batches come in any order
        assert sorted(map(sorted, found[at : at + len(window)])) == sorted(window)
        at += len(window)
    assert at == len(found) == plan.num_batches == plan.total_batches == plan.epoch_batches
    ends = np.cumsum([len(batch) for batch in found]).tolist()
    assert [plan.end(k) for k in range(at)] == ends
    assert plan.stop == plan.epoch_samples == sum(map(len, found)) == samples - rest * (remainder == 'drop')
    everything = plan.order.at(np.arange(samples))
    assert plan.ids_of(range(at)).tolist() == np.concatenate([np.zeros(0, int), *map(plan.ids, range(at))]).tolist()
    assert plan.rows_of(range(at)).tolist() == [len(plan.ids(k)) for k in range(at)]
    streams = plan.order.mixture.streams_of(everything)
    for k, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        assert plan.spans(k, k + 1) == [(begin, end)]
        assert plan.stream_counts(k, k + 1).tolist() == np.bincount(streams[begin:end], minlength=2).tolist()
        position = begin + (end - begin) // 2
        assert plan.find(int(everything[position])) == (k, position)
        assert plan.batches(k, 2) == range(k, min(k + 2, at))
        assert [plan.batches_of(n) for n in (begin, begin + 1, end)] == [k, k + 1, k + 1]


@pytest.mark.parametrize(('by_sum', 'digest'), [(False, '8a934ba1f0cf4d44'), (True, '8eb0886f17bd7bc7')])
def test_the_order_is_frozen(by_sum: bool, digest: str) -> None:
    costs = Costs(2000)
    costs.values = np.arange(2000) * 7919 % 1000 + 1
    plan = plan_of(run_of(costs, BatchCost(16_000, 8, by_sum), bucket=8, seed=7), 64, epoch=3)
    numbers = [number for k in range(plan.num_batches) for number in (len(plan.ids(k)), *plan.ids(k).tolist())]
    assert hashlib.sha256(np.array(numbers, '<i8').tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize('balance', [None, 1])
@pytest.mark.parametrize('samples', [203, 208])
def test_every_topology_and_every_batch_give_the_same(balance: float | None, samples: int) -> None:
    costs = Costs(samples)
    cost = BatchCost(1600, 8)
    expected = ids_of(plan_of(run_of(costs, cost), 32))
    assert len({len(batch) for batch in expected}) > 2
    for ranks, nodes in ((2, 1), (8, 4)):
        begin = 0
        for k, batch in enumerate(expected):
            run = run_of(costs, cost, balance=balance)
            plans = [
                plan_of(run, 32, start=begin, rank=rank, world_size=ranks, num_nodes=nodes) for rank in range(ranks)
            ]
            assert {plan.num_batches for plan in plans} == {len(expected) - k}
            assert {plan.batches_before for plan in plans} == {k}
            # Equal rows for all ranks, and the same samples together; of the rest, too.
            for later in {k, len(expected) - 1}:
                number = later - k
                assert len({len(plan.ids(number)) for plan in plans}) == 1
                rows = [plan.ids(number)[: plan.own_samples(number)].tolist() for plan in plans]
                assert sorted(itertools.chain(*rows)) == sorted(expected[later])
            begin += len(batch)
    # A node's samples are those of its canonical nodes on any number of nodes that divides them.
    places = plan_of(run_of(costs, cost), 32).order
    inner = Run.of(run_of(costs, cost).settings.streams, OrderConfig(shuffle=True, num_canonical_nodes=4)).order(0)
    now, then = places.at(np.arange(samples)), inner.at(np.arange(samples))
    assert all(sorted(now[c::4].tolist()) == sorted(then[c::4].tolist()) for c in range(4))


@pytest.mark.parametrize('balance', [None, 1])
@pytest.mark.parametrize('uneven', ['pad', 'ragged'])
def test_ranks_that_do_not_divide_the_rows_share_them(balance: float | None, uneven: Uneven) -> None:
    costs, cost = Costs(203), BatchCost(1600, 8)
    expected, run = ids_of(plan_of(run_of(costs, cost), 32)), run_of(costs, cost, balance=balance)
    plans = [run.plan(0, 0, BatchSpec(32, Topology(rank=r, world_size=3), 'repeat', uneven)) for r in range(3)]
    found = [ids_of(plan) for plan in plans]
    assert [sorted(itertools.chain(*rows)) for rows in zip(*found, strict=True)] == [sorted(b) for b in expected]
    for plan in plans:
        everything = range(plan.num_batches)
        assert plan.ids_of(everything).tolist() == np.concatenate([plan.ids(k) for k in everything]).tolist()


def test_batches_cost_at_most_the_budget_and_others_come_in_each_epoch() -> None:
    costs = Costs(1000)
    run = run_of(costs, BatchCost(4000, 8), bucket=None)
    assert run.config(World(1, 256)).bucket == 64
    epochs = [ids_of(plan_of(run, 256, epoch=epoch)) for epoch in (0, 1)]
    for batches in epochs:
        assert sorted(itertools.chain(*batches)) == list(range(1000))
        assert all(len(batch) * costs.values[batch].max() <= 4000 for batch in batches)
        assert sum(len(b) * int(costs.values[b].max()) for b in batches) < 1.2 * costs.values.sum()
    assert epochs[0] != epochs[1]


def test_skipped_samples_are_whole_batches() -> None:
    costs, cost = Costs(200), BatchCost(1600, 8)
    whole = ids_of(plan_of(run_of(costs, cost), 32))
    ends = np.cumsum([len(batch) for batch in whole]).tolist()
    skip = [(ends[1] + 1, ends[3] - 1), (ends[6], ends[6] + 1), (400 + ends[0], 400 + ends[1])]
    run = run_of(costs, cost, skip=skip)
    plan = plan_of(run, 32)
    assert ids_of(plan) == [batch for k, batch in enumerate(whole) if k not in (2, 3, 7)]
    assert (plan.num_batches, plan.epoch_batches) == (len(whole) - 3, len(whole))
    assert [plan.skipped(k) for k in range(3)] == [0, ends[3] - ends[1], 0]
    resumed = plan_of(run, 32, start=plan.end(1))
    assert ids_of(resumed) == ids_of(plan)[2:]
    assert resumed.batches_before == 2
    later = ids_of(plan_of(run_of(costs, cost), 32, epoch=2))
    at = [sum(map(len, later[:k])) for k in range(len(later))]
    hit = [b < ends[1] and b + len(batch) > ends[0] for b, batch in zip(at, later, strict=True)]
    assert ids_of(plan_of(run, 32, epoch=2)) == [b for b, is_hit in zip(later, hit, strict=True) if not is_hit]


def test_the_batch_of_a_step_is_counted_through_epochs_of_different_lengths() -> None:
    run, places = run_of(Costs(150), BatchCost(800, 8)), list[tuple[int, int]]()
    for epoch in range(4):
        places += [(epoch, k) for k in range(plan_of(run, 32, epoch=epoch).num_batches)]
    assert len({sum(one == epoch for one, _ in places) for epoch in range(4)}) > 1
    for step in (0, len(places) // 2, len(places) - 1):
        plan, number = find_batch(lambda epoch, start: plan_of(run, 32, epoch=epoch, start=start), step)
        assert (plan.order.epoch, number) == places[step]


def test_a_pass_cuts_only_the_windows_that_it_reads() -> None:
    costs, cut = Costs(100_000), list[int]()
    run = run_of(costs, BatchCost(1600, 8))
    order = run.order(0, World(1, 32))
    known = order._ids  # pyright: ignore[reportAttributeAccessIssue]
    order._ids = lambda window: (cut.append(window), known(window))[1]  # pyright: ignore[reportAttributeAccessIssue]
    plan = plan_of(run, 32, start=9600)
    assert plan.batches(0, 2) == range(2)
    assert plan.ids(1).size
    assert plan.stop == 100_000
    assert set(cut) == {100}


@given(
    samples=st.integers(8, 300),
    gaps=st.lists(st.integers(0, 300), max_size=3),
    start=st.integers(0, 30),
    remainder=st.sampled_from(['repeat', 'drop']),
    few=st.sampled_from([0, 1 << 20]),
)
@settings(max_examples=scaled(30))
def test_counted_windows_give_the_batches_of_cut_ones(
    samples: int, gaps: list[int], start: int, remainder: Remainder, few: int
) -> None:
    costs, cost = Costs(samples), BatchCost(1600, 8)
    skip = [(at, at + 20) for at in gaps]
    whole = plan_of(run_of(costs, cost), 32)
    begin = whole.end(min(start, whole.num_batches) - 1) if start else 0
    run = run_of(costs, cost, skip=skip)
    cut = plan_of(run, 32, start=begin, remainder=remainder)
    found = ids_of(cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths, '_NEAR', 1)
        patch.setattr(lengths, '_FEW_SAMPLES', few)
        again = run_of(costs, cost, skip=skip)
        counted = plan_of(again, 32, start=begin, remainder=remainder)
        assert (counted.num_batches, counted.total_batches) == (len(found), cut.total_batches)
        assert plan_of(again, 32, start=begin, remainder=remainder).batches_before == cut.batches_before
        assert ids_of(counted) == found
        assert [counted.end(k) for k in range(len(found))] == [cut.end(k) for k in range(len(found))]


def test_counts_are_kept_apart_by_all_that_they_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, '_FEW_SAMPLES', 0)
    costs, cost, kept = Costs(600), BatchCost(1600, 8), dict[str, Any]()
    other = Costs(600)
    other.values, other.digest = other.values[::-1], 'another one'

    def runs() -> list[tuple[Run, int]]:
        decided = run_of(costs, cost)
        decided = decided.with_decision((0, 40), {'a': 1, 'b': 3}, 'the test', World(1, 32))
        return [
            *((decided, epoch) for epoch in (0, 1)),
            *((run_of(costs, cost), epoch) for epoch in (0, 1)),
            (run_of(other, cost), 0),
            (run_of(costs, BatchCost(1608, 8)), 0),
            (run_of(costs, BatchCost(16000, 8, True)), 0),
            (run_of(costs, cost, seed=8), 0),
            (run_of(costs, cost, bucket=4), 0),
            (run_of(costs, cost, shards=6), 0),
            (run_of(costs, cost, num_canonical_nodes=2), 0),
        ]

    def keep(key: str, size: int, fill: Any) -> Any:
        if key not in kept:
            fill(kept.setdefault(key, np.zeros(size, np.uint32)))
        return kept[key]

    costs.kept = other.kept = keep
    expected = [len(ids_of(plan_of(run, 32, epoch=epoch))) for run, epoch in runs()]
    assert not kept
    monkeypatch.setattr(lengths, '_NEAR', 1)
    for _ in range(2):
        assert [plan_of(run, 32, epoch=epoch).num_batches for run, epoch in runs()] == expected
    assert len(kept) == len(expected) - 1  # epoch 0 is the same before the decision


def test_a_start_within_a_batch_is_refused_with_the_nearest() -> None:
    run = run_of(Costs(200), BatchCost(1600, 8))
    end = plan_of(run, 32).end(0)
    with pytest.raises(ConfigError, match=f'position 3 is in the middle of one. The nearest are 0 and {end}'):
        plan_of(run, 32, start=3)


def test_states_name_the_budget_and_refuse_another() -> None:
    costs = Costs(200)
    run = run_of(costs, BatchCost(1600, 8))
    place = plan_of(run, 32).end(4)
    state = run.state(0, place, World(1, 32))
    same = run_of(costs, BatchCost(1600, 8))
    same, place_of_state = same.resumed(state, World(2, 32, 2))
    assert place_of_state == (0, place)
    with pytest.raises(ResumeError, match='batch_cost'):
        run_of(costs, BatchCost(1608, 8)).resumed(state, World(1, 32))
    changing = run_of(costs, BatchCost(1608, 8), change='continue')
    for at in (place, plan_of(run, 32).end(0)):  # at the end of a window, and in one
        with pytest.raises(ResumeError, match=f'where an epoch ends, but the checkpoint is at sample {at} of 200'):
            changing, _ = changing.resumed(run.state(0, at, World(1, 32)), World(1, 32))
    changing, place_of_state = changing.resumed(run.state(0, 200, World(1, 32)), World(1, 32))
    assert place_of_state == (1, 0)


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ({'cost': BatchCost(799, 8)}, 'may cost 800, but the budget is 799. Raise the budget to 800, lower `multiple`'),
        ({'skip': [('1ba', '2ba')]}, '`skip` cannot count them in `ba`'),
        ({'batching': 'stratified'}, "`batch_cost` needs batching_method 'random'"),
        ({'batching': 'per_stream'}, '`bucket` needs the native order'),
        ({'algorithm': 'py1e'}, '`bucket` needs the native order'),
    ],
)
def test_settings_that_cannot_be_are_refused(how: dict[str, Any], message: str) -> None:
    costs = Costs(200)
    costs.values[7] = 100
    with pytest.raises(ConfigError, match=message):
        run_of(costs, how.pop('cost', BatchCost(1600, 8)), **how)


@pytest.mark.parametrize(
    'raw', [0, -5, True, '400', 1.5, {}, {'multiple': 2}, {'budget': 9, 'rows': 1}, {'budget': 9, 'sum': 1}, [9]]
)
def test_budgets_of_other_forms_are_refused(raw: object) -> None:
    with pytest.raises(ConfigError, match='`batch_cost` must be the budget of a global batch'):
        BatchCost.of(raw)


def test_budgets_of_any_form() -> None:
    assert BatchCost.of(None) is None
    assert BatchCost.of(9) == BatchCost.of({'budget': 9}) == BatchCost(9, 8, False)
    full = BatchCost.of({'budget': 9, 'multiple': 3, 'sum': True})
    assert full is not None
    assert BatchCost.of(full.plain) == full


def test_ranks_and_rows_that_do_not_fit_are_refused_with_a_multiple_that_does() -> None:
    with pytest.raises(TopologyError, match='the 3 data-parallel replicas do not divide.*multiple: 24'):
        plan_of(run_of(Costs(200), BatchCost(1600, 8)), 48, world_size=3)
    with pytest.raises(ConfigError, match="must be a multiple of `batch_cost`'s `multiple`, 8, but got 36"):
        plan_of(run_of(Costs(200), BatchCost(1600, 8)), 36)
