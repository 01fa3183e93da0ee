"""Buckets and balanced shares, against slow models and the promises of the order."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.order import OrderConfig, StreamSize, Topology
from headrace.order.lengths import BalancedPlan, BucketedOrder
from headrace.order.run import Run
from headrace.order.skip import parse_skip
from headrace.order.topology import BatchSpec
from tests.support.suite.example_counts import scaled


class Costs:
    """Costs of ids, from a table."""

    digest = 'made up'

    def __init__(self, samples: int, seed: int = 0, most: int = 1000) -> None:
        self.values = np.random.default_rng(seed).integers(0, most, samples)

    @property
    def largest(self) -> int:
        return int(self.values.max())

    def __call__(self, ids: Any) -> Any:
        return self.values[ids]

    def kept(self, key: str, size: int, fill: Any) -> Any:
        fill(out := np.zeros(size, np.uint32))
        return out


def run_of(sizes: list[list[int]], costs: Costs, *, balance: float | None = None, **how: Any) -> Run:
    streams = [StreamSize(name=f's{i}', shard_sizes=np.array(shards)) for i, shards in enumerate(sizes)]
    return Run.of(streams, OrderConfig(**how), costs=costs, balance=balance)


def batches(run: Run, topology: Topology, size: int, *, start: int = 0, epoch: int = 0) -> list[list[int]]:
    plan = run.plan(epoch, start, BatchSpec(size, topology, 'repeat'))
    return [plan.ids(k).tolist() for k in range(plan.num_batches)]


@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=3),
    size=st.integers(1, 12),
    window=st.integers(1, 5),
    nodes=st.integers(1, 4),
    shuffle=st.booleans(),
    batching=st.sampled_from(['random', 'stratified']),
    most=st.sampled_from([1, 3, 1000]),
)
@settings(max_examples=scaled(60))
def test_buckets_agree_with_a_slow_model(
    sizes: list[list[int]], size: int, window: int, nodes: int, shuffle: bool, batching: str, most: int
) -> None:
    total = sum(map(sum, sizes))
    costs = Costs(total, most=most)
    how: dict[str, Any] = {'shuffle': shuffle, 'num_canonical_nodes': nodes, 'batching': batching}
    try:
        plain = run_of(sizes, costs, **how)
        plan = plain.plan(0, 0, BatchSpec(size, Topology(), 'repeat'))
    except ConfigError:
        return  # a stratified batch that is too small
    run = run_of(sizes, costs, bucket=window, **how)
    found = run.plan(0, 0, BatchSpec(size, Topology(), 'repeat'))
    assert isinstance(found.order, BucketedOrder)
    everything = np.arange(len(plan.order))
    before, after = plan.order.at(everything), found.order.at(everything)
    parts = np.gcd(plan.order.num_canonical_nodes, size)
    for begin in range(0, len(everything), window * size):
        end = min(begin + window * size, len(everything))
        classes: dict[Any, list[tuple[int, int, int]]] = {}
        for position in range(begin, end):
            sample = int(before[position])
            stream = int(plan.order.mixture.streams_of(np.array([sample]))[0]) if batching == 'stratified' else 0
            classes.setdefault((position % parts, stream), []).append((int(costs.values[sample]), position, sample))
        for (residue, stream), members in classes.items():
            in_order = [sample for _, _, sample in sorted(members)]
            places = [position for _, position, _ in sorted(members, key=lambda member: member[1])]
            assert sorted(after[places].tolist()) == sorted(in_order)
            assert {position % parts for position in places} == {residue}
            # Batches that come one after another in cost have rising costs.
            of_batch: dict[int, list[int]] = {}
            for position in places:
                of_batch.setdefault((position - begin) // size, []).append(int(costs.values[after[position]]))
            spans = sorted((min(found_), max(found_)) for found_ in of_batch.values())
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans)), (stream, spans)
    # The inverse, counts of streams, and any way to ask.
    for sample in range(0, total, 3):
        assert list(found.order.find(sample)) == (after == sample).nonzero()[0].tolist()
        assert list(found.order.find(sample, len(everything) // 2)) == [
            p for p in (after == sample).nonzero()[0].tolist() if p >= len(everything) // 2
        ]
    streams = plan.order.mixture.streams_of(after)
    for begin, end in ((0, len(after)), (len(after) // 3, len(after)), (1, max(1, len(after) - 1))):
        if begin <= end <= len(after):
            counts = found.order.stream_counts(begin, end)
            assert counts.tolist() == np.bincount(streams[begin:end], minlength=len(sizes)).tolist()


def test_batches_of_a_bucket_have_similar_costs_and_come_in_shuffled_order() -> None:
    costs = Costs(4096)
    run = run_of([[256] * 16], costs, bucket=16, shuffle=True, num_canonical_nodes=4)
    found = [costs.values[ids] for ids in batches(run, Topology(), 64)]
    assert max(float(np.ptp(one)) for one in found) < 250 < np.ptp(costs.values)
    means = [one.mean() for one in found[:16]]
    assert means != sorted(means)
    others = [costs.values[ids].mean() for ids in batches(run, Topology(), 64, epoch=1)[:16]]
    assert np.argsort(means).tolist() != np.argsort(others).tolist()


@pytest.mark.parametrize('balance', [None, 1, 2])
@pytest.mark.parametrize('batching', ['random', 'stratified'])
def test_every_topology_and_every_start_give_the_same_batches(balance: float | None, batching: str) -> None:
    sizes, size = [[37, 50], [64, 9, 20]], 24
    costs = Costs(180)

    def run() -> Run:
        how: dict[str, Any] = {'shuffle': True, 'num_canonical_nodes': 4, 'batching': batching}
        return run_of(sizes, costs, balance=balance, bucket=3, **how)

    expected = batches(run(), Topology(), size)
    worlds = itertools.cycle([(2, 1), (4, 2), (8, 4), (12, 1), (24, 4)])
    for start, (ranks, nodes) in zip([*range(0, 180, size), 0, 24], worlds, strict=False):
        parts = [
            batches(run(), Topology(rank=r, world_size=ranks, num_nodes=nodes), size, start=start) for r in range(ranks)
        ]
        joined = [sorted(itertools.chain(*rows)) for rows in zip(*parts, strict=True)]
        full = [sorted(batch) for batch in expected[start // size :]]
        assert joined[: 180 // size - start // size] == full[: 180 // size - start // size]
        # Each sample of the last batch is there, with padding at the end.
        assert set(joined[-1]) == set(full[-1])


@given(
    seed=st.integers(0, 50), ranks=st.sampled_from([1, 2, 4, 8]), rows=st.integers(1, 8), power=st.sampled_from([1, 2])
)
@settings(max_examples=scaled(40))
def test_balanced_shares_have_equal_counts_and_smaller_sums(seed: int, ranks: int, rows: int, power: float) -> None:
    size = ranks * rows
    costs = Costs(4 * size, seed)
    run = run_of([[4 * size]], costs, balance=power, shuffle=True)
    plain = run_of([[4 * size]], costs, shuffle=True)
    found = [batches(run, Topology(rank=r, world_size=ranks), size) for r in range(ranks)]
    dealt = [batches(plain, Topology(rank=r, world_size=ranks), size) for r in range(ranks)]
    for k in range(4):
        ours, theirs = [one[k] for one in found], [one[k] for one in dealt]
        assert Counter(itertools.chain(*ours)) == Counter(itertools.chain(*theirs))
        assert {len(one) for one in ours} == {rows}
        # The rule, slowly: the longest first, to the share with the least that has room.
        shares: list[list[int]] = [[] for _ in range(ranks)]
        order = {sample: place for place, sample in enumerate(batches(plain, Topology(), size)[k])}
        for sample in sorted(order, key=lambda s: (-costs.values[s], order[s])):
            open_ = [r for r in range(ranks) if len(shares[r]) < rows]
            least = min(open_, key=lambda r: (sum(float(costs.values[s]) ** power for s in shares[r]), r))
            shares[least].append(sample)
        assert sorted(map(sorted, ours)) == sorted(map(sorted, shares))


def test_balance_makes_ranks_equal() -> None:
    rng = np.random.default_rng(0)
    costs = Costs(8 * 32 * 10)
    costs.values = np.exp(rng.normal(5, 1, len(costs.values))).astype(np.int64)
    ratios: dict[float | None, float] = {}
    for balance in (None, 1.0):
        run = run_of([[len(costs.values)]], costs, balance=balance, shuffle=True)
        sums = [
            [costs.values[ids].sum() for ids in batches(run, Topology(rank=r, world_size=8), 256)] for r in range(8)
        ]
        ratios[balance] = float(np.mean(np.max(sums, 0) / np.mean(sums, 0)))
    assert ratios[1.0] < 1.01 < 1.2 < (ratios[None] or 0)


def test_skipped_samples_leave_batches_their_windows() -> None:
    costs = Costs(4096)
    streams = [StreamSize(name='a', shard_sizes=np.full(16, 256))]
    run = Run.of(streams, OrderConfig(shuffle=True, bucket=16), costs=costs, skip=parse_skip([(0, 3)]))
    found = [costs.values[ids] for ids in batches(run, Topology(), 64)]
    assert len(found) == 63  # the whole batch is skipped
    assert max(float(np.ptp(one)) for one in found) < 250


def test_plans_are_those_of_balance() -> None:
    run = run_of([[64]], Costs(64), balance=1, shuffle=True)
    assert isinstance(run.plan(0, 0, BatchSpec(8, Topology(), 'repeat')), BalancedPlan)


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ({'bucket': 0}, 'bucket must be an int of at least 1'),
        ({'bucket': 1 << 40}, 'bucket must be at most'),
        ({'bucket': 2, 'batching': 'per_stream'}, '`bucket` needs the native order'),
        ({'bucket': 2, 'algorithm': 'py1e'}, '`bucket` needs the native order'),
        ({'balance': 0}, 'is the power of the cost'),
        ({'balance': True}, 'is the power of the cost'),
    ],
)
def test_settings_that_cannot_be_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_of([[64]], Costs(64), **how)


def test_balance_refuses_other_orders_and_costs_are_needed() -> None:
    others: list[dict[str, Any]] = [{'algorithm': 'py1e', 'shuffle': True}, {'batching': 'per_stream'}]
    for how in others:
        with pytest.raises(ConfigError, match='`balance` needs the native order'):
            run_of([[64]], Costs(64), balance=1, **how)
    with pytest.raises(ConfigError, match='need costs of samples'):
        Run.of([StreamSize(name='a', shard_sizes=np.array([8]))], OrderConfig(bucket=2))
