"""A command's loader: of a configuration, on a topology, at the position of a state."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.mixing import Config, LoaderConfig

__all__ = ['add_config_arguments', 'add_topology_arguments', 'choose_loader', 'open_loader']


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
    parser.add_argument('overrides', nargs='*', metavar='KEY=VALUE', help='what goes over the file')


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
