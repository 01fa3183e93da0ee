"""Runs of random mixtures of every kind, one after another from one state to the next."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from headrace.order import Mixture, OrderConfig, ResumeState, Schedule, StreamSize, make_order
from headrace.order.resume import resume

NAMES = 'abcde'


class Run:
    """Plays a run, and counts which samples were drawn."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.data = {name: [rng.randint(0, 20) for _ in range(rng.randint(1, 6))] + [1] for name in NAMES}
        self.counts = {name: np.zeros(sum(sizes), int) for name, sizes in self.data.items()}
        self.config = OrderConfig(
            shuffle=rng.random() < 0.7,
            num_canonical_nodes=rng.choice([1, 2, 3, 4, 8, 64]),
            batching=rng.choice(['random', 'stratified']),
            block_size=rng.randint(1, 80),
        )
        self.epoch = self.sample = self.drawn = 0
        self.mix = self.draw_mix()

    def draw_mix(self) -> Mixture:
        rng = self.random
        nodes = self.config.num_canonical_nodes or 1
        size = nodes * rng.randint(1, 6) if self.config.batching == 'stratified' else None
        self.config = replace(self.config, global_batch_size=size)
        first, *others = rng.sample(NAMES, rng.randint(1, 5))
        kind = rng.choice(['proportion', 'repeat', 'schedule', 'drop_stream', 'stop'])
        weights = {name: rng.choice([0, 0.01, 0.5, 1, 2.5]) for name in others} | {first: 1}
        epoch_size = rng.choice([None, rng.randint(1, 400)])
        options = {'epoch_size': epoch_size}
        if kind == 'schedule':
            points = [
                {
                    'at': at,
                    'proportions': {**weights, rng.choice([*others, first]): 2},
                    'change': change if at else 'step',
                }
                for at in [0, *sorted(rng.sample(range(1, 2000), rng.randint(0, 3)))]
                for change in [rng.choice(['step', 'linear'])]
            ]
            options['schedule'] = Schedule.of(points)
        elif kind == 'repeat':
            options = {}
        elif kind != 'proportion':
            options['when_exhausted'] = kind
        key = {'schedule': None, 'repeat': 'repeat'}.get(kind, 'proportion')
        streams = [
            StreamSize(name=name, shard_sizes=self.data[name], **({} if key is None else {key: weight}))
            for name, weight in weights.items()
        ]
        return Mixture.resolve(rng.sample(streams, len(streams)), **options)

    def go_on(self, until: int) -> None:
        """Draw the epoch up to a position."""
        order = make_order(self.mix, self.config.resolve_defaults(self.mix), self.epoch)
        positions = np.arange(self.sample, until)
        ids = order.at(positions)
        if len(ids):
            some = np.array(self.random.choices(range(len(ids)), k=5))
            assert (order.at(positions[some]) == ids[some]).all()
        node_draws = order.node_draws_before(until).sum(1)
        for s, stream in enumerate(self.mix.streams):
            first, last = self.mix.sample_offsets[s : s + 2]
            np.add.at(self.counts[stream.name], ids[(ids >= first) & (ids < last)] - first, 1)
            assert node_draws[s] == self.counts[stream.name].sum()
        self.drawn += until - self.sample
        self.epoch, self.sample = (self.epoch, until) if until < self.mix.epoch_size else (self.epoch + 1, 0)

    def change(self, epoch: int, sample: int) -> None:
        """Have another mixture take over, through a state."""
        state = ResumeState.of(self.config, self.mix, epoch=epoch, sample_in_epoch=sample)
        state = ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
        mix = self.draw_mix()
        self.mix, state = resume(state, self.config.resolve_defaults(mix), mix, may_change_mixture=True)
        self.epoch, self.sample = state.epoch, state.sample_in_epoch
        assert self.mix.takeover.begin_of(self.epoch, self.mix.epoch_size) + self.sample == self.drawn


# The numbers are those of runs that once did not end.
@pytest.mark.parametrize(
    'seed', [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40)), 84, 1642, 50704]
)
def test_every_draw_is_the_streams_next(seed: int) -> None:
    run = Run(seed)
    for _ in range(run.random.randint(1, 5)):
        for _ in range(run.random.randint(0, 3)):
            run.go_on(run.mix.epoch_size)
        epoch, size = run.epoch, run.mix.epoch_size
        until = run.random.choice([run.sample, size, run.random.randint(run.sample, size)])
        run.go_on(until)
        run.change(epoch, until)
    for _ in range(8):
        run.go_on(run.mix.epoch_size)
    order = make_order(run.mix, run.config.resolve_defaults(run.mix), run.epoch)
    for s, stream in enumerate(run.mix.streams):
        counts = run.counts[stream.name]
        if order.streams[s].passes.first_regular <= counts.sum() // len(counts):
            assert counts.max() - counts.min() <= 1
