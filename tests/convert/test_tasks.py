"""Tasks: shards are the same for any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sources.converted import convert, squares
from tests.support.sources.sources_to_convert import digests, make_images


def sources(tmp_path: Path, kind: str):
    if kind == 'images':
        make_images(tmp_path / 'data', {'a': 30, 'b': 31}) if not (tmp_path / 'data').exists() else None
        return tmp_path / 'data', {}
    if kind == 'function':
        return range(40), {'function': squares, 'columns': {'n': 'int', 'square': 'int', 'part': 'int'}}
    samples = [{'id': i, 'text': str(i) * (i % 50)} for i in range(400)]
    return (iter(samples) if kind == 'iterable' else samples), {}


@pytest.mark.parametrize('kind', ['images', 'function', 'iterable', 'rows'])
def test_any_number_of_workers_writes_the_same(tmp_path: Path, kind: str) -> None:
    found = []
    for workers in (1, 4):
        source, options = sources(tmp_path, kind)
        out = tmp_path / f'out-{workers}'
        settings = {'compression': 'zstd', 'hashes': ['xxh64'], 'size_limit': 2000}
        report = convert(source, out, workers=workers, **settings, **options)
        assert report.shards > 4
        found.append(digests(out))

    assert found[0] == found[1]


def test_shards_are_full_but_the_last_of_a_task(tmp_path: Path) -> None:
    report = convert([{'x': b'x' * 90} for _ in range(3000)], tmp_path / 'out', size_limit=5000)
    shards = json.loads((tmp_path / 'out' / 'index.json').read_text())['shards']

    sizes = [shard['raw_data']['bytes'] for shard in shards]
    assert max(sizes) <= 5000
    assert sum(size > 4000 for size in sizes) >= 0.9 * len(sizes) - 1
    assert sum(sizes) == report.raw_bytes == report.stored_bytes


def test_no_limit_is_one_shard(tmp_path: Path) -> None:
    assert convert([{'x': i} for i in range(300)], tmp_path / 'out', size_limit=None).shards == 1
