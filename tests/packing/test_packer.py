"""Tokenised documents as sequences: few of them, empty ones, and the counts of streams."""

from __future__ import annotations

import pytest

from headrace import Stream, StreamingDataLoader
from headrace.packing import PackedDataset, Packing
from tests.support.packings.packed_orders import SIZE, make, sequences, write


def test_what_was_taken_is_counted_by_stream(tmp_path):
    streams = [
        Stream(local=write(tmp_path / name, [10] * count), proportion=share, name=name)
        for name, count, share in (('code', 40, 3), ('prose', 60, 1))
    ]
    packing = Packing(sequence_length=SIZE, lanes=2, window=4, token_dtype='int32', method='concatenate')
    dataset = PackedDataset(streams=streams, shuffle=True, epoch_size=100, packing=packing)
    loader = StreamingDataLoader(dataset, batch_size=2)
    rows = sequences(loader, 200)
    counts = dataset.document_counts
    assert [count.tokens for count in counts.values()] == [10 * count.documents for count in counts.values()]
    assert counts['code'].documents / counts['prose'].documents == pytest.approx(3, rel=0.1)
    assert sum(map(len, rows)) <= sum(count.tokens for count in counts.values()) < sum(map(len, rows)) + 300
    tokens = loader.stats().stream_samples
    assert sum(tokens.values()) == sum(map(len, rows)) == 400 * SIZE
    assert all(0 <= counts[name].tokens - tokens[name] < 300 for name in tokens)
    assert {name: count.samples for name, count in loader.mix().items()} == tokens
    # All documents are equally long.
    assert [count.promised for count in loader.mix().values()] == pytest.approx([300 * SIZE, 100 * SIZE])


def test_few_documents_and_some_without_tokens(tmp_path):
    folder = write(tmp_path / 'one empty', [3, 3, 0, 3, 3, 3, 3, 3])
    assert len(sequences(make(folder, lanes=8, batch=8), 6)) == 48
    # As many lanes as documents, which are much shorter than a sequence.
    folder = write(tmp_path / 'short', [10] * 8)
    loader = make(folder, lanes=8, batch=8, sequence_length=512, window=32)
    batch = next(iter(loader))
    assert (batch['num_tokens'] > 500).all()
