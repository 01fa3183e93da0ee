"""Streams that are given to a dataset which fails, and to a second dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import Stream, StreamingDataset
from headrace.errors import HeadraceError, StreamError

MISTAKES: dict[str, dict[str, Any]] = {
    'a split that is not there': {'split': 'trian'},
    'a column that is not there': {'columns': ['text']},
    'a selection of nothing': {'subset': [[100, 200]]},
    'a limit that holds no shard': {'cache_limit': 700},
    'an order that is not there': {'subset': [[0, 5]], 'shuffle': True, 'shuffle_algo': 'py9', 'batch_size': 1},
    'a weight that does not fit the size of an epoch': {'subset': [[0, 5]], 'epoch_size': 10},
}


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_corrected_with_the_same_streams(make_dataset: Any, tmp_path: Path, name: str) -> None:
    stream = Stream(remote=str(make_dataset(samples=30)), local=str(tmp_path / 'cache'), repeat=1)
    before = vars(stream).copy()
    with pytest.raises(HeadraceError):
        list(StreamingDataset(streams=[stream], **MISTAKES[name]))
    assert vars(stream) == before

    dataset = StreamingDataset(streams=[stream], cache_limit=4000, batch_size=1)
    assert [sample['id'] for sample in dataset] == list(range(30))


def test_a_stream_of_another_dataset_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    stream = Stream(remote=str(make_dataset(samples=30)), local=str(tmp_path / 'cache'))
    dataset = StreamingDataset(streams=[stream], batch_size=1)
    with pytest.raises(StreamError, match=r'stream_0 .* is one of another dataset already. Make a new Stream'):
        StreamingDataset(streams=[stream], cache_limit=4000)
    assert [sample['id'] for sample in dataset] == list(range(30))
