"""The native order's own vectors: the order of a run is the same on every platform for ever.

``python -m tests.support.orders.native_vectors`` adds new cases to tests/data/order/native.json. To write others anew
is to break every run that is under way. States pin an algorithm by its name: another sequence is another algorithm.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.order import Mixture, Order, OrderConfig, ResumeState, Schedule, StreamSize, make_order
from headrace.order.resume import resume

FILE = Path(__file__).parents[2] / 'data/order/native.json'
THREE = {'web': [40, 0, 7, 90, 33], 'code': [25] * 6, 'math': [11]}


def mixture(weights: dict[str, dict[str, Any]], **options: Any) -> Mixture:
    """Streams of THREE with weights."""
    return Mixture.resolve([StreamSize(name=n, shard_sizes=THREE[n], **w) for n, w in weights.items()], **options)


def changed() -> Mixture:
    """A mixture that took over from another one at sample 100 of epoch 1."""
    before = mixture({'web': {}, 'code': {'repeat': 2}})
    config = OrderConfig(shuffle=True, num_canonical_nodes=4).resolve_defaults(before)
    state = ResumeState.of(config, before, epoch=1, sample_in_epoch=100)
    now = mixture({'code': {'repeat': 0.5}, 'math': {'repeat': 9}, 'web': {}})
    return resume(state, config, now, may_change_mixture=True)[0]


def few_streams() -> Iterator[tuple[str, Order, np.ndarray]]:
    """Name, order and positions of each case."""
    plain = {name: {} for name in THREE}
    ramp = Schedule.of(
        [{'at': 0, 'proportions': {'web': 1}}, {'at': 700, 'proportions': {'code': 2, 'math': 1}, 'change': 'linear'}]
    )
    mixtures: dict[str, Mixture] = {
        'one stream': mixture({'web': {}}),
        'three streams': mixture(plain),
        'weights': mixture({'web': {'repeat': 0.7}, 'code': {'repeat': 3}, 'math': {'repeat': 40}}),
        'proportions': mixture({name: {'proportion': i + 1} for i, name in enumerate(THREE)}, epoch_size=500),
        'stages': mixture({name: {'proportion': 1} for name in THREE}, when_exhausted='drop_stream'),
        'schedule': mixture(plain, epoch_size=300, schedule=ramp),
        'changed': changed(),
    }
    for name, mix in mixtures.items():
        for nodes in (1, 4):
            for batching in ('random', 'stratified'):
                for shuffle in (True, False):
                    if name == 'changed' and nodes == 1:
                        continue
                    size = 16 if batching == 'stratified' else None
                    config = OrderConfig(
                        shuffle=shuffle, seed=2**64 + nodes, num_canonical_nodes=nodes, block_size=60,
                        batching=batching, global_batch_size=size,
                    )  # fmt: skip
                    for epoch in (1, 7):
                        order = make_order(mix, config, epoch)
                        kind = f'{name}, {nodes} nodes, {batching}, {"shuffled" if shuffle else "stored"}, {epoch}'
                        yield kind, order, np.arange(order.first, len(order))
    large = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=[4000 + i] * 25_000) for i in range(10)])
    for batching, size in (('random', None), ('stratified', 1024)):
        config = OrderConfig(shuffle=True, batching=batching, global_batch_size=size)
        order = make_order(large, config, 3)
        positions = np.concatenate(
            [np.arange(begin, begin + 2048) for begin in (0, len(order) // 3, len(order) - 2048)]
        )
        yield f'a thousand million samples, {batching}', order, positions


def many_streams() -> Iterator[tuple[str, Order, np.ndarray]]:
    """Cases of so many streams that a window of their interleave is long: 80,000 slots, and 2 million of the last."""

    def streams(count: int, samples: int, shards: int = 250, **weights: Any) -> list[StreamSize]:
        return [
            StreamSize(name=f's{i}', shard_sizes=[samples + i] * shards, **{k: f(i) for k, f in weights.items()})
            for i in range(count)
        ]

    ramp = [
        {'at': 0, 'proportions': {f's{i}': 1 + i % 7 for i in range(90)}},
        {'at': 9_000_000, 'proportions': {f's{i}': 1 + i % 3 for i in range(100)}, 'change': 'linear'},
    ]
    mixtures: dict[str, tuple[Mixture, tuple[int | None, ...]]] = {
        '200 streams': (Mixture.resolve(streams(200, 3990)), (1, 4, None)),
        '300 weights': (Mixture.resolve(streams(300, 900, choose=lambda i: 1000 * (i % 5) ** 5)), (1, 8)),
        '100 stages': (
            Mixture.resolve(streams(100, 50, 20, proportion=lambda i: 1 + i % 4), when_exhausted='drop_stream'), (4,)
        ),
        '100 scheduled': (
            Mixture.resolve(streams(100, 400), epoch_size=4_000_000, schedule=Schedule.of(ramp)), (1, 4)
        ),
        '1,000 streams': (Mixture.resolve(streams(1000, 3990)), (8,)),
    }  # fmt: skip
    for (name, (mix, numbers)), batching in itertools.product(mixtures.items(), ('random', 'stratified')):
        for nodes in numbers:
            config = OrderConfig(
                shuffle=True, seed=7, num_canonical_nodes=nodes, batching=batching,
                global_batch_size=1024 if batching == 'stratified' else None,
            )  # fmt: skip
            order = make_order(mix, config, 1)
            size = len(order)
            runs = [np.arange(begin, begin + 700) for begin in (0, size // 3, size - 700)]
            positions = np.concatenate([*runs, np.arange(0, size, size // 40)])
            yield f'{name}, {nodes or "default"} nodes, {batching}', order, positions


def fixed_subsets() -> Iterator[tuple[str, Order, np.ndarray]]:
    """Cases of streams that each epoch takes in the same part."""
    weights = {'web': {'repeat': 0.7}, 'code': {'repeat': 3}, 'math': {'repeat': 4.5}}
    for nodes, granularity, shuffle in itertools.product((1, 4), (1, 8), (True, False)):
        config = OrderConfig(
            shuffle=shuffle, seed=5, num_canonical_nodes=nodes, block_size=60, sampling='fixed',
            sampling_granularity=granularity,
        )  # fmt: skip
        for epoch in (0, 7):
            order = make_order(mixture(weights), config, epoch)
            kind = f'fixed by {granularity}, {nodes} nodes, {"shuffled" if shuffle else "stored"}, {epoch}'
            yield kind, order, np.arange(len(order))


def one_stream_batches() -> Iterator[tuple[str, Order, np.ndarray]]:
    """Cases of batches, and of device batches, that are of one stream each."""
    ramp = [
        {'at': 0, 'proportions': {'web': 1}},
        {'at': 700, 'proportions': {'code': 2, 'math': 1}, 'change': 'linear'},
    ]
    mixtures = {
        'weights': mixture({'web': {'repeat': 0.7}, 'code': {'repeat': 3}, 'math': {'repeat': 40}}),
        'proportions': mixture({name: {'proportion': i + 1} for i, name in enumerate(THREE)}, epoch_size=500),
        'schedule': mixture({name: {} for name in THREE}, epoch_size=300, schedule=Schedule.of(ramp)),
        'changed': changed(),
    }
    for (name, mix), nodes, units, shuffle in itertools.product(mixtures.items(), (1, 4, 8), (1, 4), (True, False)):
        if name == 'changed' and nodes != 4:
            continue
        config = OrderConfig(
            shuffle=shuffle, seed=3, num_canonical_nodes=nodes, block_size=60, global_batch_size=16,
            batching='per_stream' if units == 1 else 'device_per_stream', device_batches=None if units == 1 else units,
        )  # fmt: skip
        for epoch in (1, 7):
            order = make_order(mix, config, epoch)
            kind = f'{name}, {nodes} nodes, {units} units, {"shuffled" if shuffle else "stored"}, {epoch}'
            yield kind, order, np.arange(order.first, len(order))
    large = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=[4000 + i] * 25_000) for i in range(10)])
    for units in (1, 64):
        config = OrderConfig(
            shuffle=True, batching='per_stream' if units == 1 else 'device_per_stream', global_batch_size=1024,
            device_batches=None if units == 1 else units,
        )  # fmt: skip
        order = make_order(large, config, 3)
        runs = [np.arange(begin, begin + 2048) for begin in (0, len(order) // 3, len(order) - 2048)]
        yield f'a thousand million samples, {units} units', order, np.concatenate(runs)


def free_stratified() -> Iterator[tuple[str, Order, np.ndarray]]:
    """Cases of stratified batches whose size the canonical nodes do not divide."""
    mixtures = {
        'weights': mixture({'web': {'repeat': 0.7}, 'code': {'repeat': 3}, 'math': {'repeat': 40}}),
        'stages': mixture({name: {'proportion': 1} for name in THREE}, when_exhausted='drop_stream'),
        'changed': changed(),
    }
    large = Mixture.resolve([StreamSize(name=f's{i}', shard_sizes=[4000 + i] * 25_000) for i in range(10)])
    for (name, mix), nodes, shuffle in itertools.product(mixtures.items(), (4, 9), (True, False)):
        if (name, nodes) == ('changed', 9):
            continue
        config = OrderConfig(
            shuffle=shuffle, seed=3, num_canonical_nodes=nodes, block_size=60, batching='stratified',
            global_batch_size=30,
        )  # fmt: skip
        for epoch in (1, 7):
            order = make_order(mix, config, epoch)
            kind = f'{name}, {nodes} nodes of 30, {"shuffled" if shuffle else "stored"}, {epoch}'
            yield kind, order, np.arange(order.first, len(order))
    config = OrderConfig(shuffle=True, num_canonical_nodes=64, batching='stratified', global_batch_size=1000)
    order = make_order(large, config, 3)
    runs = [np.arange(begin, begin + 2048) for begin in (0, len(order) // 3, len(order) - 2048)]
    yield 'a thousand million samples, 64 nodes of 1000', order, np.concatenate(runs)


def rests() -> Iterator[tuple[str, Order, np.ndarray]]:
    """Cases of a stream that draws what other nodes left, after a change to one draw an epoch."""
    for shuffle, at in itertools.product((True, False), (40, 110)):
        config = OrderConfig(shuffle=shuffle, seed=3, num_canonical_nodes=4, block_size=20)
        before = mixture({'code': {}, 'math': {'repeat': 12}})
        state = ResumeState.of(config, before, epoch=0, sample_in_epoch=at)
        now = mixture({'code': {}, 'math': {'choose': 1}}) if shuffle else mixture({'math': {'choose': 1}, 'code': {}})
        changed, _ = resume(state, config, now, may_change_mixture=True)
        orders = [make_order(changed, config, epoch) for epoch in range(1, 31)]
        for order in orders[::10]:
            name = f'rest of {at}, {"shuffled" if shuffle else "stored"}, {order.epoch}'
            yield name, order, np.arange(len(order))


def cases() -> Iterator[tuple[str, Order, np.ndarray]]:
    for some in KINDS:
        yield from some()


KINDS = (few_streams, many_streams, fixed_subsets, one_stream_batches, free_stratified, rests)
"""In the order of the file: new ones come last."""


def recorded(order: Order, positions: np.ndarray) -> dict[str, Any]:
    """The record of a case: a digest of the ids, as little-endian int64, and the first of them."""
    ids = order.at(positions)
    digest = hashlib.blake2b(ids.astype('<i8').tobytes(), digest_size=16).hexdigest()
    return {'ids': len(ids), 'digest': digest, 'first': ids[:8].tolist()}


if __name__ == '__main__':
    known = json.loads(FILE.read_text())
    known |= {name: recorded(*case) for name, *case in cases() if name not in known}
    FILE.write_text(json.dumps(known, indent=1) + '\n')
