"""The commands `config` and `convert-config`: a configuration checked, shown, or made of one for LLM Foundry."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import print_answer, show_examples
from headrace.cli.commands import command
from headrace.errors.display import count_text
from headrace.errors.redaction import HIDDEN, redact

if TYPE_CHECKING:
    from headrace.mixing import LoaderConfig


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('action', choices=['check', 'show', 'schema'], help='see the examples')
    parser.add_argument('config', nargs='?', type=Path, help='YAML file of the loaders; not for `schema`')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')
    show_examples(
        parser,
        'headrace config check train.yaml             # every mistake, with file and line',
        'headrace config show train.yaml shuffle_seed=7  # with includes and interpolations resolved',
        'headrace config schema > headrace.schema.json   # for an editor: docs/configuration.md',
    )


@command('config', _add_config)
def _run_config(arguments: argparse.Namespace) -> int:
    if arguments.action == 'schema':
        from headrace.config.reference import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    if arguments.config is None:
        print(f'headrace: config {arguments.action} needs the YAML file of the loaders', file=sys.stderr)
        return 2
    from headrace.config.schema import named_loaders
    from headrace.mixing import load_config, to_mapping, to_yaml

    config = load_config(arguments.config, overrides=arguments.overrides)
    if arguments.action == 'check':
        described = {name: _described(loader) for name, loader in named_loaders(config).items()}
        lines = [f'{arguments.config}: no mistakes', *(f'  {name}: {text}' for name, text in described.items())]
        print_answer(arguments, {'config': str(arguments.config), 'loaders': described}, '\n'.join(lines))
    else:
        print(redact(json.dumps(to_mapping(config)) + '\n' if arguments.json else to_yaml(config)), end='')
    return 0


def _described(loader: LoaderConfig) -> str:
    streams = len(loader.streams) or 1
    size = (
        f'{count_text(loader.global_batch_size, "sample")} a global batch'
        if loader.global_batch_size is not None
        else f'{count_text(loader.device_batch_size or 1, "sample")} a batch of each rank'
    )
    packed = '' if loader.packing is None else ', packed'
    workers = count_text(loader.loader.num_workers, 'worker')
    return f'{count_text(streams, "stream")}, {size}{packed}, {workers} a rank'


def _add_convert_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('config', type=Path, help="YAML file for LLM Foundry's training")
    parser.add_argument(
        'overrides', nargs='*', default=[], metavar='KEY=VALUE', help="overrides of the file, with LLM Foundry's keys"
    )
    parser.add_argument(
        '--native', action='store_true', help='use the native order, for new runs, and explain each change'
    )
    show_examples(
        parser,
        'headrace convert-config foundry.yaml > train.yaml',
        'headrace convert-config foundry.yaml --native > train.yaml',
    )


@command('convert-config', _add_convert_config, json='print JSON: the configuration, and the notes')
def _run_convert_config(arguments: argparse.Namespace) -> int:
    from headrace.mixing import config_of_foundry, to_mapping, to_yaml

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        config = config_of_foundry(arguments.config, overrides=arguments.overrides)
    notes = [str(warning.message) for warning in caught]
    if arguments.native:
        from headrace.config.foundry import as_native

        config, changes = as_native(config)
        notes += changes
    text = to_yaml(config)
    shown = redact(text)
    if shown != text:
        notes.append(f'Secrets are left out; write interpolations in the place of {HIDDEN}.')
    if arguments.json:
        print(redact(json.dumps({'config': to_mapping(config), 'notes': notes})))
        return 0
    for note in notes:
        print(f'headrace: {note}', file=sys.stderr)
    print(shown, end='')
    return 0
