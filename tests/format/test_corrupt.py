"""Damaged and hostile datasets: each sample is right, or an error of ours; nothing is allocated without bound."""

from __future__ import annotations

import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import EmptyDatasetError, FormatError, HeadraceError, IndexFileError, ShardError
from tests.support.formats.format_golden import SHARED, index_of, load, neutral, reader_of

FOLDER = SHARED / 'corrupt'
CASES = load(FOLDER / 'manifest.json')['cases'] if FOLDER.is_dir() else []
pytestmark = pytest.mark.skipif(not CASES, reason='the corrupt fixtures are in ../shared/golden only')

# Damage that sizes cannot show, and for which no hash was asked.
UNSEEN = {('hash_flipped_bit_unchecked', 5)}
# A wrong count in one shard moves the samples of the shards after it: only opening the first one shows it.
SHIFTED = {'index_samples_too_many', 'index_samples_too_few', 'index_samples_zero'}
OPENING: dict[str, Any] = {
    'index_empty_file': IndexFileError,
    'index_truncated': IndexFileError,
    'index_not_json': IndexFileError,
    'index_bom': IndexFileError,
    'index_bad_utf8': IndexFileError,
    'index_shards_empty': EmptyDatasetError,
}


def _folder(case: dict[str, Any]) -> Path:
    return FOLDER / case['id'] / case['open_as'].get('folder', '')


@cache
def _written() -> dict[tuple[str, tuple[str, ...], int], Any]:
    """The written value at each position, from fixtures whose position MosaicML Streaming reads correctly."""
    found: dict[tuple[str, tuple[str, ...], int], Any] = {}
    for case in CASES:
        reads = case['upstream'].get('reads', {})
        try:
            shards = index_of(_folder(case))
        except (HeadraceError, OSError):
            continue
        position = 0
        for shard in shards:
            for row in range(shard.samples):
                key = shard.format, tuple(sorted(shard.schema.names)), position
                if reads.get(str(position)) == 'as written' and key not in found:
                    try:
                        sample = reader_of(shard, _folder(case), Path('/nonexistent')).sample(row)
                    except (HeadraceError, OSError):
                        pass
                    else:
                        found[key] = {name: neutral(v) for name, v in sample.items()}
                position += 1
    return found


@pytest.mark.parametrize('case', CASES, ids=lambda case: case['id'])
def test_each_sample_is_right_or_an_error(case: dict[str, Any], tmp_path: Path) -> None:
    written = _written()
    tracemalloc.start()
    try:
        try:
            shards = index_of(_folder(case))
        except HeadraceError as error:
            assert type(error) is OPENING.get(case['id'], FormatError)  # noqa: PT017
            return
        position = 0
        for shard in shards:
            first, position = position, position + shard.samples
            try:
                reader = reader_of(shard, _folder(case), tmp_path, case['open_as'].get('validate_hash'))
            except (HeadraceError, FileNotFoundError):
                continue
            for row in range(shard.samples):
                batch = shard.schema.allocate(1)
                try:
                    sample = reader.sample(row)
                except ShardError:
                    with pytest.raises(ShardError):
                        reader.gather_few([row], [0], range(1), batch)
                    continue
                reader.gather_few([row], [0], range(1), batch)
                key = shard.format, tuple(sorted(shard.schema.names)), first + row
                found = {name: neutral(v) for name, v in sample.items()}
                if case['id'] in SHIFTED:
                    assert found in written.values()
                elif (case['id'], first + row) not in UNSEEN:
                    assert found == written[key]
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < 48 << 20
        assert sum(path.stat().st_size for path in tmp_path.rglob('*')) < 1 << 20
    finally:
        tracemalloc.stop()
    if case['upstream']['construct'] != 'ok':
        pytest.fail('MosaicML Streaming refuses this index, and so should we')
