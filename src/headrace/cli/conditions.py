"""The machines, the network and the model of a simulated run, as arguments."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.mixing import LoaderConfig
    from headrace.simulate import Conditions

__all__ = ['add_condition_arguments', 'read_conditions', 'train_config']


def add_condition_arguments(parser: argparse.ArgumentParser, *, batches: int) -> None:
    """Declare the configuration and the conditions.

    Args:
        parser: the command's.
        batches: default of the batches of an epoch that are simulated.
    """
    parser.add_argument('config', type=Path, help='YAML file of the loaders')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--ranks', type=int, default=1, help='ranks of all nodes together')
    parser.add_argument('--nodes', type=int, default=1, help='nodes')
    parser.add_argument(
        '--replication', type=int, default=1, help='neighbouring ranks that get the same samples; a YAML says it, too'
    )
    parser.add_argument('--step-seconds', type=float, default=0.1, help='a training step without waiting for data')
    parser.add_argument('--bandwidth', default='119mb', help='of each node, in bytes per second, such as 1.2gb')
    parser.add_argument('--connection-bandwidth', help='of one connection, in bytes per second')
    parser.add_argument('--latency', type=float, default=0.03, help='seconds from a request to the first byte')
    parser.add_argument(
        '--request-seconds',
        type=float,
        default=0.002,
        help='a request beside the latency: processor time of the library',
    )
    parser.add_argument('--publish-seconds', type=float, default=0.001, help='check of a shard after its last byte')
    parser.add_argument(
        '--read-seconds', type=float, default=0.0002, help='making one batch, with decoding; `headrace bench` measures'
    )
    parser.add_argument('--receive-seconds', type=float, default=0.0005, help='taking a batch from a worker')
    parser.add_argument('--start-seconds', type=float, default=0.1, help='start of the workers')
    parser.add_argument('--batches', type=int, default=batches, help='most batches of an epoch that are simulated')
    parser.add_argument('--json', action='store_true', help='print JSON')


def read_conditions(arguments: argparse.Namespace) -> Conditions:
    """The conditions that `add_condition_arguments` declared.

    Raises:
        ConfigError: a value is out of range.
    """
    from headrace.format import bytes_to_int
    from headrace.simulate import Conditions

    given = {field.name: getattr(arguments, field.name, None) for field in fields(Conditions)}
    given['bandwidth'] = float(bytes_to_int(arguments.bandwidth))
    if arguments.connection_bandwidth is not None:
        given['connection_bandwidth'] = float(bytes_to_int(arguments.connection_bandwidth))
    return Conditions(**{name: value for name, value in given.items() if value is not None})


def train_config(arguments: argparse.Namespace) -> LoaderConfig:
    """The training loader of the configuration.

    Raises:
        ConfigError: the configuration breaks a rule, or has none.
    """
    from headrace.mixing import load_config

    config = load_config(arguments.config, overrides=arguments.overrides)
    if config.train is None:
        raise ConfigError('a simulation needs a `train` section, and the configuration has none.')
    return config.train
