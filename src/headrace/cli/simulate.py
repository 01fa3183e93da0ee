"""``headrace simulate``: throughput, waits, bytes and cost of a run, before it starts."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from headrace.cli.arguments import show_examples

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'foresee throughput, waits, cache and egress cost of a run, without data or GPUs'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and its conditions."""
    parser.add_argument('config', type=Path, help='YAML file of the loaders')
    parser.add_argument('overrides', nargs='*', metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--ranks', type=int, default=1, help='ranks of all nodes together')
    parser.add_argument('--nodes', type=int, default=1, help='nodes')
    parser.add_argument('--step-seconds', type=float, default=0.1, help='a training step without waiting for data')
    parser.add_argument('--bandwidth', default='119mb', help='of each node, in bytes per second, such as 1.2gb')
    parser.add_argument('--connection-bandwidth', help='of one connection, in bytes per second')
    parser.add_argument('--latency', type=float, default=0.03, help='seconds from a request to the first byte')
    parser.add_argument('--read-seconds', type=float, default=0.0002, help='making one batch, with decoding')
    parser.add_argument('--start-seconds', type=float, default=0.1, help='start of the workers')
    parser.add_argument('--batches', type=int, default=500, help='most batches of an epoch that are simulated')
    parser.add_argument('--epochs', type=int, default=1, help='epochs that are simulated')
    parser.add_argument('--prices', type=Path, help='YAML of prices per GB by provider, in place of those of headrace')
    parser.add_argument('--html', type=Path, metavar='FILE', help='write a page with plots')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace simulate train.yaml --ranks 64 --nodes 8 --step-seconds 0.35 --bandwidth 1.2gb',
        'headrace simulate train.yaml train.cache_limit=200gb --epochs 2 --html run.html',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the figures."""
    from headrace.errors import ConfigError
    from headrace.format import bytes_to_int
    from headrace.mixing import load_config
    from headrace.simulate import Conditions, simulate
    from headrace.simulate.page import page
    from headrace.simulate.prices import costs, read_prices

    config = load_config(arguments.config, overrides=arguments.overrides)
    if config.train is None:
        raise ConfigError('a simulation needs a `train` section, and the configuration has none.')
    prices = read_prices(arguments.prices)
    given = {field.name: getattr(arguments, field.name, None) for field in fields(Conditions)}
    given['bandwidth'] = float(bytes_to_int(arguments.bandwidth))
    if arguments.connection_bandwidth is not None:
        given['connection_bandwidth'] = float(bytes_to_int(arguments.connection_bandwidth))
    kept = {name: value for name, value in given.items() if value is not None}
    simulated = simulate(config.train, Conditions(**kept))
    cost = costs(simulated.epoch_fetched_bytes * arguments.nodes, prices)
    if arguments.html is not None:
        arguments.html.write_text(page(simulated, cost, title=str(arguments.config)))
    if arguments.json:
        print(json.dumps({**simulated.to_json(), 'egress_cost': cost}))
    else:
        print(simulated)
        print('  egress of an epoch, all nodes:')
        for provider, dollars in cost.items():
            print(f'    {provider:34}  ${dollars:,.2f}')
    return 0
