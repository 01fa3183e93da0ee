"""The repr of a stream, and of many."""

from __future__ import annotations

from typing import Any

from headrace import Stream, StreamingDataset


def test_a_stream_before_and_after_it_is_opened(make_dataset: Any) -> None:
    stream = Stream(local=str(make_dataset()), name='a', subset=[[0, 30]], columns=['id'])
    assert str(stream).startswith("Stream 'a' (not opened)\n")
    StreamingDataset(streams=[stream], batch_size=4)
    text = str(stream)
    assert text.startswith("Stream 'a'\n")
    assert '30 of 100 samples in' in text
    assert 'id: int64' in text
    assert 'row' not in text


def test_many_streams_are_cut(make_dataset: Any) -> None:
    folder = str(make_dataset())
    dataset = StreamingDataset(streams=[Stream(local=folder, name=f's{i}') for i in range(20)], batch_size=4)
    assert 'and 12 more streams' in str(dataset)
    assert len(str(dataset).split('\n')) < 16
