"""``headrace doctor``: what will go wrong in a run, found before it starts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import add_store_arguments, count, show_examples, store_options
from headrace.display import printable
from headrace.redaction import redact

if TYPE_CHECKING:
    from headrace.doctor import Finding

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'find what will go wrong in a run: versions, launcher, limits, stores, clocks, cache folders'

_MARKS = {'ok': 'ok      ', 'note': 'note    ', 'problem': 'PROBLEM '}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the data and the launch to look at."""
    parser.add_argument('what', nargs='?', metavar='CONFIG|URL', help='YAML file of the loaders, or a dataset')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--ranks', type=int, default=1, help='ranks on this machine')
    parser.add_argument('--nodes', type=count, metavar='N', help="nodes of the run (default: the launcher's)")
    parser.add_argument('--json', action='store_true', help='print JSON')
    add_store_arguments(parser, of='the store of a URL')
    show_examples(
        parser,
        'headrace doctor                          # this machine and this environment',
        'headrace doctor train.yaml --ranks 8     # and the stores and caches of every stream',
        'headrace doctor train.yaml --nodes 8     # and whether nodes download the same shards',
        'headrace doctor s3://bucket/data/train   # and one dataset',
        status='Exit status: 0, no problem; 1, a problem, or an error; 2, wrong arguments.',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print each finding when it is known; 1 if there is a problem."""
    findings: list[Finding] = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            print(printable(redact(f'{_MARKS[finding.level]}{finding.what}: {finding.text}')), flush=True)
            if finding.fix:
                print(printable(redact(f'{"":8}-> {finding.fix}')), flush=True)
    problems = sum(finding.level == 'problem' for finding in findings)
    if arguments.json:
        print(redact(json.dumps([dataclasses.asdict(finding) for finding in findings])))
    else:
        notes = sum(finding.level == 'note' for finding in findings)
        print(f'{len(findings)} checks: {problems} problem(s), {notes} note(s)')
    return 1 if problems else 0


def _findings(arguments: argparse.Namespace) -> Iterable[Finding]:
    from headrace.dataset.topology import detect_topology
    from headrace.doctor import Place, check_data, check_launcher, check_machine, check_versions, places_of
    from headrace.errors import TopologyError
    from headrace.mixing import load_config

    places, workers, train, nodes = list[Place](), 0, None, arguments.nodes or 1
    if arguments.what is not None and Path(arguments.what).is_file():
        config = load_config(arguments.what, overrides=arguments.overrides)
        places = places_of(config)
        train = config.train
        workers = 0 if train is None else train.loader.num_workers
    elif arguments.what is not None:
        places = [Place('data', arguments.what, options=store_options(arguments))]
    if arguments.nodes is None:
        with contextlib.suppress(TopologyError):  # which `check_launcher` shows
            nodes = detect_topology().num_nodes
    yield from check_versions()
    yield from check_launcher()
    yield from check_machine(workers=workers, ranks=arguments.ranks)
    yield from check_data(places, train=train, nodes=nodes)
