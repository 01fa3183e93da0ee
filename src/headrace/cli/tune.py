"""``headrace tune``: settings under which a run waits little for data, found by simulated runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import count, show_examples, shown_progress
from headrace.cli.conditions import add_condition_arguments, read_conditions, train_config
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.simulate import Tuning
    from headrace.simulate.tune import Trial

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'propose workers, prefetch, cache and blocks of the shuffle under which a run waits little for data'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run, its conditions, and the target."""
    add_condition_arguments(parser, batches=100)
    parser.add_argument('--wait', default='1%', help='the most waiting, as a share of the time: 1%% or 0.01')
    parser.add_argument('--most-workers', type=count, default=8, metavar='N', help='workers of a rank at most')
    parser.add_argument('--disk', metavar='SIZE', help='the most that the cache of a node may take, such as 200gb')
    parser.add_argument('--keep-order', action='store_true', help='for a run in progress: change no order of samples')
    parser.add_argument('--seconds', type=float, default=120, help='the most time that the search may take')
    parser.add_argument('--write', type=Path, metavar='OUT.yaml', help='write a configuration with the changes')
    show_examples(
        parser,
        'headrace tune train.yaml --ranks 64 --nodes 8 --step-seconds 0.35 --bandwidth 1.2gb --wait 1%',
        'headrace tune train.yaml --step-seconds 0.1 --read-seconds 0.08 --keep-order --write tuned.yaml',
        status='Exit status: 0, the target is reached; 1, it is out of reach, or an error; 2, wrong arguments.',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the trials and the proposal; 1 if it does not reach the target."""
    from headrace.format import bytes_to_int
    from headrace.simulate import tune

    out: Path | None = arguments.write
    if out is not None and out.exists():
        raise ConfigError(f'--write must name a new file, but {out} is there already.')
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f'--write must name a file in a folder that is there, but {out.parent} is none.')
    with shown_progress('tune', unit=' runs') as show:
        trials: list[Trial] = []

        def progress(trial: Trial) -> None:
            trials.append(trial)
            show(len(trials), None)

        tuning = tune(
            train_config(arguments),
            read_conditions(arguments),
            target=_share(arguments.wait),
            most_workers=arguments.most_workers,
            disk=None if arguments.disk is None else bytes_to_int(arguments.disk),
            keep_order=arguments.keep_order,
            seconds=arguments.seconds,
            progress=progress,
        )
    print(json.dumps(tuning.to_json()) if arguments.json else tuning)
    if out is not None:
        out.write_text(_changed(arguments, tuning, out.resolve().parent), encoding='utf-8')
        if not arguments.json:
            given = 'the given values and ' if arguments.overrides else ''
            print(f'{out} is {arguments.config} with {given}these changes.')
    return 0 if tuning.is_reached else 1


def _changed(arguments: argparse.Namespace, tuning: Tuning, folder: Path) -> str:
    """YAML for a folder: the configuration with the changes."""
    from headrace.mixing import load_config, to_yaml
    from headrace.simulate.settings import replace_settings, yaml_lines

    if not arguments.overrides:
        config = os.path.relpath(arguments.config.resolve(), folder)
        lines = [f'defaults: {json.dumps([config])}', *(yaml_lines(tuning.changes) if tuning.changes else ())]
        return '\n'.join([*lines, ''])
    # Overrides may remove keys of the file, which an including file cannot do. So the whole configuration is written.
    config = load_config(arguments.config, overrides=arguments.overrides)
    assert config.train is not None
    return to_yaml(dataclasses.replace(config, train=replace_settings(config.train, tuning.changes)))


def _share(text: str) -> float:
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith('%') else float(number)
    except ValueError:
        raise ConfigError(f'--wait is a share of the time, such as 1% or 0.01, got {text!r}.') from None
