"""``headrace demo``: text to shards to two trainers, a kill, a resume, and the proof."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from headrace.cli.arguments import printing_to_stderr, show_examples
from headrace.errors import MissingDependencyError
from headrace.version import __version__

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'train, kill -9, resume on other ranks, and prove that no sample was lost or repeated'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output folder, the data and the trainers."""
    parser.add_argument('--out', type=Path, default=Path('demo-output'), help='folder for everything that it writes')
    parser.add_argument(
        '--store', choices=['local', 's3'], default='local', help='shards in a folder, or on a loopback S3 server'
    )
    parser.add_argument(
        '--framework', choices=['lightning', 'composer', 'both'], default='both', help='the trainer to run it under'
    )
    parser.add_argument('--json', action='store_true', help='print the proof as JSON, and all else on stderr')
    show_examples(
        parser,
        'headrace demo',
        'headrace demo --framework lightning --store s3',
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 if its proof holds."""
    demo = _demo()
    frameworks = demo.FRAMEWORKS if arguments.framework == 'both' else (arguments.framework,)
    with printing_to_stderr(arguments.json):
        trainings = demo.run_demo(arguments.out, store=arguments.store, frameworks=frameworks)
    holds = all(training.proof.holds for training in trainings)
    if arguments.json:
        proofs = {training.framework: dataclasses.asdict(training.proof) for training in trainings}
        print(json.dumps({'out': str(arguments.out.resolve()), 'holds': holds, 'proofs': proofs}))
    return 0 if holds else 1


def _demo() -> Any:
    """The module `examples.demo.run` of this checkout."""
    root = Path(__file__).parents[3]
    if not (root / 'examples' / 'demo' / 'run.py').is_file():
        raise MissingDependencyError(
            f'the demo is no part of an installed headrace: unpack the source distribution of headrace {__version__} '
            '(pip download --no-deps --no-binary :all: headrace) or clone its repository, and run `make demo` there'
        )
    sys.path.insert(0, str(root))  # it imports `examples.demo`, and `tests.support` for its S3 server
    return importlib.import_module('examples.demo.run')
