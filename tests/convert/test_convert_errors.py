"""A bad input is named, and stops the conversion, is skipped, or is collected, as the caller says."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.convert import InputError
from headrace.convert import convert as convert_with_bar
from headrace.errors import AccessDeniedError, ArgumentError, ConfigError, ConversionError, MissingDependencyError
from headrace.storage import register_store
from headrace.storage.stores.local import LocalStore
from tests.support.panics import PanicException
from tests.support.sources.sources_to_convert import make_images, rows_of

convert = partial(convert_with_bar, progress_bar=False)


def odd_only(number: int) -> dict[str, int]:
    if number % 2 == 0:
        raise ValueError(f'{number} is even')
    return {'n': number}


@pytest.mark.parametrize(
    ('argument', 'rule'), [('exist_ok', 'True or False'), ('workers', 'an int'), ('limit', 'an int')]
)
def test_text_for_another_kind_is_refused(tmp_path: Path, argument: str, rule: str) -> None:
    convert([{'n': 1}], tmp_path / 'out')
    with pytest.raises(ArgumentError, match=f"`{argument}` must be {rule}.*, but is '2'"):
        convert_with_bar([{'n': 2}], tmp_path / 'out', **{argument: '2'})  # pyright: ignore[reportArgumentType]
    assert rows_of(tmp_path / 'out') == [{'n': 1}]


@pytest.mark.parametrize('workers', [1, 2])
def test_stop_names_the_input_and_the_cause(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ConversionError, match=r'^input 4 \(4\) cannot be converted: ValueError: 4 is even') as raised:
        convert([1, 3, 5, 7, 4], tmp_path / 'out', function=odd_only, columns={'n': 'int'}, workers=workers)
    shown = str(raised.getrepr(style='long')) if workers == 1 else ''.join(raised.value.__notes__)
    assert 'odd_only' in shown
    assert not (tmp_path / 'out' / 'index.json').exists()


@pytest.mark.parametrize('workers', [1, 2])
def test_collect_lists_all(tmp_path: Path, workers: int) -> None:
    report = convert(range(40), tmp_path / 'out', function=odd_only, workers=workers, on_error='collect')

    expected = [InputError(f'input {n} ({n})', f'ValueError: {n} is even') for n in range(0, 40, 2)]
    assert list(report.errors) == expected
    lines = (tmp_path / 'out' / 'errors.jsonl').read_text().splitlines()
    assert [InputError(**json.loads(line)) for line in lines] == expected
    assert [row['n'] for row in rows_of(tmp_path / 'out')] == list(range(1, 40, 2))


def test_skip_counts_and_logs_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger='headrace'):
        report = convert(range(40), tmp_path / 'out', function=odd_only, on_error='skip')

    assert (report.num_errors, len(report.errors), report.rows) == (20, 10, 20)
    assert sum('is even' in record.getMessage() for record in caplog.records) == 10
    assert not (tmp_path / 'out' / 'errors.jsonl').exists()


def odd_or_panic(n: int) -> dict[str, int]:
    if n % 2 == 0:
        raise PanicException(f'{n} is even')
    return {'n': n}


@pytest.mark.parametrize('workers', [1, 2])
def test_a_panic_of_rust_is_an_error_of_its_input(tmp_path: Path, workers: int) -> None:
    report = convert(range(6), tmp_path / 'out', function=odd_or_panic, workers=workers, on_error='collect')
    assert [error.error for error in report.errors] == [
        f'FormatError: A library panicked: PanicException: {n} is even.' for n in (0, 2, 4)
    ]
    first = r'0 \(0\)' if workers == 1 else r'(\d) \(\1\)'  # of two workers, either may be the first
    message = f'input {first} cannot be converted: FormatError: A library panicked'
    with pytest.raises(ConversionError, match=message):
        convert(range(6), tmp_path / 'other', function=odd_or_panic, workers=workers)


def test_values_that_do_not_fit_their_column(tmp_path: Path) -> None:
    samples = [{'n': i if i % 10 else 'text'} for i in range(1, 31)]
    with pytest.raises(ConfigError, match="column 'n'.*Give `columns`"):
        convert(samples, tmp_path / 'out')
    report = convert(samples, tmp_path / 'out', columns={'n': 'int'}, on_error='collect')

    assert [error.input for error in report.errors] == ['row 9', 'row 19', 'row 29']
    numbers = [error.error.partition('Sample ')[2].partition(', column')[0] for error in report.errors]
    assert numbers == ['9', '19', '29']
    assert report.rows == 27


def test_rows_of_a_batch(tmp_path: Path) -> None:
    datasets = pytest.importorskip('datasets')
    data = datasets.Dataset.from_dict({'n': list(range(100))})
    report = convert(data, tmp_path / 'out', columns={'n': 'uint8'}, on_error='collect')
    assert report.rows == 100
    data = datasets.Dataset.from_dict({'n': [300 if i == 41 else i for i in range(100)]})
    report = convert(data, tmp_path / 'other', columns={'n': 'uint8'}, on_error='collect')

    assert [error.input for error in report.errors] == ['rows 0 to 99 of the dataset, row 41']
    assert report.errors[0].error.startswith("OverflowError: Sample 41, column 'n': ")
    assert [row['n'] for row in rows_of(tmp_path / 'other')] == [i for i in range(100) if i != 41]


def test_a_message_gives_a_row_one_number(tmp_path: Path) -> None:
    bad = {5, 13, 17}
    rows = '\n'.join(str(999 if row in bad else row) for row in range(20))
    for name in ('a', 'b'):  # two inputs of one task
        (tmp_path / f'{name}.csv').write_text(f'n\n{rows}\n')
    report = convert(str(tmp_path / '*.csv'), tmp_path / 'out', columns={'n': 'uint8'}, on_error='collect')
    numbers = [re.findall(r'(?:, row|Sample) (\d+)', f'{error.input} {error.error}') for error in report.errors]
    assert numbers == [[str(row)] * 2 for row in sorted(bad)] * 2

    def function(number: int) -> list[dict[str, int]]:
        return [{'n': number}, {'n': 999 if number else 0}]

    report = convert([0, 1, 2], tmp_path / 'other', function=function, columns={'n': 'uint8'}, on_error='collect')
    assert ["Sample 1, column 'n'" in error.error for error in report.errors] == [True, True]


def test_files_that_are_no_images(tmp_path: Path) -> None:
    make_images(tmp_path / 'data', {'a': 3})
    (tmp_path / 'data' / 'a' / 'page.jpg').write_text('<html>')
    report = convert(tmp_path / 'data', tmp_path / 'out', on_error='collect')

    assert [error.input for error in report.errors] == [str(tmp_path / 'data' / 'a' / 'page.jpg')]
    assert "begins with b'<html>'" in report.errors[0].error


def partly(number: int):
    yield {'n': number, 'part': 0}
    if number == 2:
        raise OSError('the file ends')
    yield {'n': number, 'part': 1}


def test_samples_before_an_error_are_kept(tmp_path: Path) -> None:
    convert(range(4), tmp_path / 'out', function=partly, on_error='skip')
    assert [(row['n'], row['part']) for row in rows_of(tmp_path / 'out')] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    'error', [MissingDependencyError('pip install it'), MemoryError(), AccessDeniedError('no key')]
)
def test_errors_that_say_nothing_about_an_input_stop_all(tmp_path: Path, error: Exception) -> None:
    def fail(number: int) -> None:
        raise error

    with pytest.raises(type(error)):
        convert(range(3), tmp_path / 'out', function=fail, columns={'n': 'int'}, on_error='skip')


def test_errors_of_the_output_are_not_those_of_inputs(tmp_path: Path, own_stores: None) -> None:
    class FullStore(LocalStore):
        def put(self, key, source, *, size):
            if key.startswith('shard.'):
                raise FileNotFoundError(2, 'No such bucket')
            super().put(key, source, size=size)

    register_store('full', lambda url, options: FullStore(url.removeprefix('full://')))
    with pytest.raises(OSError, match=r'Writing .*shard\.00000\.00000\.mds failed: .*No such bucket'):
        convert([{'i': 1}], f'full://{tmp_path}/out', on_error='skip')


def test_no_sample_tells_no_columns(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match='there is no sample'):
        convert([], tmp_path / 'out')
    with pytest.raises(ConversionError, match=r'input 0 \(0\): ValueError: 0 is even'):
        convert([0, 2], tmp_path / 'out', function=odd_only)
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('found', [7, 'text', [7], {'x': object()}])
def test_functions_that_return_no_samples(tmp_path: Path, found: object) -> None:
    with pytest.raises((ConversionError, ValueError), match=r'[Ss]ample|inferred'):
        convert([1], tmp_path / 'out', function=lambda number: found)


@pytest.mark.parametrize('below', ['', '/sub'])
def test_an_output_that_is_a_file_is_refused_before_an_input_is_read(tmp_path: Path, below: str) -> None:
    (tmp_path / 'taken').write_text('x')

    def samples() -> Iterator[dict[str, int]]:
        pytest.fail('A sample was read.')
        yield {'n': 1}

    with pytest.raises(ConfigError, match=f"is '{tmp_path}/taken{below}', and {tmp_path}/taken is a file"):
        convert(samples(), f'{tmp_path}/taken{below}')
    assert (tmp_path / 'taken').read_text() == 'x'


def test_an_output_that_this_user_may_not_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path, *_args: object, **_kwargs: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr('pathlib.Path.mkdir', deny)
    with pytest.raises(AccessDeniedError, match=f'uid .* may not use {tmp_path}/out/'):
        convert([{'n': 1}], tmp_path / 'out')
