"""Warnings about samples and shards that cannot be read: each is named once."""

from __future__ import annotations

import logging

from headrace import (
    StreamingDataset,
)
from tests.support.datasets.bad_data import (
    SINGLE,
    checked,
    make,
    write_texts,
)


def test_each_bad_shard_and_sample_is_named_once(damaged_remote, tmp_path, caplog):
    loader = make(damaged_remote, tmp_path)
    with caplog.at_level(logging.WARNING, 'headrace'):
        for _ in range(2):
            list(loader)
    messages = sorted(record.getMessage() for record in caplog.records)
    assert len(messages) == 4
    assert messages[0].startswith(f'Sample {SINGLE}, row 7 of shard shard.00005.mds of stream stream_0, cannot be read')
    assert f'({damaged_remote}/shard.00005.mds): ShardError: ' in messages[0]
    for message, number, cause in zip(
        messages[1:], (1, 3, 4), ('ShardError', 'ObjectNotFoundError', 'ChecksumError'), strict=True
    ):
        assert message.startswith(f'Shard shard.0000{number}.mds of stream stream_0 cannot be read, and is skipped')
        assert f'with its 10 samples, of which {number}' in message
        assert f'({damaged_remote}/shard.0000{number}.mds): {cause}: ' in message


def test_of_many_bad_samples_only_some_are_named(tmp_path, caplog):
    class Odd(StreamingDataset):
        def __getitem__(self, at):
            sample = super().__getitem__(at)
            assert sample['id'] % 2 == 0
            return sample

    loader = make(write_texts(tmp_path / 'a', 300), tmp_path / 'b', cls=Odd)
    list(checked(loader, set(range(1, 300, 2))))
    named = [record for record in caplog.records if record.getMessage().startswith('Sample')]
    summaries = [record.getMessage() for record in caplog.records if record not in named]
    assert len(named) == 20
    assert [int(text.split(': ')[1].split()[0]) for text in summaries] == [40, 80]
    assert loader.stats().bad_samples == 150
