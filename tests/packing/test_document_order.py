"""Another mixture takes over from the documents that lanes have placed: none is lost, none comes twice."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StreamingDataLoader
from headrace.errors import ResumeError
from headrace.order.topology import World
from tests.support.packings.changed_mixtures import (
    LANES,
    MIXTURES,
    SIZE,
    WINDOW,
    Document,
    Leg,
    make,
    tokens_of_document,
    train,
    trained,
)
from tests.support.packings.packed_model import pieces_of_rows
from tests.support.suite.example_counts import scaled

TOPOLOGIES = ((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (6, 3), (12, 4))


class Model:
    """A run in lists: its documents with their places, and what the lanes make of them."""

    def __init__(self, lengths: dict[str, list[int]], first: StreamingDataLoader, method: str) -> None:
        self.lengths, self.method = lengths, method
        self.window = max(min(WINDOW, first.dataset.run.documents.mixture.epoch_size // LANES), 1)
        self.documents = list(documents_of(first, lengths))
        self.taken: dict[int, int] = {}

    def rows(self, count: int) -> list[list[int]]:
        """The first sequences of the run; `taken` has the documents of each lane that they need then."""
        self.taken = Counter()

        def of_lane(lane: int) -> Iterator[list[int]]:
            own = [document for (_, position), document in self.documents if position % LANES == lane]

            def lengths() -> Iterator[int]:
                for stream, number in own:
                    self.taken[lane] += 1
                    yield self.lengths[stream][number]

            for row in pieces_of_rows(lengths(), SIZE, self.method, self.window, 1 + lane * self.window // LANES):
                yield [token for number, begin, end in row for token in tokens_of_document(own[number], end)[begin:]]

        each = [of_lane(lane) for lane in range(LANES)]
        return [next(each[number % LANES]) for number in range(count)]

    def change(self, count: int, now: StreamingDataLoader) -> None:
        """Let another mixture take over at a sequence: after the last document that a lane has taken by then."""
        self.rows(count)
        last = (-1, 0)
        for lane, taken in self.taken.items():
            places = [place for place, _ in self.documents if place[1] % LANES == lane]
            last = max(last, places[taken - 1])
        kept = [(place, document) for place, document in self.documents if place <= last]
        self.documents = kept + list(documents_of(now, self.lengths))
        drawn = defaultdict(list)
        for _, (stream, number) in self.documents:
            drawn[stream].append(number)
        for stream, numbers in drawn.items():
            size = len(self.lengths[stream])
            for begin in range(0, len(numbers) - size, size):  # whole passes: each document once
                assert sorted(numbers[begin : begin + size]) == list(range(size))


def documents_of(
    loader: StreamingDataLoader, lengths: dict[str, list[int]]
) -> Iterator[tuple[tuple[int, int], Document]]:
    """Places and names of the documents of a mixture, from where it took over."""
    run = loader.dataset.run.documents.with_defaults(World(1, LANES))
    first = run.mixture.takeover.epoch
    for epoch in range(first, first + 12):
        order = run.order(epoch, World(1, LANES))
        for position, sample_id in zip(
            range(order.first, len(order)), order.at(np.arange(order.first, len(order))).tolist(), strict=True
        ):
            stream = int(run.mixture.streams_of(np.array(sample_id)))
            name = run.mixture.streams[stream].name
            yield (epoch, position), (name, sample_id - int(run.mixture.sample_offsets[stream]))


def check(
    data: tuple[Path, dict[str, list[int]]], legs: list[Leg], topologies: list[tuple[int, int]], seed: int
) -> None:
    """Train the legs one after another, each from a state of the one before on another topology."""
    mixed_folder, lengths = data
    draw = random.Random(seed)
    model = Model(lengths, make(mixed_folder, legs[0]), legs[0].options.get('method', 'best_fit'))
    state, trained = None, 0
    for number, (leg, (ranks, nodes)) in enumerate(zip(legs, topologies, strict=True)):
        is_change = number > 0 and legs[number - 1][0] != leg[0]
        if is_change:
            resumed = make(mixed_folder, leg, change=True)
            resumed.load_state_dict(state)
            model.change(trained, resumed)
        found, states = train(mixed_folder, leg, state, ranks, nodes, change=is_change, exchange=draw.random() < 0.5)
        rows = model.rows(trained + leg.steps * leg.batch)
        assert found == rows[trained:]
        trained, state = len(rows), draw.choice(states)


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
def test_weights_change_and_streams_come_and_rest(data, method):
    first = Leg(MIXTURES[0], 3, options={'method': method})
    second = Leg(MIXTURES[1], 2, options={'method': method})
    third = Leg(MIXTURES[3], 2, options={'method': method})
    check(data, [first, second, second._replace(batch=24), third], [(2, 1), (3, 1), (4, 2), (1, 1)], seed=1)


@pytest.fixture(scope='module')
def changed(data) -> tuple[list[Any], list[list[int]]]:
    """States of the ranks before a change of the mixture, with different cuts, and the model's sequences after it."""
    mixed_folder, lengths = data
    before, after = Leg(MIXTURES[0], 2), Leg(MIXTURES[1], 2)
    states = train(mixed_folder, before, None, 2, 1, change=False)[1]
    model = Model(lengths, make(mixed_folder, before), 'best_fit')
    resumed = make(mixed_folder, after, change=True)
    resumed.load_state_dict(states[0])
    model.change(24, resumed)
    return states, model.rows(48)[24:]


@pytest.mark.parametrize('topology', TOPOLOGIES, ids=str)
def test_each_topology_takes_over_at_the_same_document(data, changed, topology):
    states, expected = changed
    state = states[topology[0] % 2]
    assert train(data[0], Leg(MIXTURES[1], 2), state, *topology, change=True)[0] == expected


@settings(max_examples=scaled(4))
@given(
    numbers=st.lists(st.integers(0, len(MIXTURES) - 1), min_size=3, max_size=3),
    steps=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    topologies=st.lists(st.sampled_from(TOPOLOGIES[:4]), min_size=3, max_size=3),
    method=st.sampled_from(['best_fit', 'concatenate']),
    batching=st.sampled_from(['random', 'stratified']),
    seed=st.integers(0, 100),
)
def test_runs_are_those_of_the_slow_model(data, numbers, steps, topologies, method, batching, seed):
    options = {'method': method, 'batching_method': batching}
    legs = [Leg(MIXTURES[number], step, options=options) for number, step in zip(numbers, steps, strict=True)]
    check(data, legs, topologies, seed)


def test_a_stream_whose_documents_lanes_hold_is_not_removed(data):
    mixed_folder, _ = data
    state = trained(mixed_folder, Leg({name: {'proportion': 1} for name in 'abc'}, 2), None)
    without = Leg({name: {'proportion': 1} for name in 'ac'}, 4)
    with pytest.raises(ResumeError, match=r"but stream 'b' is missing. Keep it .*`proportion: 0`"):
        make(mixed_folder, without, change=True).load_state_dict(state)
    with pytest.raises(ResumeError, match=r"pass on_mixture_change='continue'"):
        make(mixed_folder, without).load_state_dict(state)
    resting = Leg({'a': {'proportion': 1}, 'b': {'proportion': 0}, 'c': {'proportion': 1}}, 60)
    state = trained(mixed_folder, resting, state, change=True)
    assert [entry.keys() for entry in json.loads(state['config'])['earlier']] == [
        {'begin', 'end', 'documents', 'mixture'}
    ]
    # All lanes have passed the change, so nobody needs the stream any more.
    state = trained(mixed_folder, without, state, change=True)
    earlier = json.loads(state['config'])['earlier']
    assert 'mixture' not in earlier[0]
    trained(mixed_folder, without, state)


def test_a_change_before_the_first_batch_begins_with_the_new_mixture(data):
    mixed_folder, lengths = data
    before, after = (Leg(MIXTURES[number], 2) for number in (0, 1))
    for steps in (None, 0):
        loader = make(mixed_folder, before)
        if steps is not None:
            iter(loader)
        state = loader.state_dict()
        rows, states = train(mixed_folder, after, state, 1, 1, change=True)
        assert rows == train(mixed_folder, after, None, 1, 1, change=False)[0]
        assert 'earlier' not in json.loads(states[0]['config'])
        assert rows == Model(lengths, make(mixed_folder, after), 'best_fit').rows(24)


@pytest.mark.parametrize(
    'broken',
    [
        'x',
        [[]],
        [{}],
        [{'begin': [0, 0], 'end': [0, 0], 'documents': 112}],
        [{'begin': [0, 0], 'end': [0, 9], 'documents': 3}],
        [{'begin': [0, 0], 'end': [10**30, 9], 'documents': 112}],
        [{'begin': [0, 0], 'end': [9, 9], 'documents': 112}],
        [{'begin': [0, 0], 'end': [0, 9], 'documents': 112, 'mixture': {'streams': []}}],
        [{'begin': [0, 1], 'end': [0, 9], 'documents': 112, 'mixture': 0}],
    ],
    ids=str,
)
def test_damaged_records_are_refused(data, broken):
    mixed_folder, _ = data
    state = trained(mixed_folder, Leg(MIXTURES[1], 2), trained(mixed_folder, Leg(MIXTURES[0], 2), None), change=True)
    config = json.loads(state['config'])
    with pytest.raises(ResumeError, match='The checkpoint is damaged'):
        make(mixed_folder, Leg(MIXTURES[1], 1)).load_state_dict(
            {**state, 'config': json.dumps({**config, 'earlier': broken})}
        )


def test_skipped_documents_come_back_with_a_change(data):
    mixed_folder, _ = data
    leg = Leg(MIXTURES[0], 2)
    state = trained(mixed_folder, leg._replace(options={'skip': [['3doc', '6doc']]}), None)
    with pytest.raises(ResumeError, match=r"\[\['3doc', '6doc'\]\].*on_mixture_change='continue'"):
        make(mixed_folder, leg).load_state_dict(state)
    make(mixed_folder, leg, change=True).load_state_dict(state)
