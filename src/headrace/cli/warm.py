"""``headrace warm``: the cache of this node, filled before a run."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from headrace.cli.arguments import count, show_examples, shown_progress
from headrace.cli.loaders import add_data_arguments, add_topology_arguments, train_of_dataset, train_of_file
from headrace.display import count_text, human_size
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.mixing import LoaderConfig

__all__ = ['HELP', 'add_arguments', 'run']

HELP = "fill this node's cache before a run: all that it reads in an epoch, or the shards of the first batches"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configuration, the node, and how much."""
    add_data_arguments(parser)
    parser.add_argument('--local', metavar='DIR', help='cache folder of a URL')
    add_topology_arguments(parser)
    parser.add_argument('--node', type=int, default=0, help='number of this node, counted from 0')
    parser.add_argument('--batches', type=count, metavar='N', help='the first global batches (default: an epoch)')
    parser.add_argument('-j', '--jobs', type=count, default=8, metavar='N', help='concurrent shards')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace warm train.yaml',
        'headrace warm s3://bucket/data --local /scratch/cache/data',
        'headrace warm train.yaml --ranks 64 --nodes 8 --node $SLURM_NODEID --batches 200',
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetch, and print what came."""
    from headrace.config.build import build_dataset
    from headrace.dataset.warm import warm
    from headrace.order import Topology

    config = _config(arguments)
    if not 0 <= arguments.node < arguments.nodes:
        raise ConfigError(f'--node counts from 0 to --nodes - 1, which is {arguments.nodes - 1}, got {arguments.node}.')
    if config.packing is not None:
        if arguments.batches is not None:
            raise ConfigError(
                '--batches needs a loader without `packing`, since the documents of a batch are known when they are '
                'read. Leave it out: then all shards are fetched.'
            )
        config = dataclasses.replace(config, packing=None)  # the same shards, in the order of the documents
    topology = Topology(
        rank=arguments.node * (arguments.ranks // arguments.nodes),
        world_size=arguments.ranks,
        num_nodes=arguments.nodes,
        replication=max(arguments.replication, config.replication or 1),
    )
    dataset = build_dataset(config, topology=topology)
    with shown_progress('warm', unit=' shards') as show:
        report = warm(
            dataset,
            dataset.plan(epoch=0, topology=topology),
            batches=arguments.batches,
            jobs=arguments.jobs,
            progress=lambda done: show(done, len(dataset.shards)),
        )
    if arguments.json:
        print(json.dumps(report.to_json()))
        return 0
    there = report.shards - report.fetched
    print(f'Fetched {count_text(report.fetched, "shard")} ({human_size(report.bytes)}), {there:,} were there.')
    if report.is_full:
        print('The cache is full: cache_limit has no room for the shards that are needed later.')
    return 0


def _config(arguments: argparse.Namespace) -> LoaderConfig:
    """The training loader of the file, or one of the URL."""
    config = train_of_file(arguments, '`headrace warm`')
    if config is not None:
        if arguments.local is not None:
            raise ConfigError(
                f'--local is the cache folder of a URL, but {arguments.what} is a configuration, which names its own. '
                f'Leave it out, or write train.local={arguments.local}.'
            )
        return config
    if arguments.local is None:
        raise ConfigError(f'a URL needs the cache folder to fill: add --local DIR for {arguments.what}.')
    return train_of_dataset(arguments, {'remote': arguments.what, 'local': arguments.local})
