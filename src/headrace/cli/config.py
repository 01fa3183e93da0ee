"""``headrace config``: a configuration checked, with its defaults resolved, and the JSON Schema for editors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import STATUS, show_examples

if TYPE_CHECKING:
    from headrace.mixing import Config, LoaderConfig

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'check a configuration, show it as it is read, or print the JSON Schema for editors'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to do, the file and its overrides."""
    parser.add_argument('action', choices=['check', 'show', 'schema'], help='see the examples')
    parser.add_argument('config', nargs='?', type=Path, help='YAML file of the loaders; not for `schema`')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace config check train.yaml             # every mistake, with file and line',
        'headrace config show train.yaml shuffle_seed=7  # with includes and interpolations resolved',
        'headrace config schema > headrace.schema.json   # for an editor: docs/configuration.md',
        status=STATUS,
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; a mistake in the file is raised, with all others."""
    if arguments.action == 'schema':
        from headrace.config.reference import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    if arguments.config is None:
        print(f'headrace: config {arguments.action} needs the YAML file of the loaders', file=sys.stderr)
        return 2
    from headrace.mixing import load_config, to_mapping, to_yaml
    from headrace.redaction import redact

    config = load_config(arguments.config, overrides=arguments.overrides)
    if arguments.action == 'check':
        loaders = _loaders(config)
        described = {name: _described(loader) for name, loader in loaders.items()}
        if arguments.json:
            print(json.dumps({'config': str(arguments.config), 'loaders': described}))
        else:
            lines = (f'  {name}: {text}' for name, text in described.items())
            print(f'{arguments.config}: no mistakes', *lines, sep='\n')
    else:
        print(redact(json.dumps(to_mapping(config)) + '\n' if arguments.json else to_yaml(config)), end='')
    return 0


def _loaders(config: Config) -> dict[str, LoaderConfig]:
    found = {} if config.train is None else {'train': config.train}
    for section in ('eval', 'test', 'predict'):
        loaders: tuple[LoaderConfig, ...] = getattr(config, section)
        found |= {section if loader.name == section else f'{section}.{loader.name}': loader for loader in loaders}
    return found


def _described(loader: LoaderConfig) -> str:
    streams = len(loader.streams) or 1
    size = (
        f'{loader.global_batch_size} samples a global batch'
        if loader.global_batch_size is not None
        else f'{loader.device_batch_size} samples a batch of each rank'
    )
    packed = '' if loader.packing is None else ', packed'
    return f'{streams} stream{"s" * (streams > 1)}, {size}{packed}, {loader.loader.num_workers} workers a rank'
