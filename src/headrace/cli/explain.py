"""``headrace explain``: which samples make up a global batch, or when a sample is seen next. Reads indexes, no data."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ConfigError, ResumeError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.mixing import Config, LoaderConfig
    from headrace.order import BatchExplanation, BatchPlan

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'say which samples make up a global batch, or when a sample is seen next, without reading any data'

_EPOCHS = 1000  # looked through for a sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which loader of which file, on which topology, and which batch or sample."""
    parser.add_argument('config', type=Path, help='YAML file of the loaders')
    parser.add_argument('overrides', nargs='*', metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--loader', default='train', help='train, or eval, test, predict and a name: eval.books')
    parser.add_argument(
        '--batch', type=int, default=0, help='global batch: of --epoch; else counted from --state, or the first epoch'
    )
    parser.add_argument('--epoch', type=int, help='epoch that --batch is counted in')
    parser.add_argument('--sample', type=int, help='a global sample id: say when it is seen next, from --batch on')
    parser.add_argument('--rank', type=int, help='only the rows of this rank')
    parser.add_argument('--ranks', type=int, default=1, help='ranks of all nodes together')
    parser.add_argument('--nodes', type=int, default=1, help='nodes')
    parser.add_argument('--replication', type=int, default=1, help='neighbouring ranks that get the same samples')
    parser.add_argument('--state', type=Path, help='JSON file of a state that the run was resumed from')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(arguments: argparse.Namespace) -> int:
    """Print it; the exit status is 1 for a sample that is not seen any more."""
    from headrace.mixing import build_loader, load_config
    from headrace.order import Topology, find_state

    if arguments.batch < 0 or (arguments.epoch or 0) < 0:
        raise ConfigError(
            f'--batch and --epoch count from 0, got --batch {arguments.batch} and --epoch {arguments.epoch}.'
        )
    topology = Topology(
        rank=arguments.rank or 0,
        world_size=arguments.ranks,
        num_nodes=arguments.nodes,
        replication=arguments.replication,
    )
    config = _chosen(load_config(arguments.config, overrides=arguments.overrides), arguments.loader)
    loader = build_loader(config, topology=topology)
    if arguments.state is not None:
        loader.load_state_dict(dict(find_state(_read_state(arguments.state))))
    plan, number = _find_batch(loader, arguments)
    if arguments.sample is not None:
        return _print_next_use(loader, plan, number, arguments)
    _check_mixture(plan, number)
    explanation = loader.dataset.explain(plan, number)
    # A position of MosaicML Streaming's orders is no place in one sequence: they skip nothing.
    is_compatible = loader.dataset.order_config.is_compatible
    skip = None if is_compatible else _range_of(explanation, len(plan.order))
    shown = explanation if arguments.rank is None else explanation.of_rank(arguments.rank)
    if arguments.json:
        print(json.dumps({**shown.to_json(), 'skip': skip}))
        return 0
    print(_heading(explanation, plan))
    if arguments.rank is not None:
        print(f'Rank {arguments.rank}: {_shares(shown)}')
    if skip is not None:
        print(f'What leaves it out: skip: [{skip}]')
    print(shown)
    return 0


def _chosen(config: Config, name: str) -> LoaderConfig:
    loaders = {} if config.train is None else {'train': config.train}
    for section in ('eval', 'test', 'predict'):
        of_section: tuple[LoaderConfig, ...] = getattr(config, section)
        loaders |= {f'{section}.{loader.name}': loader for loader in of_section}
        if len(of_section) == 1:
            loaders.setdefault(section, of_section[0])
    if name not in loaders:
        raise ConfigError(f'--loader must be one of {", ".join(loaders)}, got {name!r}.')
    return loaders[name]


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise ResumeError(f'--state {path} cannot be read: {error.strerror}.') from error
    except ValueError as error:
        raise ResumeError(f'--state {path} must hold JSON: {error}.') from error
    if not isinstance(state, dict):
        raise ResumeError(f'--state {path} must hold a JSON object, the state of a loader, got {state!r:.40}.')
    return state


def _find_batch(loader: StreamingDataLoader, arguments: argparse.Namespace) -> tuple[BatchPlan, int]:
    """A plan with the batch that was asked for, and its number there."""
    batch, epoch = arguments.batch, arguments.epoch
    if epoch is not None:
        plan = loader.plan(epoch)
        if batch >= plan.num_batches:
            there = f'batches 0 to {plan.num_batches - 1}' if plan.num_batches else 'no batches'
            raise ConfigError(f'epoch {epoch} has {there}, got --batch {batch}.')
        return plan, batch
    # The state may be of a position between batches, and the run's steps may have been others before.
    epoch, start = (0, 0) if arguments.state is None else loader.next_pass()
    plan = loader.plan(epoch, start)
    while batch >= plan.num_batches:
        batch -= plan.num_batches
        epoch += 1
        plan = loader.plan(epoch)
        if epoch >= _first_whole_epoch(loader, plan):  # from here on all epochs are alike
            if not plan.num_batches:
                raise ConfigError(f'the epochs of this loader have no batches from epoch {epoch} on.')
            more, batch = divmod(batch, plan.num_batches)
            return loader.plan(epoch + more), batch
    return plan, batch


def _first_whole_epoch(loader: StreamingDataLoader, plan: BatchPlan) -> int:
    """An epoch from which on nothing is left out (`skip`)."""
    size, batches = len(plan.order), max(len(plan.order) // plan.global_batch_size, 1)
    ends = (end for _, end in loader.dataset.skip)
    return max((-(-end.count // size) if end.unit == 'sp' else end.count // batches + 1 for end in ends), default=0)


def _check_mixture(plan: BatchPlan, number: int) -> None:
    if int(plan.global_positions(number).min()) < plan.order.first:
        raise ConfigError(
            f'the mixture took over at position {plan.order.first} of epoch {plan.order.epoch}, got a batch from '
            f'before it. Leave out --epoch to count batches from --state, or explain it with the mixture of then.'
        )


def _range_of(explanation: BatchExplanation, epoch_size: int) -> list[int]:
    """The samples of the run that the batch lies between, as `skip` takes them."""
    own = explanation.positions[~explanation.is_padding]
    return [explanation.epoch * epoch_size + int(end) for end in (own.min(), own.max() + 1)]


def _heading(explanation: BatchExplanation, plan: BatchPlan) -> str:
    topology, number = plan.topology, explanation.number
    place = f'of {plan.total_batches}' if not plan.start else f'after position {plan.start}'
    ranks, nodes = (
        f'{n} {what}{"s" * (n > 1)}' for n, what in ((topology.world_size, 'rank'), (topology.num_nodes, 'node'))
    )
    return (
        f'Global batch {number} of epoch {explanation.epoch}, {place}, on {ranks} and {nodes}; the position after it '
        f'is {explanation.end} of {len(plan.order)}.\nStreams: {_shares(explanation)}'
    )


def _shares(explanation: BatchExplanation) -> str:
    counts = {name: count for name, count in explanation.stream_counts().items() if count}
    total = sum(counts.values())
    return ', '.join(f'{name} {count} ({count / total:.3f})' for name, count in counts.items()) or 'none'


def _print_next_use(loader: StreamingDataLoader, plan: BatchPlan, number: int, arguments: argparse.Namespace) -> int:
    from headrace.order import next_use

    dataset, sample, epoch = loader.dataset, arguments.sample, plan.order.epoch
    if not 0 <= sample < dataset.num_samples:
        raise ConfigError(f'--sample must be an id in [0, {dataset.num_samples}), got {sample}.')
    use = next_use(
        lambda later: plan if later == epoch else loader.plan(later), sample, epoch=epoch, batch=number, epochs=_EPOCHS
    )
    shards, rows = dataset.locate(np.array([sample]))
    stream, shard, file = dataset.place(int(shards[0]))
    place = {'id': sample, 'stream': stream, 'shard': shard, 'file': file, 'shard_row': int(rows[0])}
    if arguments.json:
        print(json.dumps({**place, 'next': None if use is None else dataclasses.asdict(use)}))
    else:
        print('Sample {id} is row {shard_row} of shard {shard} ({file}) of stream {stream}.'.format_map(place))
        print(
            f'It is not seen in {_EPOCHS} epochs from batch {number} of epoch {epoch} on.'
            if use is None
            else f'From batch {number} of epoch {epoch} on it is first seen in epoch {use.epoch}, at position '
            f'{use.position}: row {use.row} of rank {use.rank} in global batch {use.batch}.'
        )
    return 0 if use is not None else 1
