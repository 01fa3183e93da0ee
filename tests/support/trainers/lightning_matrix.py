"""The matrix of resumes: the values of each dimension, those that exclude each other, and a scenario's runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.trainers.lightning_run import EPOCHS, Run

GLOBAL_BATCH = 8
BATCHES = 12
"""Of an epoch: 96 samples."""

WORLDS = {'1x0': (1, 0), '2x0': (2, 0), '2x2': (2, 2), '4x1': (4, 1)}
"""Ranks and workers."""

STRATEGIES = {
    'single': 'auto',
    'ddp': 'ddp',
    'ddp_spawn': 'ddp_forkserver',
    'model_parallel': 'tensor_parallel',
}
"""Of the worlds that have more than one rank. One rank is on its own with any of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Options of both runs, differences of the second run, and the batches of an epoch."""

    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    trainer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    second: Callable[[Run], Mapping[str, Any]] = lambda _: {}
    batches: int = BATCHES
    accumulate: int = 1

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.batches // self.accumulate)


OPTIONS = {
    'none': Option(),
    # 12 batches: steps after 5, 10 and 12 of them.
    'accumulate_grad_batches=5': Option(trainer={'accumulate_grad_batches': 5}, accumulate=5),
    'limit_train_batches=8': Option(trainer={'limit_train_batches': 8}, batches=8),
    'limit_train_batches=0.5': Option(trainer={'limit_train_batches': 0.5}, batches=6),
    'val_check_interval=5': Option(fields={'validate': True}, trainer={'val_check_interval': 5}),
    'val_check_interval=0.25': Option(fields={'validate': True}, trainer={'val_check_interval': 0.25}),
    'max_steps': Option(trainer={'max_epochs': -1, 'max_steps': EPOCHS * BATCHES}),
    'max_time': Option(trainer={'max_time': '10:00:00:00'}),
    'num_sanity_val_steps=2': Option(fields={'validate': True}, trainer={'num_sanity_val_steps': 2}),
    'overfit_batches=4': Option(trainer={'overfit_batches': 4}, batches=4),
    'estimated_stepping_batches': Option(fields={'estimated': True}),
    'reload_dataloaders_every_n_epochs=1': Option(trainer={'reload_dataloaders_every_n_epochs': 1}),
    'no length': Option(fields={'unsized': True}),
    'manual optimization': Option(fields={'manual': True}),
    'BatchSizeFinder': Option(fields={'find_batch_size': True, 'validate': True}),
    'batch size of 12': Option(second=lambda run: {'batch_size': 12 // run.replicas}),
    'bucket=3, balance=1': Option(fields={'dataset': {'cost': 'id', 'bucket': 3, 'balance': 1}}),
    'two nodes': Option(second=lambda run: {'nodes': min(run.devices, 2)}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Options of the first run, which make it save a checkpoint, and end."""

    fields: Callable[[Option], Mapping[str, Any]]
    trainer: Callable[[Option], Mapping[str, Any]] = lambda _: {}


def _early(option: Option) -> int:
    """An optimizer step in mid-epoch of epoch 1."""
    return option.steps + (1 if option.accumulate > 1 else 2)


def _late(option: Option) -> int:
    """A batch in mid-epoch of epoch 1, after that step, and in no optimizer step that is a whole one."""
    return option.batches + option.batches * 2 // 3


KINDS = {
    'step': Kind(fields=lambda option: {'every_steps': _early(option), 'crash_at': _late(option)}),
    'last step': Kind(fields=lambda option: {'every_steps': option.steps, 'crash_at': option.batches + 1}),
    'epoch end': Kind(fields=lambda option: {'every_epoch': True, 'crash_at': option.batches + 1}),
    'validation': Kind(
        fields=lambda option: {'after_validation': True, 'validate': True, 'crash_at': _late(option)},
    ),
    'exception': Kind(fields=lambda option: {'on_exception': True, 'crash_at': _late(option)}),
    'SIGTERM': Kind(fields=lambda option: {'save_on_exception': True, 'terminate_at': _late(option)}),
    'Timer': Kind(
        fields=lambda option: {'every_epoch': True, 'time_out_at': _late(option)},
        trainer=lambda _: {'max_time': '00:12:00:00'},
    ),
    'after the fit': Kind(
        fields=lambda _: {'at_end': True},
        trainer=lambda option: {'max_epochs': -1, 'max_steps': _early(option)},
    ),
}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A run that is interrupted, and one that continues from its last checkpoint."""

    strategy: str
    kind: str
    option: str
    before: str
    after: str

    def __str__(self) -> str:
        return f'{self.strategy:<14} {self.kind:<13} {self.option:<35} {self.before} -> {self.after}'

    @property
    def is_possible(self) -> bool:
        return not any(rule(self) for rule in IMPOSSIBLE.values())


DIMENSIONS = [list(STRATEGIES), list(KINDS), list(OPTIONS), list(WORLDS), list(WORLDS)]

IMPOSSIBLE: dict[str, Callable[[Scenario], bool]] = {
    'a single device has one rank': lambda one: one.strategy == 'single' and (one.before, one.after) != ('1x0', '1x0'),
    'one rank before and after is a single device': lambda one: (
        one.strategy != 'single' and (one.before, one.after) == ('1x0', '1x0')
    ),
    'Lightning searches batch sizes on single devices only': lambda one: (
        one.option == 'BatchSizeFinder' and one.strategy != 'single'
    ),
    'two nodes have two ranks': lambda one: one.option == 'two nodes' and one.after == '1x0',
    'ddp_spawn tells only the process that launched, and has not trained, of an exception or a SIGTERM': lambda one: (
        one.kind in ('exception', 'SIGTERM') and one.strategy == 'ddp_spawn' and one.before != '1x0'
    ),
    'launching on several nodes is for torchrun': lambda one: one.option == 'two nodes' and one.strategy == 'ddp_spawn',
}


def scenarios() -> list[Scenario]:
    """All that are possible."""
    return [one for one in itertools.starmap(Scenario, itertools.product(*DIMENSIONS)) if one.is_possible]


def chain_of(scenario: Scenario, name: str, out: str, streams: dict[str, str]) -> list[Run]:
    """The two runs of a scenario."""
    kind, option = KINDS[scenario.kind], OPTIONS[scenario.option]
    first = _in_world(
        Run(name=f'{name}-first', out=out, streams=streams, **{**option.fields, **kind.fields(option)}),
        scenario.strategy,
        scenario.before,
    )
    first.trainer = {**option.trainer, **kind.trainer(option)}
    second = _in_world(
        Run(name=f'{name}-second', out=out, streams=streams, checkpoint=str(first.checkpoints), **option.fields),
        scenario.strategy,
        scenario.after,
    )
    second.trainer = dict(option.trainer)
    # A run may validate or not, but validation between batches is found again in the counters.
    second.validate = first.validate
    return [first, dataclasses.replace(second, **option.second(second))]


def _in_world(run: Run, strategy: str, world: str) -> Run:
    ranks, workers = WORLDS[world]
    run = dataclasses.replace(
        run,
        devices=ranks,
        workers=workers,
        strategy=STRATEGIES[strategy] if ranks > 1 else 'auto',
        data_parallel=max(ranks // 2, 1),
    )
    if workers and run.strategy == 'ddp_forkserver':
        # Ranks that were not forked start their workers as they were started, which takes seconds for each.
        run.module = {**run.module, 'multiprocessing_context': 'fork'}
    return dataclasses.replace(run, batch_size=GLOBAL_BATCH // run.replicas)
