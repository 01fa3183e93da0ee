"""Padding and balance with samples of different lengths: `bucket`, `batch_cost` and `balance` beside other samplers.

    python benchmarks/lengths.py [--samples 200000] [--ranks 8] [--rows 32] [--json OUT]

No data are read: lengths are drawn, and each contender says which samples each rank gets in each step. Chat-like
lengths are log-normal with a sigma of 1. Speech-like ones are log-normal with a sigma of 0.35, cut at 1 and 35 s.
"padding" is the share of padded tokens if each rank pads its own rows to its longest. "max/mean" compares the rank with
the largest sum of costs to the mean rank, averaged over steps; "squared" does so for squared costs.

- random: headrace's order as it is.
- batch_cost: the budget is Lhotse's of all ranks, but at least that of a row of the longest sample for each rank. The
  most rows are 8 times those of other contenders, and so is a window.
- group_by_length: `LengthGroupedSampler` of transformers, whose batches are cut into ranks in turn.
- Lhotse: `DynamicBucketingSampler` with 30 duration buckets, if it is installed; each rank has its own, of the same
  mean number of rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.order import OrderConfig, StreamSize, Topology
from headrace.order.config import BatchCost
from headrace.order.length_waste import padding_share, slowest_share
from headrace.order.run import Run
from headrace.order.topology import BatchSpec

Steps = list[list[np.ndarray[Any, Any]]]
"""By step and rank, the lengths of the rows."""

Contender = Callable[[np.ndarray[Any, Any], int, int], Steps]
"""(lengths, ranks, rows of a rank) -> an epoch's steps."""


class Costs:
    digest = ''

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.largest = values, int(values.max())

    def __call__(self, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.values[ids]


def lengths(kind: str, samples: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    if kind == 'chat':
        return np.clip(np.exp(rng.normal(5.5, 1.0, samples)), 1, 1 << 20).astype(np.int64)
    return (np.clip(np.exp(rng.normal(2.5, 0.35, samples)), 1, 35) * 100).astype(np.int64)  # frames of 10 ms


def ours(values: np.ndarray[Any, Any], ranks: int, rows: int, **how: Any) -> Steps:
    balance = how.pop('balance', None)
    if 'batch_cost' in how:
        budget = max(int(values.mean() * rows * ranks), ranks * int(values.max()))
        how['batch_cost'], rows = BatchCost(budget, ranks), rows * 8
    stream = StreamSize(name='a', shard_sizes=np.full(len(values) // 1000, 1000))
    run = Run.of(
        [stream], OrderConfig(shuffle=True, num_canonical_nodes=8, **how), costs=Costs(values), balance=balance
    )
    plans = [
        run.plan(0, 0, BatchSpec(ranks * rows, Topology(rank=rank, world_size=ranks), 'drop')) for rank in range(ranks)
    ]
    return [[values[plan.ids(k)] for plan in plans] for k in range(plans[0].num_batches)]


def grouped(values: np.ndarray[Any, Any], ranks: int, rows: int) -> Steps:
    from transformers.trainer_pt_utils import LengthGroupedSampler

    order = np.array(list(LengthGroupedSampler(rows * ranks, lengths=values.tolist())))
    whole = order[: len(order) // (ranks * rows) * ranks * rows].reshape(-1, rows, ranks)
    return [[values[step[:, rank]] for rank in range(ranks)] for step in whole]


def lhotse(values: np.ndarray[Any, Any], ranks: int, rows: int) -> Steps:
    from lhotse import CutSet, MonoCut, Recording  # pyright: ignore[reportMissingImports]
    from lhotse.dataset import DynamicBucketingSampler  # pyright: ignore[reportMissingImports]

    def cut(number: int, length: int) -> Any:
        recording = Recording(
            id=str(number), sources=[], sampling_rate=1000, num_samples=length, duration=length / 1000
        )
        return MonoCut(id=str(number), start=0, duration=length / 1000, channel=0, recording=recording)

    cuts = CutSet.from_cuts(cut(number, length) for number, length in enumerate(values.tolist()))
    longest = float(np.mean(values)) / 1000 * rows  # seconds of a batch, as many rows on average
    found = []
    for rank in range(ranks):
        sampler = DynamicBucketingSampler(
            cuts, max_duration=longest, num_buckets=30, shuffle=True, world_size=ranks, rank=rank, seed=0
        )
        found.append([np.array([round(one.duration * 1000) for one in batch]) for batch in sampler])
    return [list(step) for step in zip(*found, strict=False)]


def figures(steps: Steps) -> dict[str, float]:
    return {
        'padding': padding_share([rows for step in steps for rows in step]),
        'max/mean': slowest_share(steps),
        'squared': slowest_share(steps, 2),
        'steps': len(steps),
    }


def _ours(**how: Any) -> Contender:
    return lambda values, ranks, rows: ours(values, ranks, rows, **how)


CONTENDERS: dict[str, Contender] = {
    'random': _ours(),
    'balance 1': _ours(balance=1.0),
    'balance 2': _ours(balance=2.0),
    **{f'bucket {n}': _ours(bucket=n) for n in (16, 64, 256)},
    'bucket 64, balance 1': _ours(bucket=64, balance=1.0),
    'bucket 64, balance 2': _ours(bucket=64, balance=2.0),
    'batch_cost, bucket 8': _ours(batch_cost=True, bucket=8),
    'batch_cost, bucket 64': _ours(batch_cost=True, bucket=64),
    'batch_cost, bucket 64, balance 1': _ours(batch_cost=True, bucket=64, balance=1.0),
    'group_by_length': grouped,
    'Lhotse': lhotse,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--samples', type=int, default=200_000)
    parser.add_argument('--ranks', type=int, default=8)
    parser.add_argument('--rows', type=int, default=32)
    parser.add_argument('--json', type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind in ('chat', 'speech'):
        values = lengths(kind, arguments.samples)
        print(f'\n{kind}: {arguments.samples:,} samples, {arguments.ranks} ranks x {arguments.rows} rows\n')
        print('| sampler | padding | max/mean | squared |\n|---|---|---|---|')
        for name, contender in CONTENDERS.items():
            try:
                one = figures(contender(values, arguments.ranks, arguments.rows))
            except ImportError as error:
                print(f'| {name} | not installed: {error.name} | | |')
                continue
            found.setdefault(kind, {})[name] = one
            print(f'| {name} | {one["padding"]:.1%} | {one["max/mean"]:.3f} | {one["squared"]:.3f} |', flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == '__main__':
    main()
