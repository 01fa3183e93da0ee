"""The segments of a run, and what was before them: against adding up, epoch by epoch."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order import Mixture, OrderConfig, Schedule, StreamSize, make_order
from headrace.order.mixture.takeover import Takeover
from headrace.order.native.node_quotas import DrawIndex, NodeQuotas
from tests.support.orders.order_cases import relaxed

NAMES = 'abc'
shares = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1, 2, 0.001, 7.5]), min_size=1)


@st.composite
def node_quotas_of_mixtures(draw: st.DrawFn) -> tuple[Mixture, NodeQuotas]:
    """Mixtures whose schedules span from a part of an epoch to some 20 of them."""
    size, nodes = draw(st.integers(1, 150)), draw(st.sampled_from([1, 2, 3, 8]))
    sample = draw(st.integers(0, size))
    epoch = draw(st.integers(0, 5))
    takeover = Takeover(epoch=epoch, sample=sample, begin=draw(st.sampled_from([epoch * size, 0, 777])))
    mix = Mixture.resolve([StreamSize(name=name, shard_sizes=[11, 6]) for name in NAMES], epoch_size=size)
    if draw(st.booleans()):
        ends = sorted(draw(st.sets(st.integers(1, 20 * size), max_size=4)))
        points = [
            {
                'at': at,
                'proportions': draw(shares),
                'change': draw(st.sampled_from(['step', 'linear'])) if at else 'step',
            }
            for at in [0, *ends]
        ]
        mix = Mixture.resolve(mix.streams, epoch_size=size, schedule=Schedule.of(points))
    mix = Mixture(
        streams=mix.streams, choose=mix.choose, proportions=mix.proportions, epoch_size=size, stages=mix.stages,
        schedule=mix.schedule, takeover=takeover,
    )  # fmt: skip
    batch = draw(st.sampled_from([None, nodes, 3 * nodes, 10 * nodes]))
    config = OrderConfig(
        shuffle=True,
        num_canonical_nodes=nodes,
        batching='random' if batch is None else 'stratified',
        global_batch_size=batch,
    )
    return mix, NodeQuotas(mix, config.resolve_defaults(mix))


@relaxed
@given(node_quotas_of_mixtures(), st.data())
def test_draws_and_node_draws_before_any_segment_are_the_sum_of_all_before(made, choices: st.DataObject) -> None:
    mix, node_quotas = made
    draws, node_draws = np.zeros(len(NAMES), int), np.zeros((len(NAMES), node_quotas.num_nodes), int)
    dealt: list[list[np.ndarray]] = [[] for _ in NAMES]  # for each stream, the node draws at the end of each segment
    for epoch in range(mix.takeover.epoch, mix.takeover.epoch + 30):
        position = mix.takeover.sample if epoch == mix.takeover.epoch else 0
        for number, segment in enumerate(node_quotas.segments(epoch)):
            assert segment.begin == position
            assert [a.tolist() for a in node_quotas.before(epoch, number)] == [draws.tolist(), node_draws.tolist()]
            quotas = node_quotas.quotas(epoch, number)
            assert (quotas.sum(1) == segment.counts).all()
            assert (segment.counts >= 0).all()
            for stream in range(len(NAMES)):
                first = choices.draw(st.integers(0, int(segment.counts[stream]))) if epoch % 7 == 0 else 0
                # As the draws are dealt.
                draw_index = DrawIndex(quotas[stream : stream + 1])
                of_node = [
                    [t * node_quotas.num_nodes + node for t in range(int(draw_index.least[0]))]
                    + [int(d) for d in draw_index.excess[node][: int(quotas[stream, node] - draw_index.least[0])]]
                    for node in range(node_quotas.num_nodes)
                ]
                expected = node_draws[stream] + [sum(d < first for d in ds) for ds in of_node]
                assert node_quotas.node_draws_after(stream, int(draws[stream]) + first).tolist() == expected.tolist()
                dealt[stream].append(expected)
            draws, node_draws, position = draws + segment.counts, node_draws + quotas, segment.end
        assert position == mix.epoch_size
    for stream in range(len(NAMES)):
        for more in (0, 1, 5, 1000):  # past the last draw, too
            assert node_quotas.node_draws_after(stream, int(draws[stream]) + more).sum() == draws[stream] + more


@relaxed
@given(node_quotas_of_mixtures())
def test_what_a_stream_has_had_follows_the_schedule(made) -> None:
    """At the end of any segment: within three samples, and one for each epoch, as epochs that are alike are rounded."""
    mix, node_quotas = made
    if mix.schedule is None:
        return
    steps = mix.schedule.steps(NAMES)
    grain = (node_quotas._batch_size or 1) * 2
    wanted, had, at = np.zeros(len(NAMES)), np.zeros(len(NAMES)), mix.takeover.begin + mix.takeover.sample
    for epoch in range(mix.takeover.epoch, mix.takeover.epoch + 30):
        for segment in node_quotas.segments(epoch):
            for _ in range(segment.end - segment.begin):
                weights = np.array([step for step in steps if step.begin <= at][-1].weights)
                wanted, at = wanted + weights / weights.sum(), at + 1
            had += segment.counts
        # Steps of stratified batches begin up to half a batch before or after their time.
        assert np.abs(had - wanted).max() <= 3 + epoch - mix.takeover.epoch + grain * len(steps)


@pytest.mark.parametrize('batch', [None, 1024])
@pytest.mark.parametrize('change', ['step', 'linear'])
def test_a_schedule_that_ends_far_beyond_the_run_takes_no_time(batch: int | None, change: str) -> None:
    names = [f's{i}' for i in range(5)]
    points = [
        {'at': 0, 'proportions': dict.fromkeys(names, 1)},
        {'at': 10**12, 'proportions': {name: i for i, name in enumerate(names)}, 'change': change},
    ]
    mix = Mixture.resolve(
        [StreamSize(name=name, shard_sizes=[1000] * 10) for name in names],
        epoch_size=10**5,
        schedule=Schedule.of(points),
    )
    config = OrderConfig(
        shuffle=True, num_canonical_nodes=64, batching='stratified' if batch else 'random', global_batch_size=batch
    ).resolve_defaults(mix)
    begin = time.process_time()
    for epoch in (0, 7, 10**6, 10**7 + 1):
        make_order(mix, config, epoch).at(np.arange(1024))
    assert time.process_time() - begin < 20  # seconds; 10^7 epochs one by one are hours
