"""``headrace warm``: the cache of this node, filled before a run."""

from __future__ import annotations

import argparse
import dataclasses
import json

from headrace.cli.arguments import count, show_examples, shown_progress
from headrace.cli.loaders import add_config_arguments, add_topology_arguments
from headrace.display import count_text, size_text
from headrace.errors import ConfigError

__all__ = ['HELP', 'add_arguments', 'run']

HELP = "fill this node's cache before a run: all that it reads in an epoch, or the shards of the first batches"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configuration, the node, and how much."""
    add_config_arguments(parser)
    add_topology_arguments(parser)
    parser.add_argument('--node', type=int, default=0, help='number of this node, counted from 0')
    parser.add_argument('--batches', type=count, metavar='N', help='the first global batches (default: an epoch)')
    parser.add_argument('-j', '--jobs', type=count, default=8, metavar='N', help='concurrent shards')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace warm train.yaml',
        'headrace warm train.yaml --ranks 64 --nodes 8 --node $SLURM_NODEID --batches 200',
    )


def run(arguments: argparse.Namespace) -> int:
    """Fetch, and print what came."""
    from headrace.config.build import build_dataset
    from headrace.dataset.warm import warm
    from headrace.mixing import load_config
    from headrace.order import Topology

    config = load_config(arguments.config, overrides=arguments.overrides).train
    if config is None:
        raise ConfigError('`headrace warm` needs a `train` section, and the configuration has none.')
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
    print(f'Fetched {count_text(report.fetched, "shard")} ({size_text(report.bytes)}), {there:,} were there.')
    if report.is_full:
        print('The cache is full: cache_limit has no room for the shards that are needed later.')
    return 0
