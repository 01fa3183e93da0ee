"""The result of a conversion; and the report, the interruption and the errors of one, as the command line says them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ConversionError
from headrace.errors.display import count_text
from headrace.errors.mapping import mapping_errors
from headrace.sources.ledger import Ledger, LeftOut


@dataclass(frozen=True, slots=True)
class InputError:
    """An input, or a row of one, that was left out."""

    input: str
    """The path, URL or row."""
    error: str
    """Class and message of the exception."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The output of a finished task."""

    task: int
    begin: int
    end: int
    digest: str | None  # of its inputs
    rows: int
    raw_bytes: int  # bytes of its shards before compression
    stored_bytes: int  # bytes of its shards as they are stored
    shards: tuple[dict[str, Any], ...]  # their entries in the index
    errors: tuple[InputError, ...]
    nulls: Mapping[str, int] = field(default_factory=dict[str, int])  # of each column that has any
    dropped: tuple[str, ...] = ()  # columns of samples that are not converted
    tokens: int = 0  # of all rows; of `tokenize`
    without_tokens: int = 0  # documents that were left out, since they have no token

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> TaskRecord:
        fields = dict(plain)
        fields['errors'] = tuple(InputError(**error) for error in plain['errors'])
        fields |= {name: tuple(plain[name]) for name in ('shards', 'dropped')}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Figures of a finished conversion."""

    out: str
    """The folder or URL of the dataset."""
    kind: str
    """The kind of the source: 'imagefolder', 'parquet', 'function' and so on."""
    columns: Mapping[str, str]
    """The MDS encoding of each column."""
    inputs: int
    """Files, parts, rows or values that were read, those that were left out included."""
    rows: int
    """Samples that were written."""
    shards: int
    raw_bytes: int
    """Bytes of all shards before compression."""
    stored_bytes: int
    """Bytes of all shards as they are stored."""
    seconds: float
    """Time of this call; a restart does not count the time before it."""
    tasks_done_before: int
    """Tasks that a restart found finished."""
    errors: tuple[InputError, ...]
    """Inputs, or rows of one, that were left out. With `on_error='skip'` only the first 10."""
    num_errors: int
    """Number of all that were left out."""
    ledger: Ledger = field(default_factory=Ledger)
    """Files that were read, and everything else that was left out."""
    rows_before: int = 0
    """Samples of the dataset that was added to."""
    tasks: int = 0
    """Parts into which the inputs were cut."""
    tokens: int = 0
    """Tokens of all samples; of `tokenize`."""
    without_tokens: int = 0
    """Documents that were left out, since they have no token; of `tokenize`."""
    inputs_there: int = 0
    """Inputs that were left out, since the dataset has their rows already; with `append`."""

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ConversionReport:
        """The report of its plain values."""
        fields, ledger = dict(plain), dict[str, Any](plain['ledger'])
        ledger['left_out'] = tuple(LeftOut(**entry) for entry in ledger['left_out'])
        ledger |= {name: tuple(ledger[name]) for name in ('keys', 'splits', 'classes', 'dropped', 'notes')}
        fields['ledger'] = Ledger(**ledger)
        fields['errors'] = tuple(InputError(**error) for error in plain['errors'])
        return cls(**fields)


@mapping_errors
def command_errors() -> Generator[None]:
    """Say after an interruption how to continue; name the command's option in the error of an existing folder."""
    try:
        yield
    except KeyboardInterrupt:
        print('headrace: Stopped. The same command continues where this one stopped.', file=sys.stderr)
        raise
    except FileExistsError as error:
        text = str(error).replace('pass `exist_ok=True`', 'pass --exist-ok').replace('`append=True`', '--append')
        raise ConversionError(text) from error


def report_lines(report: ConversionReport) -> list[str]:
    per_second = max(report.seconds, 1e-9)
    rate = f' ({report.rows / per_second:,.0f} rows/s, {_size(report.raw_bytes / per_second)}/s)'
    time = f'{report.seconds:.1f} s{"" if report.tasks_done_before else rate}'
    shards = f'{count_text(report.shards, "shard")}, {_size(report.stored_bytes)}'
    columns = ', '.join(f'{name}: {encoding}' for name, encoding in report.columns.items())
    name = 'remote' if '://' in report.out else 'local'
    use = f'Read it with StreamingDataset({name}={report.out!r}, batch_size=32, shuffle=True).'
    lines = [
        f'Found {report.kind} with the columns {columns}.',
        *([f'Read {count_text(report.ledger.files, "file")}.'] if report.ledger.files else []),
        f'Wrote {report.rows:,} rows in {shards}, in {time}.',
    ]
    if report.tokens:
        lines[0] = f'Found {report.kind}. The columns of {report.out} are {columns}.'
        documents = f'{report.tokens:,} tokens of {count_text(report.rows, "document")}'
        if not report.tasks_done_before:
            time = f'{report.seconds:.1f} s ({report.tokens / per_second:,.0f} tokens/s)'
        lines[-1] = f'Wrote {documents} in {shards}, in {time}.'
        if report.tasks_done_before == report.tasks:
            lines[-1] = f'Nothing to do: {report.out} has the {documents}.'
        if report.without_tokens:
            lines.append(f'Left out {count_text(report.without_tokens, "document")} without tokens.')
        use = f'Read it with PackedDataset({name}={report.out!r}, packing=Packing(sequence_length=2048)).'
    if report.inputs_there:
        there = f'{count_text(report.inputs_there, "input")} of the source already'
        lines.append(f'{report.out} has {there}; --all would add all rows once more.')
    if report.rows_before and report.rows:
        lines.append(f'Added them to {report.rows_before:,} rows.')
    if report.tasks_done_before:
        lines.append(f'Kept {count_text(report.tasks_done_before, "task")} of an earlier call.')
    if report.num_errors:
        first = report.errors[0]
        lines.append(f'Left out {count_text(report.num_errors, "bad input")}. The first: {first.input}: {first.error}')
    lines += report.ledger.lines()
    return [*lines, use]


def _size(number: float) -> str:
    for unit in ('bytes', 'kB', 'MB', 'GB'):
        if number < 1000:
            return f'{number:.0f} {unit}' if unit == 'bytes' else f'{number:.1f} {unit}'
        number /= 1000
    return f'{number:.1f} TB'
