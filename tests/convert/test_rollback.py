"""Indexes that a merge replaced come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.convert import copy_dataset, kept_indexes, merge_index, rollback
from headrace.errors import ConfigError
from tests.support.servers.s3 import S3Server


def write(out: str, ids: range, **options: object) -> None:
    with MDSWriter(out=out, columns={'id': 'int'}, size_limit=300, **options) as writer:
        for i in ids:
            writer.write({'id': i})


def ids_of(folder: Path) -> list[int]:
    return [int(sample['id']) for sample in StreamingDataset(local=str(folder), batch_size=1)]


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A dataset of 20 samples with a part of 10."""
    write(str(tmp_path / 'data'), range(20))
    write(str(tmp_path / 'data' / 'day2'), range(20, 30))
    merge_index(tmp_path / 'data')
    return tmp_path / 'data'


def test_there_and_back(merged: Path) -> None:
    (kept,) = kept_indexes(merged)
    replaced = rollback(merged, kept.name)
    assert ids_of(merged) == list(range(20))
    assert (replaced.samples, [found.samples for found in kept_indexes(merged)]) == (30, [20, 30])
    rollback(merged, replaced.name)
    assert ids_of(merged) == list(range(30))
    assert [found.samples for found in kept_indexes(merged)] == [20, 30]


def test_kept_indexes_are_no_part_of_the_dataset(merged: Path, tmp_path: Path) -> None:
    copy_dataset(merged, tmp_path / 'copy')
    assert not kept_indexes(tmp_path / 'copy')
    for command in ('verify', 'inspect'):
        assert main([command, str(merged)]) == 0
    write(str(merged), range(30, 40), append=True)
    assert ids_of(merged) == list(range(40))
    assert [kept.samples for kept in kept_indexes(merged)] == [20]


def test_what_cannot_come_back(merged: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'index\.json', and .*data has index\.00001\.json"):
        rollback(merged, 'index.json')
    before = (merged / 'index.json').read_bytes()
    (merged / 'shard.00000.mds').unlink()
    with pytest.raises(ConfigError, match=r'1 of the 2 of .*index\.00001\.json are gone, such as shard\.00000\.mds'):
        rollback(merged, 'index.00001.json')
    assert (merged / 'index.json').read_bytes() == before


@pytest.mark.s3
def test_in_a_bucket(tmp_path: Path, s3_server: S3Server) -> None:
    url = f's3://{s3_server.new_bucket()}/data'
    write(url, range(20))
    write(f'{url}/day2', range(20, 30))
    merge_index(url)
    rollback(url, kept_indexes(url)[0].name)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / 'cache'), batch_size=1)
    assert [int(sample['id']) for sample in dataset] == list(range(20))
