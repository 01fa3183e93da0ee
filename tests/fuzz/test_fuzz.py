"""Damaged files of every format: what fuzzing has found before, and a few cases of each parser."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from tests.support.fuzz.fuzz_seeds import PARSERS, seeds_of
from tests.support.fuzz.fuzz_targets import damaged, read, read_all

CORPUS = Path(__file__).parents[1] / 'data' / 'fuzz'
CASES = 15
NEEDS = {
    'parquet': 'pyarrow',
    'arrow': 'pyarrow',
    'litdata': 'litdata',
    'tfrecord': 'google_crc32c',
    'delta': 'deltalake',
    'iceberg': 'pyiceberg.catalog.sql',
}
FEWER = {'delta': 2}
"""Cases of a parser that starts a process for each."""


@pytest.mark.parametrize('folder', sorted(CORPUS.glob('*/*')), ids=lambda path: f'{path.parent.name}-{path.name}')
def test_what_was_found_before_takes_little_memory(folder: Path, tmp_path: Path) -> None:
    parser = folder.parent.name
    pytest.importorskip(NEEDS.get(parser, 'headrace'))
    objects = {path.name: path.read_bytes() for path in folder.iterdir()}
    read(parser, objects, objects, tmp_path / 'first')  # imports
    tracemalloc.start()
    try:
        read(parser, objects, objects, tmp_path / 'data')
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize('parser', PARSERS)
def test_damaged_files_raise_only_our_errors(parser: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(parser, 'headrace'))
    seeds = seeds_of(parser)
    for good in seeds:
        assert read_all(parser, good, tmp_path / 'data', index_of=good) > 0
    for number in range(FEWER.get(parser, CASES)):
        good, bad = damaged(random.Random(f'{parser}:{number}'), parser, seeds)
        read(parser, good, bad, tmp_path / 'data')
