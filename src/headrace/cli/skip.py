"""``headrace skip``: the samples of a trainer's step, and the configuration that skips them.

It reads indexes; with packing, it also reads and tokenises documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import show_examples
from headrace.cli.loaders import add_config_arguments, add_topology_arguments, open_loader
from headrace.cli.states import read_state
from headrace.errors import ConfigError, ResumeError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.metrics import StepReport

__all__ = ['HELP', 'add_arguments', 'run']

HELP = "show the samples of a trainer's step, and print or write the configuration that skips it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the step, the run, further batches to skip, and the output file."""
    add_config_arguments(parser)
    parser.add_argument('--step', type=int, required=True, help='global batch of the run, counted from 0')
    parser.add_argument('--before', type=int, default=0, help='global batches before it to skip, too')
    parser.add_argument('--after', type=int, default=0, help='global batches after it to skip, too')
    parser.add_argument(
        '--documents',
        action='store_true',
        help='of packed data: skip the documents of the batches, wherever they are, in place of the sequences',
    )
    add_topology_arguments(parser)
    parser.add_argument('--state', type=Path, help='checkpoint from before the step, or JSON of its state')
    parser.add_argument('--state-key', help='where the position is in --state, if it holds several: a.b.c')
    parser.add_argument(
        '--state-step', type=int, help='batches that were trained when --state was taken, where it does not say so'
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument('--write', type=Path, metavar='OUT.yaml', help='file for the configuration of the resumed run')
    output.add_argument('--json', action='store_true', help='print every row of the batches, as JSON')
    show_examples(
        parser,
        'headrace skip train.yaml --step 1234 --ranks 64 --nodes 8',
        'headrace skip train.yaml --step 1234 --before 2 --state last.ckpt --write resumed.yaml',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or write the configuration."""
    from headrace.metrics import explain_step, report_text, skip_yaml

    out: Path | None = arguments.write
    if out is not None and out.exists():
        raise ConfigError(f'--write must name a new file, but {out} is there already.')
    loader = open_loader(arguments)
    first_step = _load_state(loader, arguments)
    report = explain_step(
        loader,
        arguments.step,
        before=arguments.before,
        after=arguments.after,
        place=loader.next_pass(),
        first_step=first_step,
        documents=arguments.documents,
    )
    if arguments.json:
        print(report_text({'step': report.step, **report.to_json()}), end='')
        return 0
    if out is None:
        print(skip_yaml(report.skip, _comments(report)), end='')
        return 0
    try:
        out.write_text(_configuration(arguments, report, out.resolve().parent), encoding='utf-8')
    except OSError as error:
        raise ConfigError(f'--write {out} cannot be written: {error.strerror}.') from error
    print('\n'.join(_comments(report)))
    given = 'the given values and ' if arguments.overrides else ''
    print(f'{out} is {arguments.config} with {given}skip: {report.skip}')
    return 0


def _configuration(arguments: argparse.Namespace, report: StepReport, folder: Path) -> str:
    """YAML for a folder: the configuration with the `skip`."""
    from headrace.metrics import skip_yaml
    from headrace.mixing import load_config, to_yaml

    if not arguments.overrides:
        return skip_yaml(report.skip, _comments(report), [os.path.relpath(arguments.config.resolve(), folder)])
    # Overrides may remove keys of the file, which an including file cannot do. So the whole configuration is written.
    config = load_config(arguments.config, overrides=arguments.overrides)
    assert config.train is not None  # its step was explained
    train = dataclasses.replace(config.train, skip=tuple((begin, end) for begin, end in report.skip))
    comments = (f'# {line}' for line in _comments(report))
    return '\n'.join([*comments, to_yaml(dataclasses.replace(config, train=train))])


def _load_state(loader: StreamingDataLoader, arguments: argparse.Namespace) -> int:
    """Load the state, if there is one; returns its number of trained batches."""
    given: int | None = arguments.state_step
    if arguments.state is None:
        if given is not None:
            raise ConfigError(f'--state-step says when --state was taken, which is not given; got {given}.')
        return 0
    found = read_state(arguments.state, arguments.state_key)
    batches = found.batches if given is None else given
    if batches is None:
        loader.load_state_dict(found.state)
        counted = _batches_before(loader)
        if counted not in found.steps:
            raise ResumeError(
                f'--state {arguments.state} does not say how many batches were trained when it was taken: give '
                f'--state-step, or the checkpoint itself.'
                + ('' if counted is None else f' They are {counted}, if all had the present size.')
            )
        return counted
    if batches < 0 or found.batches not in (None, batches):
        raise ConfigError(
            f'--state-step must be the number of batches that were trained when --state was taken, got {given}'
            + ('.' if found.batches is None else f', but the file says {found.batches}. Leave it out.')
        )
    loader.load_state_dict(found.state)
    return batches


def _batches_before(loader: StreamingDataLoader) -> int | None:
    """Batches from the beginning of the run to the loader's position, if all were like those of now."""
    epoch, start = loader.next_pass()
    if loader.dataset.run.mixture.takeover.epoch or loader.dataset.run.mixture.takeover.sample:
        return None  # earlier epochs had other batches
    whole = loader.plan(epoch)
    number = whole.num_batches - loader.plan(epoch, start).num_batches
    if number and int(whole.explain(number - 1).end) != start:
        return None
    return number + sum(loader.plan(before).num_batches for before in range(epoch))


def _comments(report: StepReport) -> list[str]:
    return [*report.summary(), f'To train without: resume from a checkpoint of at most {report.steps[0]} batches.']
