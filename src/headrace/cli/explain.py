"""``headrace explain``: which samples make up a global batch, or when a sample is seen next. Reads indexes, no data."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.mixing import Config, LoaderConfig
    from headrace.order import BatchExplanation, BatchPlan

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'say which samples make up a global batch, or when a sample is seen next, without reading any data'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which loader of which file, on which topology, and which batch or sample."""
    parser.add_argument('config', type=Path, help='YAML file of the loaders')
    parser.add_argument('overrides', nargs='*', metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--loader', default='train', help='train, or eval, test, predict and a name: eval.books')
    parser.add_argument('--batch', type=int, default=0, help='global batch: of --epoch, or counted through all epochs')
    parser.add_argument('--epoch', type=int, help='epoch that --batch is counted in')
    parser.add_argument('--sample', type=int, help='a global sample id: say when it is seen next, from --batch on')
    parser.add_argument('--rank', type=int, help='only the rows of this rank')
    parser.add_argument('--ranks', type=int, default=1, help='ranks of all nodes together')
    parser.add_argument('--nodes', type=int, default=1, help='nodes')
    parser.add_argument('--replication', type=int, default=1, help='neighbouring ranks that get the same samples')
    parser.add_argument('--state', type=Path, help='JSON of a checkpointed state, for a run that was changed since')
    parser.add_argument('--json', action='store_true', help='print JSON')


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    from headrace.mixing import build_loader, load_config
    from headrace.order import Topology, find_state

    rank = arguments.rank or 0
    topology = Topology(
        rank=rank, world_size=arguments.ranks, num_nodes=arguments.nodes, replication=arguments.replication
    )
    config = _chosen(load_config(arguments.config, overrides=arguments.overrides), arguments.loader)
    loader = build_loader(config, topology=topology)
    if arguments.state is not None:
        loader.load_state_dict(dict(find_state(json.loads(arguments.state.read_text()))))
    plan, number = _find_batch(loader, arguments.batch, arguments.epoch)
    if arguments.sample is not None:
        return _print_next_use(loader, plan, number, arguments)
    explanation = loader.dataset.explain(plan, number)
    if arguments.rank is not None:
        explanation = explanation.of_rank(rank)
    if arguments.json:
        print(json.dumps(explanation.to_json()))
    else:
        print(_heading(explanation, plan))
        print(explanation)
    return 0


def _chosen(config: Config, name: str) -> LoaderConfig:
    section, _, inner = name.partition('.')
    if section == 'train' and not inner and config.train is not None:
        return config.train
    loaders = {loader.name: loader for loader in getattr(config, section, ())} if section != 'train' else {}
    chosen = next(iter(loaders.values())) if len(loaders) == 1 and not inner else loaders.get(inner)
    if chosen is None:
        there = ['train'] if config.train is not None else []
        there += [f'{part}.{loader.name}' for part in ('eval', 'test', 'predict') for loader in getattr(config, part)]
        raise ConfigError(f'--loader must be one of {", ".join(there)}, got {name!r}.')
    return chosen


def _find_batch(loader: StreamingDataLoader, batch: int, epoch: int | None) -> tuple[BatchPlan, int]:
    """The plan of the batch's epoch, and its number there. Without an epoch, batches are counted through all."""
    if batch < 0 or (epoch is not None and epoch < 0):
        raise ConfigError(f'--batch and --epoch count from 0, got --batch {batch} and --epoch {epoch}.')
    if epoch is not None:
        plan = loader.plan(epoch)
        if batch >= plan.num_batches:
            raise ConfigError(f'epoch {epoch} has batches 0 to {plan.num_batches - 1}, got --batch {batch}.')
        return plan, batch
    epoch = 0
    while batch >= (plan := loader.plan(epoch)).num_batches:
        if not plan.num_batches and not loader.plan(epoch + 1).num_batches:
            raise ConfigError(f'the epochs of this loader have no batches from epoch {epoch} on.')
        batch, epoch = batch - plan.num_batches, epoch + 1
    return plan, batch


def _heading(explanation: BatchExplanation, plan: BatchPlan) -> str:
    counts = {name: count for name, count in explanation.stream_counts().items() if count}
    total = sum(counts.values())
    shares = ', '.join(f'{name} {count} ({count / total:.3f})' for name, count in counts.items())
    topology = plan.topology
    world = f'{topology.world_size} ranks on {topology.num_nodes} nodes'
    return (
        f'Global batch {explanation.number} of epoch {explanation.epoch}, of {plan.total_batches}; {world}; '
        f'the position after it is {explanation.end} of {len(plan.order)}.\nStreams: {shares or "none"}'
    )


def _print_next_use(loader: StreamingDataLoader, plan: BatchPlan, number: int, arguments: argparse.Namespace) -> int:
    from headrace.order import next_use

    dataset, sample = loader.dataset, arguments.sample
    epoch, start = plan.order.epoch, plan.end(number - 1) if number else plan.start
    use = next_use(loader.plan, sample, epoch=epoch, position=start)
    shards, rows = dataset.locate(np.array([sample]))
    stream, shard = dataset.pool.place(int(shards[0]))
    file, row = stream.shards[shard].files[0].raw.basename, int(rows[0])
    if arguments.json:
        place = {'id': sample, 'stream': stream.name, 'shard': shard, 'file': file, 'shard_row': row}
        print(json.dumps(place | {'next': None if use is None else dataclasses.asdict(use)}))
    else:
        print(f'Sample {sample} is row {row} of shard {shard} ({file}) of stream {stream.name}.')
        print(
            'It is not seen in the next 1000 epochs.'
            if use is None
            else f'From batch {number} of epoch {epoch} on it is first seen in epoch {use.epoch}, at position '
            f'{use.position}: global batch {use.batch} of the epoch, row {use.row} of rank {use.rank}.'
        )
    return 0 if use is not None else 1
