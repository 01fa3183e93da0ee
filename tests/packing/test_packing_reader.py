"""Workers that tokenise documents, and documents that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from packed_orders import METHODS, SIZE, expected, make, sequences, write

from headrace import BAD_SAMPLE, StreamingDataLoader
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.errors import ChecksumError
from headrace.packing import PackedDataset, Packing


@pytest.mark.parametrize(
    'options',
    [
        {'num_workers': 1},
        {'num_workers': 3},
        {'num_workers': 2, 'persistent_workers': True},
        {'num_workers': 1, 'multiprocessing_context': 'spawn', 'persistent_workers': True},
    ],
    ids=str,
)
def test_workers_change_nothing(many_documents, options):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 96)
    loader = make(folder, sequences_per_epoch=48, **options)
    assert len(loader) == 12
    assert sequences(loader) == whole[:48]
    assert sequences(loader, 5) == whole[48:68]
    state = loader.state_dict()
    assert (state['epoch'], state['sample_in_epoch']) == (1, 20)
    # An abandoned pass continues, and a loaded state goes back; persistent workers serve both.
    loader.load_state_dict(state)
    assert sequences(loader) == whole[68:]


def test_looking_ahead_begins_anew_with_each_pass(many_documents, tmp_path, monkeypatch):
    followed: list[int] = []
    follow = Prefetcher.follow
    monkeypatch.setattr(
        Prefetcher,
        'follow',
        lambda self, upcoming, *, first, **rest: followed.append(first) or follow(self, upcoming, first=first, **rest),
    )
    packing = Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32', sequences_per_epoch=32)
    dataset = PackedDataset(remote=many_documents[0], local=str(tmp_path), shuffle=True, packing=packing)
    loader = StreamingDataLoader(dataset, batch_size=4, fixed_epoch=0)
    for _ in range(2):
        assert len(sequences(loader)) == 32
    assert followed == [0, 0]


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('workers', [0, 2])
def test_a_document_that_cannot_be_read_is_in_no_sequence(damaged_documents, method, workers):
    folder, lengths = damaged_documents
    loader = make(folder, method=method, num_workers=workers, on_bad_sample='skip')
    assert sequences(loader, 40) == expected(folder, lengths, 160, method=method)  # one and a half passes
    assert BAD_SAMPLE not in next(iter(make(folder, on_bad_sample='skip')))
    (count,) = loader.dataset.document_counts.values()
    assert count.tokens == 20 * (count.documents - count.left_out)
    assert loader.stats().bad_samples == count.left_out >= lengths.count(0)
    with pytest.raises(ChecksumError):
        sequences(make(folder, method=method), 40)


@pytest.mark.parametrize('fault', [ZeroDivisionError, MemoryError])
def test_what_a_subclass_raises_for_a_document(many_documents, fault):
    class Refusing(PackedDataset):
        def __getitem__(self, at: Any) -> Any:
            if at % 2:
                raise fault('odd')
            return super().__getitem__(at)

    packing = Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32')
    dataset = Refusing(local=many_documents[0], shuffle=True, shuffle_seed=7, packing=packing, on_bad_sample='skip')
    loader = StreamingDataLoader(dataset, batch_size=4)
    if fault is MemoryError:
        with pytest.raises(MemoryError, match='odd'):
            next(iter(loader))
    else:
        lengths = [0 if number % 2 else length for number, length in enumerate(many_documents[1])]
        assert sequences(loader, 40) == expected(many_documents[0], lengths, 160)


def test_where_no_document_can_be_read_the_error_is_raised(tmp_path):
    folder = write(tmp_path, [20] * 90)
    for shard in tmp_path.glob('*.mds'):
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ChecksumError):
        sequences(make(folder, on_bad_sample='skip'), 1)
