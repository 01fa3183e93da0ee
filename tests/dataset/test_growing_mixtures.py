"""Mixtures of which some streams grow: each stream is passes over its samples, with the draws of the mixture."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset import sequence
from headrace.order import Mixture, StreamSize
from tests.support.datasets.growing import append
from tests.support.orders.order_cases import examples

FIRST = {'old': 0, 'web': 1000, 'new': 2000}
KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    'proportion': ([{'proportion': 2}, {'proportion': 1}, {'proportion': 0.5}], {}),
    'choose': ([{'choose': 13}, {'choose': 20}, {}], {}),
    'repeat': ([{'repeat': 0.3}, {'repeat': 2.5}, {'repeat': 1}], {}),
    'epoch_size': ([{}, {}, {}], {'epoch_size': 31}),
    'drop_stream': ([{'proportion': 1}, {'proportion': 1}, {'proportion': 1}], {'when_exhausted': 'drop_stream'}),
    'stop': ([{'proportion': 1}, {'proportion': 1}, {'proportion': 1}], {'when_exhausted': 'stop'}),
    'stratified': ([{'proportion': 2}, {'proportion': 1}, {'proportion': 0.5}], {'batching_method': 'stratified'}),
    'per_stream': ([{'proportion': 2}, {'proportion': 1}, {'proportion': 1}], {'batching_method': 'per_stream'}),
    'stored': ([{'repeat': 0.3}, {'choose': 12}, {}], {'shuffle': False}),
    'schedule': (
        [{}, {}, {}],
        {
            'schedule': [
                {'at': 0, 'proportions': {'old': 1}},
                {'at': 150, 'proportions': {'web': 1, 'new': 1}, 'change': 'linear'},
            ]
        },
    ),
}


def ranks_of(folder: Path, kind: str, ranks: int, cache: str) -> list[StreamingDataLoader]:
    weights, given = KINDS[kind]
    options: dict[str, Any] = {'shuffle': True, 'num_canonical_nodes': 1, **given}
    made: list[StreamingDataLoader] = []
    for rank in range(ranks):
        streams = [
            Stream(remote=str(folder / name), local=str(folder / cache / name), name=name, **weight)
            for name, weight in zip(FIRST, weights, strict=True)
        ]
        dataset = StreamingDataset(streams=streams, batch_size=4 // ranks, on_growth='next_pass', **options)
        made.append(StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks)))
    return made


def batches(loaders: list[StreamingDataLoader]) -> Iterator[list[int]]:
    """The global batches of the next pass."""
    for parts in zip(*loaders, strict=True):
        yield [int(number) for part in parts for number in part['id']]


class SlowModel:
    """What is left of each stream's pass; a stream that has grown begins another one."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.left: dict[str, set[int]] = {}

    def begin(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            if size != self.sizes.get(name):
                self.left[name] = set()
        self.sizes = dict(sizes)

    def draw(self, number: int) -> str:
        name = max((name for name in FIRST if FIRST[name] <= number), key=lambda name: FIRST[name])
        left = self.left[name] = self.left[name] or set(range(FIRST[name], FIRST[name] + self.sizes[name]))
        left.remove(number)
        return name


@examples(0.15)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_streams_that_grow_and_that_do_not_are_passes(tmp_path_factory: Any, kind: str, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp('growing')
    sizes = {'old': 40, 'web': 25, 'new': 5}
    for name, size in sizes.items():
        append(folder / name, FIRST[name], size)
    weights, options = KINDS[kind]
    model = SlowModel()
    with mock.patch.object(sequence, 'has_group', return_value=True):
        whole, killed = ranks_of(folder, kind, 1, 'a'), ranks_of(folder, kind, 1, 'b')
        for epoch in range(4):
            model.begin(sizes)
            passing, again = batches(whole), batches(killed)
            found, second = [next(passing)], [next(again)]
            for name in ('web', 'new'):
                count = data.draw(st.sampled_from([0, 0, 3, 14]))
                if count:  # in the middle of the epoch
                    append(folder / name, FIRST[name] + sizes[name], count)
                    sizes[name] += count
            found += passing
            assert whole[0].plan(epoch).end(len(found) - 1) == whole[0].dataset.epoch_size
            at = data.draw(st.integers(1, len(found)))
            second += itertools.islice(again, at - 1)
            state = killed[0].state_dict()
            killed = ranks_of(folder, kind, data.draw(st.sampled_from([1, 2, 4])), 'b')
            for loader in killed:
                loader.load_state_dict(state)
            if at < len(found):
                second += batches(killed)
            assert list(map(sorted, second[:-1])) == list(map(sorted, found[:-1]))
            assert set(second[-1]) >= set(found[-1])  # ranks repeat samples there
            assert len(second) == len(found)
            drawn = [model.draw(number) for number in list(itertools.chain(*found))[: whole[0].dataset.epoch_size]]
            if kind not in ('schedule', 'per_stream'):  # whose batches are whole
                streams = [
                    StreamSize(name=name, shard_sizes=np.array([size]), **weight)
                    for (name, size), weight in zip(model.sizes.items(), weights, strict=True)
                ]
                rules: dict[str, Any] = {
                    name: value for name, value in options.items() if name in ('epoch_size', 'when_exhausted')
                }
                mixture = Mixture.resolve(streams, seed=9176, **rules)
                assert tuple(drawn.count(name) for name in FIRST) == mixture.choose
