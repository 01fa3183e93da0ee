"""A command's loader: of a configuration, on a topology, at the position of a state."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import add_store_arguments, count, store_options
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.mixing import Config, LoaderConfig

__all__ = [
    'add_config_arguments',
    'add_data_arguments',
    'add_topology_arguments',
    'choose_loader',
    'open_loader',
    'train_of_dataset',
    'train_of_file',
]


def add_config_arguments(parser: argparse.ArgumentParser, *, or_else: str = '') -> None:
    """Declare the file and its overrides.

    Args:
        parser: the command's.
        or_else: what may stand in its place, for the help; '': the file is required.
    """
    if or_else:
        parser.add_argument('config', type=Path, nargs='?', help=f'YAML file of the loaders, {or_else}')
    else:
        parser.add_argument('config', type=Path, help='YAML file of the loaders')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a file, or a dataset in its place, which needs no file; see `train_of_file`, `train_of_dataset`."""
    parser.add_argument('what', metavar='CONFIG|URL', help='YAML file of the loaders, or a dataset')
    parser.add_argument(
        'overrides',
        nargs='*',
        metavar='KEY=VALUE',
        help='what goes over the file; of a dataset, such as train.decode.size=224',
    )
    parser.add_argument('--batch-size', type=count, default=32, metavar='N', help='of a URL (default: %(default)s)')
    add_store_arguments(parser, of='the store of a URL')


def train_of_file(arguments: argparse.Namespace, purpose: str) -> LoaderConfig | None:
    """The training loader of the file that `add_data_arguments` declared; None: a dataset is given.

    Args:
        arguments: the command's.
        purpose: what needs the loader, for the message.

    Raises:
        ConfigError: there is no such file, it breaks a rule, or it has no `train` section.
    """
    from headrace.mixing import load_config

    if Path(arguments.what).is_file():
        config = load_config(arguments.what, overrides=arguments.overrides)
        if config.train is None:
            raise ConfigError(f'{purpose} needs a `train` section, and the configuration has none.')
        return config.train
    if arguments.what.endswith(('.yaml', '.yml')):
        raise ConfigError(f'there is no file {arguments.what}: check its path.')
    return None


def train_of_dataset(arguments: argparse.Namespace, place: Mapping[str, str]) -> LoaderConfig:
    """A training loader of the dataset that `add_data_arguments` declared.

    Args:
        arguments: the command's.
        place: `remote` and `local` of its stream.

    Raises:
        ConfigError: a KEY=VALUE breaks a rule.
    """
    from headrace.mixing import load_config

    options = store_options(arguments)
    store = {
        'endpoint_url': options.endpoint_url,
        'region': options.region,
        'anonymous': options.anonymous or None,
        'store_options': dict(options.extra) or None,
    }
    given = {name: value for name, value in store.items() if value is not None}
    made = {'global_batch_size': arguments.batch_size, 'train': {'streams': {'data': {**place, **given}}}}
    config = load_config(made, overrides=arguments.overrides)
    assert config.train is not None
    return config.train


def add_topology_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the topology."""
    parser.add_argument('--ranks', type=int, default=1, help='ranks of all nodes together')
    parser.add_argument('--nodes', type=int, default=1, help='nodes')
    parser.add_argument('--replication', type=int, default=1, help='neighbouring ranks that get the same samples')


def open_loader(arguments: argparse.Namespace, *, name: str = 'train', rank: int = 0) -> StreamingDataLoader:
    """The loader of a configuration, on the given topology.

    Raises:
        ConfigError, TopologyError: the configuration breaks a rule, or the ranks do not suit it.
    """
    from headrace.mixing import build_loader, load_config
    from headrace.order import Topology

    topology = Topology(
        rank=rank, world_size=arguments.ranks, num_nodes=arguments.nodes, replication=arguments.replication
    )
    config = choose_loader(load_config(arguments.config, overrides=arguments.overrides), name)
    return build_loader(config, topology=topology)


def choose_loader(config: Config, name: str) -> LoaderConfig:
    """The loader of a name, such as train or eval.books.

    Raises:
        ConfigError: there is none.
    """
    loaders = {} if config.train is None else {'train': config.train}
    for section in ('eval', 'test', 'predict'):
        of_section: tuple[LoaderConfig, ...] = getattr(config, section)
        loaders |= {f'{section}.{loader.name}': loader for loader in of_section}
        if len(of_section) == 1:
            loaders.setdefault(section, of_section[0])
    if name == 'train' and name not in loaders:
        raise ConfigError(f'the configuration has no `train` section; there are {", ".join(loaders) or "no loaders"}.')
    if name not in loaders:
        raise ConfigError(f'--loader must be one of {", ".join(loaders)}, got {name!r}.')
    return loaders[name]
