"""Another mixture takes over in the middle of a run: no stream loses or repeats a sample."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, ResumeError, StreamError
from headrace.order import Mixture, OrderConfig, ResumeState, Schedule, StreamSize, make_order
from headrace.order.mixture.takeover import Takeover
from headrace.order.resume import resume
from tests.support.orders.order_cases import relaxed, shard_lists, whole

CONFIG = OrderConfig(shuffle=True, num_canonical_nodes=4, block_size=300)


def mix_of(data: dict[str, list[int]], **repeats: float) -> Mixture:
    return Mixture.resolve([StreamSize(name=n, shard_sizes=data[n], repeat=r) for n, r in repeats.items()])


class Counter:
    """Plays a run: which samples of which streams were drawn, by name, in order."""

    def __init__(self, data: dict[str, list[int]], config: OrderConfig) -> None:
        self.config = config
        self.counts = {name: np.zeros(sum(sizes), int) for name, sizes in data.items()}

    def draw(self, mix: Mixture, epoch: int, begin: int, end: int) -> None:
        order = make_order(mix, self.config.resolve_defaults(mix), epoch)
        ids = order.at(np.arange(begin, end))
        for s, stream in enumerate(mix.streams):
            first, last = mix.sample_offsets[s : s + 2]
            np.add.at(self.counts[stream.name], ids[(ids >= first) & (ids < last)] - first, 1)

    def change(self, mix: Mixture, to: Mixture, epoch: int, sample: int) -> tuple[Mixture, int, int]:
        """Through a state, as a resumed run does it."""
        config = self.config.resolve_defaults(mix)
        state = ResumeState.of(config, mix, epoch=epoch, sample_in_epoch=sample)
        state = ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
        changed, state = resume(state, replace(config, global_batch_size=None), to, may_change_mixture=True)
        return changed, state.epoch, state.sample_in_epoch


@settings(relaxed, suppress_health_check=[HealthCheck.large_base_example])
@given(
    st.dictionaries(st.sampled_from('abcde'), shard_lists, min_size=2),
    st.sampled_from([1, 2, 3, 8]),
    st.booleans(),
    st.data(),
)
def test_through_any_changes_every_stream_is_passes(data, nodes: int, shuffle: bool, choices: st.DataObject) -> None:
    """After the last change, counts of a stream's samples differ by at most one at the end of an epoch.

    They differ by two while its nodes are ahead of the mixture, or behind. Tiny streams lose and favour nothing, too.
    """
    config = OrderConfig(shuffle=shuffle, num_canonical_nodes=nodes, block_size=choices.draw(st.integers(1, 60)))
    weights = st.sampled_from([0.3, 0.5, 1.0, 1.7, 2.0])

    def draw_mix() -> Mixture:
        names = choices.draw(st.lists(st.sampled_from(sorted(data)), min_size=1, unique=True))
        while True:
            try:
                return mix_of(data, **{name: choices.draw(weights) for name in names})
            except StreamError:  # shares so small that nothing is drawn
                names = sorted(data)

    run, mix, epoch, sample = Counter(data, config), draw_mix(), 0, 0
    for _ in range(choices.draw(st.integers(1, 3))):
        for _ in range(choices.draw(st.integers(0, 2))):
            run.draw(mix, epoch, sample, mix.epoch_size)
            epoch, sample = epoch + 1, 0
        until = choices.draw(st.integers(sample, mix.epoch_size))
        run.draw(mix, epoch, sample, until)
        mix, epoch, sample = run.change(mix, draw_mix(), epoch, until)
    for _ in range(6):
        run.draw(mix, epoch, sample, mix.epoch_size)
        epoch, sample = epoch + 1, 0
    order = make_order(mix, config.resolve_defaults(mix), epoch)
    node_draws = order.node_draws_before(0).sum(1)
    for s, stream in enumerate(mix.streams):
        counts = run.counts[stream.name]
        assert counts.sum() == node_draws[s]
        is_regular = order.streams[s].passes.first_regular <= counts.sum() // len(counts)
        assert counts.max() - counts.min() <= (1 if is_regular else 2)


def test_a_stream_continues_with_its_next_sample_and_a_new_one_begins() -> None:
    data = {'a': [40] * 10, 'b': [30] * 10, 'new': [20] * 5}
    run = Counter(data, CONFIG)
    before = mix_of(data, a=1, b=1)
    run.draw(before, 0, 0, 350)
    after, epoch, sample = run.change(before, mix_of(data, a=0.5, new=2), 0, 350)
    assert (epoch, sample) == (0, 350)
    run.draw(after, 0, 350, after.epoch_size)
    assert run.counts['a'].max() == 1  # 200 or so, and 25 of them later: less than a pass
    assert 190 < run.counts['a'].sum() < 240
    # b is away for two epochs and comes back where it was.
    away, b_before = after, run.counts['b'].copy()
    run.draw(away, 1, 0, away.epoch_size)
    back, epoch, sample = run.change(away, mix_of(data, b=1), 2, 0)
    run.draw(back, epoch, sample, 300 - int(b_before.sum()))
    # Canonical nodes were not equally far when b went, so some begin the next pass before the others have ended this.
    assert run.counts['b'].sum() == 300
    assert (run.counts['b'] != 1).sum() < 40
    run.draw(back, epoch, 300 - int(b_before.sum()), 300)
    assert run.counts['b'].min() == 1
    assert run.counts['b'].max() == 2


def test_nodes_that_are_ahead_and_get_no_more_draws_stay_ahead() -> None:
    """A stream with fewer draws in an epoch than there are canonical nodes goes to the same few nodes in all epochs."""
    data = {'a': [66], 'b': [200], 'c': [34], 'd': [150]}
    config = OrderConfig(shuffle=True, num_canonical_nodes=32, block_size=9)
    run = Counter(data, config)
    before = mix_of(data, d=0.26)
    run.draw(before, 0, 0, 30)
    mix, epoch, sample = run.change(before, mix_of(data, a=1, b=1, c=1, d=0.05), 0, 30)
    for _ in range(60):
        run.draw(mix, epoch, sample, mix.epoch_size)
        epoch, sample = epoch + 1, 0
    counts = run.counts['d']
    assert counts.sum() > 400
    assert counts.max() - counts.min() <= 2


def test_other_data_under_the_same_name_begins_anew() -> None:
    old = Mixture.resolve([StreamSize(name='a', shard_sizes=[40] * 10)])
    grown = Mixture.resolve([StreamSize(name='a', shard_sizes=[40] * 11)])
    run = Counter({'a': [40] * 11}, CONFIG)
    changed, epoch, sample = run.change(old, grown, 0, 100)
    run.draw(changed, epoch, sample, 440)
    assert run.counts['a'].sum() == 340
    assert run.counts['a'].max() == 1
    # Shuffled anew: a stream that grows in each epoch, which takes a part of it, has not the same part in each.
    again, _, _ = run.change(changed, Mixture.resolve([StreamSize(name='a', shard_sizes=[40] * 12)]), 1, 0)
    first, second = (make_order(mix, CONFIG.resolve_defaults(mix), 1).at(np.arange(100)) for mix in (changed, again))
    assert len(set(first.tolist()) & set(second.tolist())) < 50


def test_a_position_beyond_the_new_epoch_continues_with_the_next() -> None:
    data = {'a': [40] * 10}
    run = Counter(data, CONFIG)
    assert run.change(mix_of(data, a=2), mix_of(data, a=0.5), 3, 700)[1:] == (4, 0)
    assert run.change(mix_of(data, a=0.5), mix_of(data, a=2), 3, 200)[1:] == (4, 0)
    assert run.change(mix_of(data, a=2), mix_of(data, a=0.5), 3, 100)[1:] == (3, 100)


def test_what_was_before_the_change_is_refused() -> None:
    data = {'a': [40] * 10}
    changed, *_ = Counter(data, CONFIG).change(mix_of(data, a=2), mix_of(data, a=1), 3, 100)
    config = CONFIG.resolve_defaults(changed)
    with pytest.raises(IndexError, match=r'must be in \[100, 400\), got 99'):
        make_order(changed, config, 3).at(np.array([99, 100]))
    with pytest.raises(ConfigError, match='took over in epoch 3, got epoch 2'):
        make_order(changed, config, 2)


def test_a_change_is_refused_unless_it_is_asked_for_with_both_values_named() -> None:
    data = {'a': [40] * 10, 'b': [10]}
    mix = mix_of(data, a=2)
    state = ResumeState.of(CONFIG, mix, epoch=0, sample_in_epoch=50)
    config = CONFIG.resolve_defaults(mix)
    with pytest.raises(ResumeError) as caught:
        resume(state, config, mix_of(data, a=1, b=1))
    for text in (
        'epoch_size: 800 in the checkpoint, 410 now',
        "stream 'a' choose: 800 in the checkpoint, 400 now",
        "streams: ['a'] in the checkpoint, ['a', 'b'] now",
        "or pass on_mixture_change='continue'",
    ):
        assert text in str(caught.value)


def test_what_is_no_mixture_is_refused_even_where_changes_are_wanted() -> None:
    mix = mix_of({'a': [40] * 10}, a=2)
    state = ResumeState.of(CONFIG, mix, epoch=0, sample_in_epoch=50)
    with pytest.raises(ResumeError, match=r'block_size: 300 in the checkpoint, 70 now.*Restore them, or start'):
        resume(state, replace(CONFIG, block_size=70), mix_of({'a': [40] * 10}, a=1), may_change_mixture=True)


def test_a_state_after_a_change_continues_without_asking_again() -> None:
    data = {'a': [40] * 10, 'b': [10] * 9}
    run = Counter(data, CONFIG)
    changed, epoch, sample = run.change(mix_of(data, a=2), mix_of(data, a=1, b=1), 1, 300)
    config = CONFIG.resolve_defaults(changed)
    state = ResumeState.of(config, changed, epoch=epoch, sample_in_epoch=sample + 40)
    again, _ = resume(ResumeState.from_dict(state.to_dict()), config, mix_of(data, a=1, b=1))
    assert again.takeover == changed.takeover
    expected = make_order(changed, config, epoch).at(np.arange(340, 490))
    assert (make_order(again, config, epoch).at(np.arange(340, 490)) == expected).all()


def test_an_origin_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ResumeError, match='cannot be read'):
        Takeover.of({'epoch': 1, 'sample': 3, 'positions': {'a': {'turns': [1]}}})


def test_the_whole_of_an_epoch_is_the_same_before_and_after_a_change_of_nothing() -> None:
    data = {'a': [40] * 10, 'b': [10] * 9}
    mix = mix_of(data, a=1, b=3)
    config = CONFIG.resolve_defaults(mix)
    expected = whole(make_order(mix, config, 1))
    state = ResumeState.of(config, mix, epoch=1, sample_in_epoch=77)
    same, _ = resume(state, config, mix_of(data, a=1, b=3), may_change_mixture=True)
    assert (whole(make_order(same, config, 1)) == expected).all()


@pytest.mark.parametrize('at', [10, 23, 39, 57])
def test_nodes_that_get_nothing_of_a_stream_any_more_stay_ahead_of_the_others(at: int) -> None:
    """An epoch of one sample of `a` gives it to one node only: the others' share of the pass can never be had."""
    data = {'a': [16], 'b': [30]}
    run = Counter(data, OrderConfig(shuffle=True, num_canonical_nodes=8, block_size=30))
    before, after = mix_of(data, a=2, b=1), mix_of(data, a=0.07, b=1)
    run.draw(before, 0, 0, at)
    changed, epoch, sample = run.change(before, after, 0, at)
    run.draw(changed, epoch, sample, changed.epoch_size)
    for later in range(epoch + 1, epoch + 40):
        run.draw(changed, later, 0, changed.epoch_size)
    order = make_order(changed, run.config.resolve_defaults(changed), epoch + 40)
    assert run.counts['a'].sum() == order.node_draws_before(0)[0].sum()
    assert run.counts['b'].max() - run.counts['b'].min() <= 2


def test_a_schedule_counts_the_samples_of_the_run_also_where_the_epochs_size_changes() -> None:
    points = Schedule.of([{'at': 0, 'proportions': {'a': 1}}, {'at': 1_500, 'proportions': {'b': 1}}])

    def mix(epoch_size: int) -> Mixture:
        streams = [StreamSize(name=name, shard_sizes=[50] * 40) for name in 'ab']
        return Mixture.resolve(streams, epoch_size=epoch_size, schedule=points)

    data = {'a': [50] * 40, 'b': [50] * 40}
    for size, at in ((1_000, 300), (1_000, 0), (4_000, 300), (200, 300)):
        # 1,300 or 1,000 samples of a run with epochs of 1,000; 200 or 500 more are those of a.
        run = Counter(data, CONFIG)
        changed, epoch, sample = run.change(mix(1_000), mix(size), 1, at)
        drawn = 1_000 + at
        while drawn < 2_000:
            end = min(sample + 2_000 - drawn, changed.epoch_size)
            run.draw(changed, epoch, sample, end)
            # Through a state, which has to know.
            drawn, state = drawn + end - sample, ResumeState.of(CONFIG, changed, epoch=epoch, sample_in_epoch=end)
            changed, state = resume(ResumeState.from_dict(state.to_dict()), CONFIG, mix(size))
            epoch, sample = (epoch, end) if end < changed.epoch_size else (epoch + 1, 0)
        assert {name: counts.sum() for name, counts in run.counts.items()} == {'a': 500 - at, 'b': 500}, (size, at)


def test_a_position_from_before_the_mixture_took_over_is_refused() -> None:
    data = {'a': [40] * 10}
    changed, *_ = Counter(data, CONFIG).change(mix_of(data, a=2), mix_of(data, a=1), 3, 100)
    state = ResumeState.of(CONFIG, changed, epoch=3, sample_in_epoch=100)
    for epoch, sample in ((3, 99), (2, 300)):
        with pytest.raises(ResumeError, match=rf'sample 100 of epoch 3, got sample {sample} of epoch {epoch}'):
            resume(replace(state, epoch=epoch, sample_in_epoch=sample), CONFIG, mix_of(data, a=1))


@pytest.mark.parametrize('size', [1, 7])
def test_a_tiny_stream_drawn_often_on_many_nodes_changes_in_little_time_and_space(size: int) -> None:
    """Its nodes are thousands of passes apart in a random mixture, and come together again."""
    data = {'big': [1000] * 200, 'tiny': [size]}
    config = OrderConfig(shuffle=True, num_canonical_nodes=64)
    before, after = mix_of(data, big=1, tiny=200_000 / size), mix_of(data, big=1, tiny=50_000 / size)
    run = Counter(data, config)
    begin = time.process_time()
    changed, epoch, sample = run.change(before, after, 0, 123_456)
    order = make_order(changed, config.resolve_defaults(changed), epoch)
    order.at(np.arange(sample, sample + 2048))
    assert time.process_time() - begin < 15  # seconds; one by one these are as many minutes
    tiny = order.streams[1].passes
    drawn, passes = tiny.draws, tiny.first_regular - tiny.draws // size
    assert 0 < passes < 20_000
    assert len(json.dumps(changed.takeover.to_json())) < 150_000
    assert Takeover.of(json.loads(json.dumps(changed.takeover.to_json()))) == changed.takeover
    # Of each pass after the change each sample once, whatever the node.
    counts = np.zeros(size, int)
    ids = order.at(np.arange(sample, sample + 4096))
    np.add.at(counts, ids[ids >= 200_000] - 200_000, 1)
    assert counts.sum() == (order.node_draws_before(sample + 4096) - order.node_draws_before(sample))[1].sum()
    assert drawn > 50_000


def drawn_once_more(counts: np.ndarray) -> bool:
    return counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    ('size', 'shuffle'),
    [(20, False), *(pytest.param(*row, marks=pytest.mark.slow) for row in [(3, True), (3, False), (20, True)])],
)
def test_a_stream_that_some_nodes_never_have_again_loses_and_favours_no_sample(size: int, shuffle: bool) -> None:
    """An epoch of one draw gives it to the same node each time. It draws what other nodes have left of their shares."""
    data = {'a': [100], 'b': [size - 2, 2]}
    before, after = mix_of(data, a=1, b=120 / size), mix_of(data, a=1, b=1 / size)
    config = OrderConfig(shuffle=shuffle, num_canonical_nodes=4, block_size=5)
    with_rest = 0
    for at in range(20, 200, 18):
        run = Counter(data, config)
        run.draw(before, 0, 0, at)
        mix, epoch, sample = run.change(before, after, 0, at)
        for later in range(epoch, epoch + 70):
            # Another change now and then, also while the rest is drawn: to nothing else, and away and back.
            if later % 9 == 4:
                others = mix_of(data, a=2, b=1 / size) if later % 2 else mix_of(data, a=1)
                mix, _, sample = run.change(mix, others, later, 0)
            order = make_order(mix, config.resolve_defaults(mix), later)
            ids = order.at(np.arange(sample, mix.epoch_size))
            b = [stream.name for stream in mix.streams].index('b') if len(mix.streams) > 1 else None
            if b is not None:
                passes = order.streams[b].passes
                with_rest += passes.rest is not None
                for i in range(size):
                    number = int(mix.sample_offsets[b]) + i
                    assert list(order.find(number, sample)) == ((ids == number).nonzero()[0] + sample).tolist()
            run.draw(mix, later, sample, mix.epoch_size)
            sample = 0
        most = 2 if size == 3 else 4
        assert run.counts['b'].max() - run.counts['b'].min() <= most
        if passes.rest is None or run.counts['b'].sum() >= passes.first_regular * size:
            assert drawn_once_more(run.counts['b'])
    assert with_rest


def test_a_checkpoint_of_the_rule_before_keeps_it() -> None:
    data = {'a': [100], 'b': [3]}
    before, after = mix_of(data, a=1, b=40), mix_of(data, a=1, b=1 / 3)
    config = OrderConfig(shuffle=True, num_canonical_nodes=4)
    changed, *_ = Counter(data, config).change(before, after, 0, 110)
    old = replace(changed.takeover, rule=1)
    assert Takeover.of(json.loads(json.dumps(old.to_json()))) == old
    rests = [
        make_order(replace(changed, takeover=takeover), config.resolve_defaults(changed), 3).streams[1].passes.rest
        for takeover in (old, changed.takeover)
    ]
    assert rests[0] is None
    assert rests[1] is not None
