"""The command lines of a known dataset: ``headrace convert NAME IN OUT``, and that of its module."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.display import printable
from headrace.errors import ConfigError, HeadraceError
from headrace.redaction import redact

if TYPE_CHECKING:
    from headrace.convert import ConversionReport
    from headrace.originals.original import Original

__all__ = ['add_arguments', 'run', 'run_module']

_PROGRESS = {'0': False, '1': True}


def add_arguments(parser: argparse.ArgumentParser, original: Original) -> None:
    """Declare IN and OUT, the settings of all conversions, and the options of this dataset."""
    parser.add_argument('source', metavar='IN', help='folder or file of the distribution')
    parser.add_argument('out', metavar='OUT', help='folder or URL of the new dataset')
    _add_settings(parser, original)


def run_module(original: Original, arguments: Sequence[str] | None = None) -> int:
    """The program of a module, with the names of MosaicML Streaming's arguments; returns the exit status."""
    parser = argparse.ArgumentParser(description=original.title, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--in_root', '--in', dest='source', required=True, help='folder or file of the distribution')
    parser.add_argument(
        '--out_root', '--out', '--out_mds', dest='out', required=True, help='folder or URL of the new dataset'
    )
    parser.add_argument('--leave', help='has no effect')
    _add_settings(parser, original)
    try:
        return run(original, parser.parse_args(arguments))
    except (HeadraceError, OSError) as error:
        print(printable(redact(f'headrace: {error}'), keep='\n'), file=sys.stderr)
        return 1


def _add_settings(parser: argparse.ArgumentParser, original: Original) -> None:
    if original.splits:
        parser.add_argument('--splits', help=f'of {",".join(original.splits)}; by default all that IN holds')
    parser.add_argument(
        '-j', '--workers', '--num_procs', type=int, default=1, help='processes; the dataset is the same for any number'
    )
    parser.add_argument('--compression', help='zstd, zstd:7, br, bz2, gz or snappy')
    parser.add_argument('--hashes', default='sha1,xxh64', help="hashes in the index; '' for none")
    parser.add_argument(
        '--size-limit', '--size_limit', default=original.size_limit, help='bytes of a shard before compression'
    )
    parser.add_argument(
        '--on-error',
        '--on_error',
        choices=['stop', 'collect'],
        default='collect',
        help='for a broken member: stop, or leave it out and list it in errors.jsonl',
    )
    parser.add_argument('--limit', type=int, help='number of records of each split to convert, from the first')
    parser.add_argument('--exist-ok', '--exist_ok', action='store_true', help='empty the folders of the splits')
    parser.add_argument('--progress-bar', '--progress_bar', choices=list(_PROGRESS), help='1 to show one, 0 for none')
    parser.add_argument('--json', action='store_true', help='print the reports as JSON, by split')
    for option in original.options:
        names = dict.fromkeys(f'--{name}' for name in (option.name.replace('_', '-'), option.name))
        parser.add_argument(
            *names,
            dest=f'option_{option.name}',
            metavar=option.name.upper(),
            type=option.parse,
            default=option.default,
            help=option.help,
        )


def run(original: Original, arguments: argparse.Namespace) -> int:
    """Convert; the bar goes to stderr, the reports to stdout. Returns 1 if a split has no good record."""
    from headrace.convert.report import command_errors  # loads numpy, which no help needs

    shows = not arguments.json and sys.stderr.isatty()
    with command_errors():
        reports = original.convert(
            arguments.source,
            arguments.out,
            splits=_split_names(arguments.splits) if original.splits else None,
            workers=arguments.workers,
            on_error=arguments.on_error,
            compression=arguments.compression or None,
            hashes=[name for name in arguments.hashes.split(',') if name],
            size_limit=arguments.size_limit,
            limit=arguments.limit,
            exist_ok=arguments.exist_ok,
            progress_bar=shows if arguments.progress_bar is None else _PROGRESS[arguments.progress_bar],
            **{option.name: getattr(arguments, f'option_{option.name}') for option in original.options},
        )
    if arguments.json:
        print(json.dumps({split: dataclasses.asdict(report) for split, report in reports.items()}))
    else:
        print('\n'.join(line for split, report in reports.items() for line in _lines(original, split, report)))
        print(_how_to_read(original, arguments.out, next(iter(reports))))
    return int(any(not report.rows for report in reports.values()))


def _split_names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name for name in text.split(',') if name]
    if not names:
        raise ConfigError(f'--splits lists splits, such as train,val, but got {text!r}. Leave it out for all.')
    return names


def _lines(original: Original, split: str, report: ConversionReport) -> list[str]:
    from headrace.convert.report import report_lines

    lines = report_lines(report)[:-1]
    if report.tasks_done_before and not report.seconds:
        # Nothing was left to do.
        lines[:3] = [f'Kept {report.rows:,} rows of {original.name}, which an earlier call has written.']
    return [f'{split}: {line}' if split else line for line in lines]


def _how_to_read(original: Original, out: str, split: str) -> str:
    of_split = f', split={split!r}' if split else ''
    place = 'remote' if '://' in out else 'local'
    return f'Read it with {original.reader}({place}={out!r}{of_split}, batch_size=32, shuffle=True).'
