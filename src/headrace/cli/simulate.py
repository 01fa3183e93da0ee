"""``headrace simulate``: throughput, waits, bytes and cost of a run, before it starts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headrace.cli.arguments import show_examples
from headrace.cli.conditions import add_condition_arguments, read_conditions, train_config
from headrace.errors import ConfigError

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'foresee throughput, waits, cache and egress cost of a run, without data or GPUs'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and its conditions."""
    add_condition_arguments(parser, batches=500)
    parser.add_argument('--epochs', type=int, default=1, help='epochs that are simulated')
    parser.add_argument('--prices', type=Path, help='YAML of prices per GB by provider, in place of those of headrace')
    parser.add_argument('--html', type=Path, metavar='FILE', help='write a page with plots')
    parser.add_argument('--ui', action='store_true', help='serve a page in which values change and plots follow')
    parser.add_argument('--port', type=int, default=0, help='of 127.0.0.1, for --ui; 0: any free one')
    show_examples(
        parser,
        'headrace simulate train.yaml --ranks 64 --nodes 8 --step-seconds 0.35 --bandwidth 1.2gb',
        'headrace simulate train.yaml train.cache_limit=200gb --epochs 2 --html run.html',
        'headrace simulate train.yaml --ui --port 8000   # from afar: ssh -L 8000:127.0.0.1:8000 HOST',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the figures."""
    from headrace.simulate import simulate
    from headrace.simulate.page import page
    from headrace.simulate.prices import costs, read_prices

    if arguments.ui and (arguments.json or arguments.html is not None):
        raise ConfigError('--ui shows a page until it is stopped; leave out --json and --html.')
    prices = read_prices(arguments.prices)
    if arguments.ui:
        return _serve(arguments, prices)
    simulated = simulate(train_config(arguments), read_conditions(arguments))
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


def _serve(arguments: argparse.Namespace, prices: dict[str, float]) -> int:
    from headrace.simulate.ui import SimulationServer

    server = SimulationServer(
        train_config(arguments),
        read_conditions(arguments),
        prices,
        title=str(arguments.config),
        port=arguments.port,
    )
    with server:
        print(f'The page is at {server.url} until Ctrl-C.', flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
