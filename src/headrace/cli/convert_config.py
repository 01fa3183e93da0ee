"""``headrace convert-config``: a YAML of LLM Foundry's as one of ours, with the same batches."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

from headrace.cli.arguments import show_examples
from headrace.redaction import HIDDEN, redact

__all__ = ['HELP', 'add_arguments', 'run']

HELP = "print the loaders of LLM Foundry's YAML as YAML of headrace, with the same batches"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file and its overrides."""
    parser.add_argument('config', type=Path, help="YAML file for LLM Foundry's training")
    parser.add_argument(
        'overrides', nargs='*', default=[], metavar='KEY=VALUE', help="what goes over the file, in Foundry's keys"
    )
    parser.add_argument(
        '--native', action='store_true', help='take the native order, for new runs, and say what each change means'
    )
    parser.add_argument('--json', action='store_true', help='print JSON: the configuration, and the notes')
    show_examples(
        parser,
        'headrace convert-config foundry.yaml > train.yaml',
        'headrace convert-config foundry.yaml --native > train.yaml',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the configuration; keys without effect are named on stderr."""
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
