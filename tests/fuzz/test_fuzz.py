"""Damaged files of every format: what fuzzing has found before, and a few cases of each parser."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import tracemalloc
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from tests.support.fuzz.fuzz_seeds import PARSERS, files_in, seeds_of
from tests.support.fuzz.fuzz_targets import damaged, read, read_all

CORPUS = Path(__file__).parents[1] / 'data' / 'fuzz'
CASES = 15
NEEDS = {
    'parquet': 'pyarrow',
    'arrow': 'pyarrow',
    'litdata': 'litdata',
    'tfrecord': 'google_crc32c',
    'lance': 'pyarrow',
    'delta': 'deltalake',
    'iceberg': 'pyiceberg.catalog.sql',
}


def need(parser: str) -> None:
    """Skip the test where the packages of a parser are missing."""
    pytest.importorskip(NEEDS.get(parser, 'headrace'))
    if parser == 'lance' and importlib.util.find_spec('lance') is None:  # not imported: this process forks
        pytest.skip('needs pylance')


@pytest.mark.parametrize('folder', sorted(CORPUS.glob('*/*')), ids=lambda path: f'{path.parent.name}-{path.name}')
def test_what_was_found_before_takes_little_memory(folder: Path, tmp_path: Path) -> None:
    parser = folder.parent.name
    need(parser)
    objects = files_in(folder)
    read(parser, objects, objects, tmp_path / 'first')  # imports
    tracemalloc.start()
    try:
        read(parser, objects, objects, tmp_path / 'data')
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('parser', PARSERS)
def test_damaged_files_raise_only_our_errors(parser: str, tmp_path: Path) -> None:
    need(parser)
    seeds = seeds_of(parser)
    for good in seeds:
        assert read_all(parser, good, tmp_path / 'data', index_of=good) > 0
    for number in range(CASES):
        good, bad = damaged(random.Random(f'{parser}:{number}'), parser, seeds)
        read(parser, good, bad, tmp_path / 'data')


COUNTLESS = ('.jsonl', '.csv', '.tsv', '.tfrecord', '.u32')
"""Files that are whole at the end of any record: nothing counts these."""


@pytest.mark.parametrize('parser', [parser for parser in PARSERS if parser != 'delta'])  # test_delta cuts its logs
def test_a_cut_file_is_an_error_or_has_all_its_rows(parser: str, tmp_path: Path) -> None:
    need(parser)
    rng = random.Random(parser)
    good = rng.choice(seeds_of(parser))
    whole = read_all(parser, good, tmp_path / 'data', index_of=good)
    for name in rng.sample([*good], min(4, len(good))):
        size = len(good[name])
        for cut in {0, size // 2, size - 17, size - 16, size - 1, *rng.sample(range(size), min(3, size))}:
            bad = {**good, name: good[name][: max(0, cut)]}
            rows = whole
            with contextlib.suppress(HeadraceError):
                rows = read_all(parser, bad, tmp_path / 'data', index_of=bad)
            assert rows == whole or name.endswith(COUNTLESS), (name, size, cut)
