"""Known datasets: the description of one, and its command lines.

A description has the splits of a dataset, its options, and the function that lists its records. Its commands are
``headrace convert NAME IN OUT``, and a program of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import ArgumentError, ConfigError, HeadraceError
from headrace.errors.display import printable
from headrace.errors.redaction import redact

if TYPE_CHECKING:
    from headrace.convert import ConversionReport
    from headrace.storage import StoreOptions


def flag(text: str) -> bool:
    """The value of an option that is 0 or 1; ValueError: it is neither."""
    if text not in ('0', '1'):
        raise ValueError(text)
    return text == '1'


def pixels(text: str) -> int | None:
    """The value of an option that is a number of pixels; None for 0."""
    return int(text) or None


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of one dataset, besides those of all conversions."""

    name: str  # Its keyword. On the command line: ``--min-size`` and ``--min_size`` for 'min_size'.
    parse: Callable[[str], Any]  # Makes of a text of the command line the value, which is JSON. It raises ValueError.
    default: Any
    help: str


@dataclass(frozen=True, slots=True)
class Original:
    """A known dataset in the layout of its owners' distribution."""

    name: str  # As in ``headrace convert NAME``.
    title: str  # For the command's help: the full name, and what IN holds.
    records: str
    """Module and function, as in ``a.b:c``, that lists the records. The function takes the folder or file IN, the split
    (None for a dataset without splits), and the options by name. `ObjectNotFoundError`: IN has no such split."""
    splits: tuple[str, ...] = ()
    """Splits of the distribution, in the order of conversion. Each becomes a folder of OUT. Empty: there are none."""
    options: tuple[Option, ...] = ()
    size_limit: int = 1 << 26  # Bytes of a shard, by default.
    reader: str = 'StreamingDataset'  # Name of the class that reads the new dataset, for the report.
    example: str = ''  # Arguments that the command needs beside IN and OUT, for the examples of its help.

    def convert(
        self,
        source: str | Path,
        out: str | Path,
        *,
        splits: Sequence[str] | None = None,
        workers: int = 1,
        on_error: Literal['stop', 'collect'] = 'collect',
        compression: str | None = None,
        hashes: Sequence[str] | None = ('sha1', 'xxh64'),
        size_limit: int | str | None = None,
        limit: int | None = None,
        exist_ok: bool = False,
        progress_bar: bool = True,
        start_method: str | None = None,
        out_options: StoreOptions | None = None,
        **options: Any,
    ) -> dict[str, ConversionReport]:
        """Write the dataset as MDS shards: each split in the folder of its name under `out`.

        The shards are the same for any number of workers. After a crash, the same call does what is left to do.

        Args:
            source: folder (or file) of the distribution on this machine.
            out: folder or URL of the new dataset.
            splits: splits to convert; by default all that `source` holds.
            workers: number of processes. 1: this process.
            on_error: for a broken member: 'stop'; or 'collect', which leaves it out, and lists it in the report and in
                ``errors.jsonl`` beside the index.
            compression: 'zstd', 'br', 'bz2', 'gz' or 'snappy', with a level as in 'zstd:7'.
            hashes: names of hashes to store in the index.
            size_limit: bytes of a shard before compression, as a number or text ('64mb'); by default the dataset's.
            limit: number of records of each split to convert, from the first.
            exist_ok: whether to replace what the folders of the splits hold, finished conversions included.
            progress_bar: whether to show one.
            start_method: of processes: 'fork', 'spawn' or 'forkserver'. None: Python's default.
            out_options: how to reach the store of `out`.
            options: those of the dataset, by name.

        Returns:
            The report of each split; of a dataset without splits under the key ''.

        Raises:
            ConfigError: an argument breaks a rule.
            ObjectNotFoundError: `source` does not hold the dataset, or one of `splits`.
            FileExistsError: a folder of `out` holds something else, and `exist_ok` is not set.
            ConversionError: a worker process died; or a member is broken, with `on_error='stop'`.
            StorageError: a store failed.
        """
        from headrace.originals.splits import convert_splits  # loads numpy, which no help needs

        defaults = {option.name: option.default for option in self.options}
        for name in options.keys() - defaults:
            allowed = f'those of {self.name} are {", ".join(defaults)}' if defaults else f'{self.name} has none'
            raise ArgumentError(f'The option `{name}` is not known; {allowed}. Correct its name.')
        return convert_splits(
            self.name,
            self.records,
            self.splits,
            str(source),
            str(out),
            splits=splits,
            limit=limit,
            options={**defaults, **options},
            workers=workers,
            on_error=on_error,
            compression=compression,
            hashes=sorted(hashes or ()),
            size_limit=self.size_limit if size_limit is None else size_limit,
            exist_ok=exist_ok,
            progress_bar=progress_bar,
            start_method=start_method,
            out_options=out_options,
        )

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """The dataset's own program, with the names of MosaicML Streaming's arguments.

        Args:
            arguments: of the command line; by default those of the process.

        Returns:
            The exit status.
        """
        parser = argparse.ArgumentParser(description=self.title, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        parser.add_argument(
            '--in_root', '--in', dest='source', required=True, help='folder or file of the distribution'
        )
        parser.add_argument(
            '--out_root', '--out', '--out_mds', dest='out', required=True, help='folder or URL of the new dataset'
        )
        parser.add_argument('--leave', help='has no effect')
        _add_settings(parser, self)
        try:
            return run(self, parser.parse_args(arguments))
        except (HeadraceError, OSError) as error:
            print(printable(redact(f'headrace: {error}'), keep='\n'), file=sys.stderr)
            return 1


def add_arguments(parser: argparse.ArgumentParser, original: Original) -> None:
    """Declare IN and OUT, the settings of all conversions, and the options of this dataset."""
    parser.add_argument('source', metavar='IN', help='folder or file of the distribution')
    parser.add_argument('out', metavar='OUT', help='folder or URL of the new dataset')
    _add_settings(parser, original)


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
    parser.add_argument('--progress-bar', '--progress_bar', choices=['0', '1'], help='1 to show one, 0 for none')
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
            progress_bar=shows if arguments.progress_bar is None else flag(arguments.progress_bar),
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
