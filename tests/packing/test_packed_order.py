"""The order of the documents alone decides the content of each sequence, at any interruption of a run."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamingDataLoader, sample_rng
from headrace.packing import PackedDataset, Packing
from tests.support.packings.packed_orders import (
    METHODS,
    SIZE,
    expected,
    make,
    sequences,
    tokens_of,
    unpadded,
    world,
    write,
)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=8, max_size=40).filter(lambda found: sum(map(bool, found)) > 7),
    lanes=st.sampled_from([1, 2, 4, 6]),
    method=st.sampled_from(METHODS),
    batch=st.sampled_from([2, 6]),
)
def test_sequences_are_those_of_the_slow_model(tmp_path_factory, lengths, lanes, method, batch):
    lengths = [length or 1 for length in lengths[:6]] + lengths[6:]
    folder = write(tmp_path_factory.mktemp('documents'), lengths)
    loader = make(folder, lanes=lanes, method=method, batch=batch)
    found = sequences(loader, 12)
    assert found == expected(folder, lengths, len(found), lanes=lanes, method=method)


@pytest.mark.parametrize('method', METHODS)
def test_tokens_in_are_tokens_out_over_two_passes(many_documents, method):
    folder, lengths = many_documents
    loader = make(folder, method=method)
    rows: list[list[int]] = []
    seen: dict[int, int] = {}
    wanted = {token: 2 for number, length in enumerate(lengths) for token in tokens_of(number, length).tolist()}
    for row in (row for batch in loader for row in unpadded(batch)):
        rows.append(row)
        for token in row:
            seen[token] = seen.get(token, 0) + 1
        if len(rows) % 4 == 0 and all(seen.get(token, 0) >= 2 for token in wanted):
            break
    # Lanes are at different documents: those that were ahead have begun with the third pass.
    assert all(seen[token] in (2, 3) for token in wanted)
    assert set(seen) == set(wanted)
    lanes = [[token for row in rows[lane::4] for token in row] for lane in range(4)]
    for lane, tokens in enumerate(lanes):
        # No token of a lane's documents is lost or repeated before the lane's second pass is over.
        own = expected(folder, lengths, len(rows), method=method)[lane::4]
        assert tokens == [token for row in own for token in row]


@pytest.mark.parametrize('exchange', [True, False])
@pytest.mark.parametrize('method', METHODS)
def test_a_run_continues_on_other_ranks_from_the_state_of_any(many_documents, method, exchange):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 400, lanes=12, method=method)
    draw = random.Random(f'{method}{exchange}')
    state, rows = None, 0
    for _ in range(8):
        ranks, batch, steps = draw.choice([1, 2, 3, 4, 6]), draw.choice([12, 24]), draw.randrange(1, 3)
        if rows + batch * steps > len(whole):
            state, rows = None, 0
        found, states = world(
            folder,
            ranks,
            state,
            steps,
            exchange=exchange,
            lanes=12 if state is None else None,
            batch=batch,
            method=method,
        )
        assert found == whole[rows : rows + batch * steps]
        rows += batch * steps
        state = draw.choice(states)
        assert state['sample_in_epoch'] == rows


def test_each_step_of_two_epochs_resumes(many_documents):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 56)
    loader = make(folder, sequences_per_epoch=28)
    states = [loader.state_dict()]
    for _ in range(2):
        states += [loader.state_dict() for _ in loader]
    for number, state in enumerate(states):
        resumed = make(folder, sequences_per_epoch=28, num_workers=0)
        resumed.load_state_dict(state)
        begin = min(number * 4, 28 if number <= 7 else 56)
        rest = sequences(resumed) if number < 14 else []
        assert rest == whole[begin : 56 if begin >= 28 else 28] or (begin == 28 and rest == whole[28:56])


def test_a_position_before_the_last_batch_is_taken_up_too(many_documents):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 200)
    loader = make(folder)
    sequences(loader, 40)
    for row in (0, 4, 60, 156):  # as a trainer asks whose last batches are not trained yet
        resumed = make(folder)
        resumed.load_state_dict(loader.dataset.resume_state(0, row, 4).to_dict())
        assert sequences(resumed, 5) == whole[row : row + 20]


def test_skipped_sequences_are_packed_and_not_handed_out(many_documents):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 80)
    loader = make(folder, skip=[(8, 12), ('5ba', '7ba')])
    kept = [row for number, row in enumerate(whole) if not (8 <= number < 12 or 20 <= number < 28)]
    assert sequences(loader, 10) == kept[:40]
    state = loader.state_dict()
    resumed = make(folder, skip=[(8, 12), (20, 28), (56, 60)])
    resumed.load_state_dict(state)
    assert sequences(resumed, 3) == kept[40:44] + kept[48:56]


@pytest.mark.parametrize('workers', [0, pytest.param(2, marks=pytest.mark.slow)])
def test_documents_come_through_a_cache_that_holds_a_part_of_them(many_documents, tmp_path, workers):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 64)
    dataset = PackedDataset(
        remote=folder,
        local=str(tmp_path / 'cache'),
        cache_limit=6000,
        shuffle=True,
        shuffle_seed=7,
        packing=Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32'),
    )
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
    assert sequences(loader, 16) == whole
    stats = loader.stats()
    assert stats.shards_fetched > len(dataset.shards)  # some came again
    assert stats.evictions > 0


def test_what_a_subclass_draws_follows_from_the_document(many_documents):
    class Noisy(PackedDataset):
        def __getitem__(self, at: Any) -> Any:
            return {'tokens': sample_rng().integers(1, 1000, 3)}

    found = []
    for _ in range(2):
        packing = Packing(sequence_length=SIZE, lanes=4, window=3)
        dataset = Noisy(local=many_documents[0], shuffle=True, packing=packing)
        found.append(sequences(StreamingDataLoader(dataset, batch_size=4), 5))
    assert found[0] == found[1]


def test_a_run_over_bad_documents_continues_on_other_ranks(damaged_documents):
    folder, lengths = damaged_documents
    whole = expected(folder, lengths, 144, lanes=12)
    state: Any = None
    for step, ranks in enumerate([1, 3, 2, 4, 6, 1]):
        options = {'lanes': 12, 'batch': 24, 'on_bad_sample': 'skip'}
        found, states = world(folder, ranks, state, 1, exchange=step % 2 == 0, **options)
        assert found == whole[24 * step : 24 * (step + 1)]
        state = states[-1]
