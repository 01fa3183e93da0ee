"""Decided mixtures: a run, its states and a replay have one sequence, which is that of takeovers at the decisions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, ResumeError
from headrace.order import BatchSpec, Mixture, OrderConfig, ResumeState, Run, Schedule, StreamSize, Topology, make_order
from headrace.order.decisions import Decision, decisions_of
from headrace.order.mixture.schedule import apportion
from headrace.order.mixture.takeover import Takeover
from headrace.order.native.order import NativeOrder
from headrace.order.resume import resume
from headrace.order.topology import World
from tests.support.orders.order_cases import examples

DATA = {'a': [9, 40, 3], 'b': [17, 0, 20], 'c': [5]}
NAMES = sorted(DATA)
CONFIG = OrderConfig(shuffle=True, seed=3, num_canonical_nodes=2, block_size=20)
STRATIFIED = replace(CONFIG, batching='stratified', global_batch_size=4)
WORLD = World(1, 4)


def run_of(decisions: Any = (), *, config: OrderConfig = CONFIG, weights: Any = (1, 1, 0), **options: Any) -> Run:
    streams = [
        StreamSize(name=name, shard_sizes=np.array(sizes), proportion=weight)
        for (name, sizes), weight in zip(DATA.items(), weights, strict=True)
    ]
    return Run.of(streams, config, decisions=decisions_of(decisions), **options)


def copied(state: ResumeState) -> ResumeState:
    return ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))


def plan_of(run: Run, epoch: int, start: int):
    return run.plan(epoch, start, BatchSpec(4, Topology(), 'repeat'))


class Takeovers:
    """The slow model: a state at each decision, from which another mixture goes on as at a resume by hand."""

    def __init__(self, run: Run, decided: list[tuple[tuple[int, int], dict[str, float]]], config: OrderConfig) -> None:
        mixture = run.mixture
        self.stages: list[tuple[tuple[int, int], Mixture]] = [((0, 0), mixture)]
        self.config = config.resolve_defaults(mixture)
        for (epoch, sample), shares in decided:
            state = ResumeState.of(self.config, mixture, epoch=epoch, sample_in_epoch=sample)
            choose = tuple(
                apportion(
                    mixture.epoch_size, [round(shares[s.name] / sum(shares.values()) * 2**40) for s in mixture.streams]
                )
            )
            to = replace(mixture, choose=choose, stages=(), takeover=Takeover())
            if choose == mixture.choose:  # no other mixture to a resume, but decided anew
                mixture = replace(to, takeover=NativeOrder(mixture, self.config, epoch).takeover_at(sample))
            else:
                mixture, state = resume(copied(state), self.config, to, may_change_mixture=True)
            self.stages.append(((epoch, sample), mixture))

    def ids(self, epoch: int, size: int) -> list[int]:
        found, orders = [], {}
        for position in range(size):
            number = max(i for i, (place, _) in enumerate(self.stages) if place <= (epoch, position))
            if number not in orders:
                orders[number] = make_order(self.stages[number][1], self.config, epoch)
            found += orders[number].at(np.array([position])).tolist()
        return found


SHARES = st.fixed_dictionaries({name: st.sampled_from([0, 0.1, 1, 2.5]) for name in NAMES}).filter(
    lambda shares: sum(shares.values())
)
EPOCHS = 2


@examples(0.2)
@given(
    st.lists(st.tuples(st.integers(0, 150), SHARES), min_size=1, max_size=5),
    st.sampled_from([replace(STRATIFIED, shuffle=False), CONFIG, STRATIFIED]),
    st.data(),
)
def test_states_and_replays_have_the_sequence_of_takeovers(
    drawn: list[tuple[int, dict[str, float]]], config: OrderConfig, data: st.DataObject
) -> None:
    run, size = run_of(config=config), run_of().mixture.epoch_size
    decided = sorted(((divmod(at, size), shares) for at, shares in drawn), key=lambda one: one[0])
    model = Takeovers(run, decided, config)
    expected = [model.ids(epoch, size) for epoch in range(EPOCHS)]
    states: list[ResumeState] = []
    for place, shares in decided:
        states.append(copied(run.state(*place, WORLD)))  # from before the decision
        run = run.with_decision(place, shares, 'test', WORLD)
        later = data.draw(st.integers(place[1], size))
        states += [copied(run.state(place[0], later, WORLD)), copied(run.state(0, 0, WORLD))]
    for replayed in (run, run_of([one.to_json() for one in run.decisions], config=config)):
        assert [replayed.order(epoch, WORLD).at(np.arange(size)).tolist() for epoch in range(EPOCHS)] == expected
        assert copied(replayed.state(1, 7, WORLD)) == copied(run.state(1, 7, WORLD))
    sample, start = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    found = [start + i for i, one in enumerate(expected[1][start:]) if one == sample]
    assert list(run.order(1, WORLD).find(sample, start)) == found
    for state in states:
        resumed = run_of(config=config)
        resumed, (epoch, start) = resumed.resumed(state, WORLD)
        for place, shares in decided[len(resumed.decisions) :]:
            resumed = resumed.with_decision(place, shares, 'test', WORLD)
        assert resumed.decisions == run.decisions
        while epoch < EPOCHS:
            order = resumed.order(epoch, WORLD)
            assert order.at(np.arange(start, size)).tolist() == expected[epoch][start:]
            counts = np.bincount(run.mixture.streams_of(np.array(expected[epoch][start:], int)), minlength=3)
            assert order.stream_counts(start, size).tolist() == counts.tolist()
            epoch, start = epoch + 1, 0


def test_decisions_take_effect_where_windows_and_epochs_end() -> None:
    class Lengths:
        digest, largest = 'lengths', 9

        def __call__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return ids % 7 + 2

    config = replace(CONFIG, bucket=3)
    run = run_of(config=config, costs=Lengths())
    size = run.mixture.epoch_size
    before = run.order(0, WORLD).at(np.arange(size))
    run = run.with_decision((0, 16), dict(zip(NAMES, (0, 0, 1), strict=True)), 'test', WORLD)
    at = run.decisions[-1].at
    assert at == 24  # windows of 12
    now = run.order(0, WORLD)
    assert now.at(np.arange(24)).tolist() == before[:24].tolist()
    assert set(now.at(np.arange(24, size))) == set(range(size - 5, size))  # until the next decision
    assert [position for position, _ in now.mixtures] == [0, 24]
    run = run.with_decision((0, 50), dict(zip(NAMES, (1, 1, 1), strict=True)), 'test', WORLD)  # at 60
    now = run.order(0, WORLD)
    later = run_of(config=config, costs=Lengths())
    later, place_of_state = later.resumed(copied(run.state(0, 64, WORLD)), WORLD)
    assert place_of_state == (0, 64)
    assert later.order(0, WORLD).at(np.arange(64, size)).tolist() == now.at(np.arange(64, size)).tolist()
    resumed = run_of(config=config, costs=Lengths())
    resumed, place_of_state = resumed.resumed(copied(run.state(0, 16, WORLD)), WORLD)
    assert place_of_state == (0, 16)
    assert resumed.order(0, WORLD).at(np.arange(16, size)).tolist() == now.at(np.arange(16, size)).tolist()
    with pytest.raises(ConfigError, match='where windows or epochs end, but a decision is at sample 24'):
        run_of(run.decisions, config=replace(CONFIG, bucket=5), costs=Lengths()).order(0, WORLD)


def test_padding_is_that_of_a_run_that_resumes_at_the_decision() -> None:
    run, resumed = run_of(epoch_size=93), run_of(epoch_size=93)
    run = run.with_decision((0, 92), {'a': 1, 'b': 1, 'c': 1}, 'test', WORLD)
    resumed, _ = resumed.resumed(copied(run.state(0, 92, WORLD)), WORLD)
    for rank in range(4):
        batches = BatchSpec(4, Topology(rank=rank, world_size=4), 'repeat')
        assert run.plan(0, 0, batches).ids(23).tolist() == resumed.plan(0, 92, batches).ids(0).tolist()


def test_another_process_follows_what_is_decided_and_what_is_decided_anew() -> None:
    run, other = run_of(), run_of()
    run = run.with_decision((0, 12), {'a': 0, 'b': 1, 'c': 1}, 'test', WORLD)
    before = run.state(0, 14, WORLD)
    for shares in ({'a': 1, 'b': 0, 'c': 0}, {'a': 0, 'b': 0, 'c': 1}):
        run, _ = run.resumed(copied(before), WORLD)
        for place in ((0, 16), (0, 40), (1, 3)):
            run = run.with_decision(place, shares, 'test', WORLD)
            other = other.with_decisions(run.decisions)
            for epoch in (0, 1):
                positions = np.arange(14 if epoch == 0 else 0, 94)
                assert (
                    other.order(epoch, WORLD).at(positions).tolist() == run.order(epoch, WORLD).at(positions).tolist()
                )
    arrays = {id(stage.shard_sizes) for stage in run._derived.mixtures}
    assert len(arrays) == 1


def test_the_parts_of_an_epoch_share_its_batches() -> None:
    run = run_of()
    run = run.with_decision((0, 10), {'a': 0, 'b': 0, 'c': 1}, 'test', WORLD)
    plan = plan_of(run, 0, 8)
    assert run.mixture.streams_of(plan.ids(0)).tolist()[2:] == [2, 2]  # the decision is in the middle of a batch
    assert plan.num_batches == 22
    assert plan.stream_counts(0, 22).tolist() == [2, 0, 84]
    assert plan.explain(0).stream_counts() == {'a': 2, 'b': 0, 'c': 2}
    assert plan_of(run, 0, 0).find(93) == (3, 14)
    assert plan.order.at(np.arange(10, 15)).tolist().index(93) == 4


def test_a_state_of_another_run_is_refused_or_ends_its_decisions() -> None:
    run = run_of()
    run = run.with_decision((0, 12), {'a': 1, 'b': 2, 'c': 3}, 'the test', WORLD)
    state = copied(run.state(0, 40, WORLD))
    with pytest.raises(ResumeError, match='began with other streams, weights'):
        run_of(weights=(1, 2, 0)).resumed(state, WORLD)
    other = run_of(weights=(1, 2, 0), on_mixture_change='continue')
    with pytest.warns(UserWarning, match=r"its 1 decisions, the last by 'the test' at sample 12, no longer apply"):
        other, place_of_state = other.resumed(state, WORLD)
    assert place_of_state == (0, 40)
    assert not other.decisions
    other = other.with_decision((0, 44), {'a': 0, 'b': 0, 'c': 3}, 'test', WORLD)
    again = run_of(weights=(1, 2, 0))
    again, _ = again.resumed(copied(other.state(0, 60, WORLD)), WORLD)
    assert again.decisions == other.decisions
    with pytest.raises(ConfigError, match='began with other streams'):
        run_of(other.decisions, weights=(1, 2, 0))  # before sample 40 it had another mixture
    with pytest.raises(ConfigError, match='began with other streams'):
        run_of([replace(run.decisions[0], at=16)])
    with pytest.raises(ResumeError, match=r'belongs to other decisions.*\[\], given are \[12\]'):
        run_of(run.decisions).resumed(copied(run_of().state(0, 40, WORLD)), WORLD)
    early = run_of(run.decisions)
    early, _ = early.resumed(copied(run_of().state(0, 8, WORLD)), WORLD)
    assert early.decisions == run.decisions


def test_a_replay_takes_no_other_decision_before_its_last() -> None:
    run = run_of()
    run = run.with_decision((0, 12), {'a': 1, 'b': 2, 'c': 3}, 'test', WORLD)
    replayed = run_of(run.decisions)
    with pytest.raises(ConfigError, match='up to sample 12, so it cannot take another one at 8'):
        replayed = replayed.with_decision((0, 8), {'a': 1, 'b': 1, 'c': 1}, 'test', WORLD)
    replayed = replayed.with_decision((0, 16), {'a': 1, 'b': 1, 'c': 1}, 'test', WORLD)
    assert [one.at for one in replayed.decisions] == [12, 16]


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        ({'config': replace(CONFIG, algorithm='py1e')}, "shuffle_algo 'py1e'. Leave"),
        ({'when_exhausted': 'stop'}, "when_exhausted 'stop'"),
        ({'config': replace(CONFIG, sampling='fixed')}, "sampling_method 'fixed'"),
        ({'config': replace(CONFIG, shuffle=False)}, "as without `shuffle` and with batching_method 'random'. Shuffle"),
        ({'config': replace(CONFIG, sampling='fixed'), 'weights': (None,) * 3}, "sampling_method 'fixed'"),
        ({'weights': (None,) * 3, 'schedule': Schedule.of([{'at': 0, 'proportions': {'a': 1}}])}, 'a `schedule`'),
    ],
)
def test_runs_that_cannot_change_exactly_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run_of(**options).with_decision((0, 0), {'a': 1, 'b': 1, 'c': 1}, 'test', WORLD)


@pytest.mark.parametrize('shares', [{'a': 1, 'b': 1}, {'a': 1, 'b': 1, 'c': 1, 'd': 1}, {'a': 0, 'b': 0, 'c': 0}])
def test_proportions_name_every_stream_and_are_amounts(shares: dict[str, float]) -> None:
    run = run_of()
    with pytest.raises(ConfigError, match='proportions'):
        run = run.with_decision((0, 0), shares, 'test', WORLD)
    assert not run.decisions


def test_states_without_decisions_are_as_before_and_broken_ones_are_refused() -> None:
    assert 'decisions' not in run_of().state(0, 0, WORLD).pinned
    run = run_of()
    run = run.with_decision((0, 12), {'a': 1, 'b': 2, 'c': 3}, 'test', WORLD)
    state = run.state(0, 40, WORLD)
    good = run.decisions[0].to_json()
    shares = {'proportions': [1]}
    for change in ({'more': 1}, {'at': -1}, {'what': {}}, {'what': shares}, {'by': 3}, {}):
        broken: Any = [{**good, **change}] if change else 3
        pinned = json.dumps({**state.pinned, 'decisions': broken})
        with pytest.raises(ResumeError, match='decision'):
            ResumeState.from_dict({**state.to_dict(), 'config': pinned})
    with pytest.raises(ConfigError, match='order of `at`'):
        decisions_of([Decision.after('', 5, good['what'], ''), Decision.after('', 4, good['what'], '')])
    for name in ('what', 'digest'):
        changed = {'proportions': {'a': 1, 'b': 2, 'c': 4}} if name == 'what' else 'f'
        pinned = json.dumps({**state.pinned, 'decisions': [{**good, name: changed}]})
        with pytest.raises(ResumeError, match='belong to a run'):
            run_of().resumed(ResumeState.from_dict({**state.to_dict(), 'config': pinned}), WORLD)


def test_a_plan_of_other_batches_leaves_those_of_a_replay_as_they_were() -> None:
    config = replace(CONFIG, batching='stratified')
    run = run_of(config=config)
    for at in (12, 40):
        run = run.with_decision((0, at), {'a': 1, 'b': at, 'c': 3}, 'test', WORLD)
    replayed = run_of(run.decisions, config=config)
    replayed.order(1, World(1, 8))  # as the length that a loader has before all ranks are there
    for epoch in (0, 1):
        positions = np.arange(len(run.order(epoch, WORLD)))
        assert replayed.order(epoch, WORLD).at(positions).tolist() == run.order(epoch, WORLD).at(positions).tolist()
