"""Cache folders that two streams of a process claim."""

from __future__ import annotations

import pytest

from headrace import StreamingDataset
from headrace.errors import (
    StreamError,
)
from tests.support.programs.soon import (
    soon,  # noqa: F401
)


def test_one_cache_folder_for_two_remotes(make_dataset, tmp_path):
    one, two = make_dataset('one', 10), make_dataset('two', 10)
    first = StreamingDataset(remote=str(one), local=str(tmp_path / 'local'))
    with pytest.raises(StreamError, match=r'Reused local directory.*vs\..*Provide a different one'):
        StreamingDataset(remote=str(two), local=str(tmp_path / 'local'))
    del first


def test_a_remote_may_be_spelled_in_several_ways(make_dataset, tmp_path, monkeypatch):
    remote = make_dataset('one', 10)
    monkeypatch.chdir(remote.parent)
    spelled = [str(remote), remote.name, f'{remote}/', remote.as_uri()]
    datasets = [StreamingDataset(remote=text, local=str(tmp_path / 'local')) for text in spelled]
    assert [dataset[9]['id'] for dataset in datasets] == [9] * 4


def test_a_remote_that_was_mistyped_is_corrected_in_the_same_process(make_dataset, tmp_path):
    """As in a notebook, which keeps the error, and with it the stream that was not opened."""
    remote, local = make_dataset('data', 10), tmp_path / 'local'
    with pytest.raises(FileNotFoundError) as kept:
        StreamingDataset(remote=f'{remote}s', local=str(local))
    assert StreamingDataset(remote=str(remote), local=str(local))[9]['id'] == 9
    assert kept.value is not None


def test_two_datasets_share_a_local_folder(make_dataset):
    folder = make_dataset('data', 10)
    one, two = StreamingDataset(local=str(folder)), StreamingDataset(local=str(folder))
    assert one[3]['id'] == two[3]['id']
