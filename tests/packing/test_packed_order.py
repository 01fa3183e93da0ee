"""What is in which sequence follows from the documents' order alone, wherever a run is interrupted and continues."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed_model import documents_of_lane, pieces_of_rows

from headrace import BAD_SAMPLE, PADDING, MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology, sample_rng
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.errors import ChecksumError
from headrace.packing import PackedDataset, Packing

SIZE = 16


def tokens_of(number: int, length: int) -> np.ndarray:
    """Tokens that tell which document they are of, and where in it."""
    return (number * 1000 + np.arange(length) + 1).astype(np.int32)


def write(folder: Path, lengths: list[int]) -> str:
    with MDSWriter(out=str(folder), columns={'tokens': 'bytes'}, size_limit=600) as writer:
        for number, length in enumerate(lengths):
            writer.write({'tokens': tokens_of(number, length).tobytes()})
    return str(folder)


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> tuple[str, list[int]]:
    draw = random.Random(3)
    lengths = [draw.choice([0, 1, 2, 3, 5, 8, 13, 21, 40]) for _ in range(97)]
    return write(tmp_path_factory.mktemp('documents'), lengths), lengths


def make(folder: str, *, lanes: int = 4, rank: int = 0, ranks: int = 1, nodes: int = 1, batch: int = 4, **options: Any):
    packing = {'sequence_length': SIZE, 'lanes': lanes, 'window': 3, 'token_dtype': 'int32'}
    packing |= {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    workers = {key: options.pop(key) for key in list(options) if key.endswith(('workers', 'context'))}
    dataset = PackedDataset(
        local=folder,
        shuffle=True,
        shuffle_seed=7,
        packing=Packing(**packing),
        topology=Topology(rank=rank, world_size=ranks, num_nodes=nodes),
        **options,
    )
    return StreamingDataLoader(dataset, batch_size=batch // ranks, **workers)


def sequences(loader: StreamingDataLoader, count: int | None = None) -> list[list[int]]:
    """Tokens of the sequences of some batches, without padding."""
    found: list[list[int]] = []
    for batch in itertools.islice(loader, count):
        for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True):
            assert row[used:] == [0] * (SIZE - used)
            found.append(row[:used])
    return found


def expected(folder: str, lengths: list[int], rows: int, *, lanes: int = 4, method: str = 'best_fit'):
    """The first sequences of a run."""
    dataset = make(folder, lanes=lanes).dataset
    dataset.run.freeze_defaults(1, lanes)

    def passes() -> Iterator[list[int]]:
        for epoch in itertools.count():
            order = dataset.run.documents.order(epoch, 1, lanes)
            yield order.at(np.arange(len(order))).tolist()

    def of_lane(lane: int) -> Iterator[list[int]]:
        ids = documents_of_lane(lane, lanes, passes())
        known: list[int] = []
        lengths_of = (known.append(number) or lengths[number] for number in ids)
        window = max(min(3, len(lengths) // lanes), 1)
        for row in pieces_of_rows(lengths_of, SIZE, method, window, 1 + lane * window // lanes):
            yield [token for number, begin, end in row for token in tokens_of(known[number], end)[begin:].tolist()]

    each = [of_lane(lane) for lane in range(lanes)]
    return [next(each[number % lanes]) for number in range(rows)]


METHODS = ('best_fit', 'concatenate')


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
def test_tokens_in_are_tokens_out_over_two_passes(data, method):
    folder, lengths = data
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


def unpadded(batch: dict[str, Any]) -> list[list[int]]:
    return [row[:used] for row, used in zip(batch['input_ids'].tolist(), batch['num_tokens'].tolist(), strict=True)]


def world(folder: str, ranks: int, state: Any, steps: int, *, exchange: bool, **options: Any):
    """Global batches of a run on some ranks, and the states of its ranks."""
    loaders = [make(folder, rank=rank, ranks=ranks, **options) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    each = [iter(loader) for loader in loaders]
    batches = [[unpadded(next(found)) for found in each] for _ in range(steps)]
    if exchange:
        own: list[Any] = []
        for loader in loaders:
            loader.dataset.sync_lane_states(lambda states: own.append(states) or [])
        for loader in loaders:
            loader.dataset.sync_lane_states(lambda _: own)
    # Position p of the sequence is replica p modulo the replicas'.
    rows = [row for batch in batches for turn in zip(*batch, strict=True) for row in turn]
    return rows, [loader.state_dict() for loader in loaders]


@pytest.mark.parametrize('exchange', [True, False])
@pytest.mark.parametrize('method', METHODS)
def test_a_run_continues_on_other_ranks_from_the_state_of_any(data, method, exchange):
    folder, lengths = data
    whole = expected(folder, lengths, 400, lanes=12, method=method)
    draw = random.Random(f'{method}{exchange}')
    state, rows = None, 0
    for _ in range(20):
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
def test_workers_change_nothing(data, options):
    folder, lengths = data
    whole = expected(folder, lengths, 96)
    loader = make(folder, sequences_per_epoch=48, **options)
    assert len(loader) == 12
    assert sequences(loader) == whole[:48]
    assert sequences(loader, 5) == whole[48:68]
    state = loader.state_dict()
    assert (state['epoch'], state['sample_in_epoch']) == (1, 20)
    # What was left continues, what is loaded goes back; persistent workers serve both.
    loader.load_state_dict(state)
    assert sequences(loader) == whole[68:]


def test_each_step_of_two_epochs_resumes(data):
    folder, lengths = data
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


def test_a_position_before_the_last_batch_is_taken_up_too(data):
    folder, lengths = data
    whole = expected(folder, lengths, 200)
    loader = make(folder)
    sequences(loader, 40)
    for row in (0, 4, 60, 156):  # as a trainer asks whose last batches are not trained yet
        resumed = make(folder)
        resumed.load_state_dict(loader.dataset.resume_state(0, row, 4).to_dict())
        assert sequences(resumed, 5) == whole[row : row + 20]


def test_skipped_sequences_are_packed_and_not_handed_out(data):
    folder, lengths = data
    whole = expected(folder, lengths, 80)
    loader = make(folder, skip=[(8, 12), ('5ba', '7ba')])
    kept = [row for number, row in enumerate(whole) if not (8 <= number < 12 or 20 <= number < 28)]
    assert sequences(loader, 10) == kept[:40]
    state = loader.state_dict()
    resumed = make(folder, skip=[(8, 12), (20, 28), (56, 60)])
    resumed.load_state_dict(state)
    assert sequences(resumed, 3) == kept[40:44] + kept[48:56]


def test_only_cuts_tell_states_of_ranks_apart(data):
    folder, _ = data
    _, states = world(folder, 2, None, 9, exchange=True)
    assert states[0] == states[1]
    _, states = world(folder, 2, None, 9, exchange=False)
    assert states[0] != states[1]
    assert {**states[0], 'config': ''} == {**states[1], 'config': ''}


@pytest.mark.parametrize('workers', [0, pytest.param(2, marks=pytest.mark.slow)])
def test_documents_come_through_a_cache_that_holds_a_part_of_them(data, tmp_path, workers):
    folder, lengths = data
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


def test_rows_that_fill_up_the_last_batch_are_empty(data):
    folder, lengths = data
    whole = expected(folder, lengths, 12, lanes=6)
    _, (state, _) = world(folder, 2, None, 1, exchange=True, lanes=6, sequences_per_epoch=12)
    found: list[list[int]] = []
    for rank in range(3):
        loader = make(folder, lanes=6, sequences_per_epoch=12, rank=rank, ranks=3, batch=6, remainder='exact')
        loader.load_state_dict(state)
        for batch in loader:
            is_padding = batch[PADDING].tolist()
            assert [used == 0 for used in batch['num_tokens'].tolist()] == is_padding
            found += [row for row in unpadded(batch) if row]
    assert sorted(found) == sorted(whole[4:])


def test_few_documents_and_some_without_tokens(tmp_path):
    folder = write(tmp_path / 'one empty', [3, 3, 0, 3, 3, 3, 3, 3])
    assert len(sequences(make(folder, lanes=8, batch=8), 6)) == 48
    # As many lanes as documents, which are much shorter than a sequence.
    folder = write(tmp_path / 'short', [10] * 8)
    loader = make(folder, lanes=8, batch=8, sequence_length=512, window=32)
    batch = next(iter(loader))
    assert (batch['num_tokens'] > 500).all()


def test_a_lane_is_taken_up_within_a_long_document(tmp_path):
    folder = write(tmp_path, [100_000] * 4)
    loader = make(folder, lanes=1, batch=1, method='concatenate')
    first = sequences(loader, 3000)
    state = loader.state_dict()
    assert json.loads(state['config'])['cuts']['0'][0] > 3000 - 40
    resumed = make(folder, lanes=1, batch=1, method='concatenate')
    resumed.load_state_dict(state)
    assert sequences(resumed, 1)[0][0] == first[-1][-1] + 1


def test_what_a_subclass_draws_follows_from_the_document(data):
    class Noisy(PackedDataset):
        def __getitem__(self, at: Any) -> Any:
            return {'tokens': sample_rng().integers(1, 1000, 3)}

    found = []
    for _ in range(2):
        packing = Packing(sequence_length=SIZE, lanes=4, window=3)
        dataset = Noisy(local=data[0], shuffle=True, packing=packing)
        found.append(sequences(StreamingDataLoader(dataset, batch_size=4), 5))
    assert found[0] == found[1]


def test_looking_ahead_begins_anew_with_each_pass(data, tmp_path, monkeypatch):
    followed: list[int] = []
    follow = Prefetcher.follow
    monkeypatch.setattr(
        Prefetcher,
        'follow',
        lambda self, upcoming, *, first, **rest: followed.append(first) or follow(self, upcoming, first=first, **rest),
    )
    packing = Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32', sequences_per_epoch=32)
    dataset = PackedDataset(remote=data[0], local=str(tmp_path), shuffle=True, packing=packing)
    loader = StreamingDataLoader(dataset, batch_size=4, fixed_epoch=0)
    for _ in range(2):
        assert len(sequences(loader)) == 32
    assert followed == [0, 0]


# -- documents that cannot be read -------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def damaged(tmp_path_factory) -> tuple[str, list[int]]:
    """Documents of which the third shard is cut short, and their lengths, 0 for those that are in it."""
    lengths = [20] * 90
    folder = write(tmp_path_factory.mktemp('damaged'), lengths)
    shards = StreamingDataset(local=folder).shards
    shard = Path(folder, shards[2].files[0].raw.basename)
    shard.write_bytes(shard.read_bytes()[:-1])
    first = sum(info.samples for info in shards[:2])
    lengths[first : first + shards[2].samples] = [0] * shards[2].samples
    return folder, lengths


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('workers', [0, 2])
def test_a_document_that_cannot_be_read_is_in_no_sequence(damaged, method, workers):
    folder, lengths = damaged
    loader = make(folder, method=method, num_workers=workers, on_bad_sample='skip')
    assert sequences(loader, 40) == expected(folder, lengths, 160, method=method)  # one and a half passes
    assert BAD_SAMPLE not in next(iter(make(folder, on_bad_sample='skip')))
    (count,) = loader.dataset.document_counts.values()
    assert count.tokens == 20 * (count.documents - count.left_out)
    assert loader.stats().bad_samples == count.left_out >= lengths.count(0)
    with pytest.raises(ChecksumError):
        sequences(make(folder, method=method), 40)


def test_a_run_over_bad_documents_continues_on_other_ranks(damaged):
    folder, lengths = damaged
    whole = expected(folder, lengths, 144, lanes=12)
    state: Any = None
    for step, ranks in enumerate([1, 3, 2, 4, 6, 1]):
        options = {'lanes': 12, 'batch': 24, 'on_bad_sample': 'skip'}
        found, states = world(folder, ranks, state, 1, exchange=step % 2 == 0, **options)
        assert found == whole[24 * step : 24 * (step + 1)]
        state = states[-1]


@pytest.mark.parametrize('fault', [ZeroDivisionError, MemoryError])
def test_what_a_subclass_raises_for_a_document(data, fault):
    class Refusing(PackedDataset):
        def __getitem__(self, at: Any) -> Any:
            if at % 2:
                raise fault('odd')
            return super().__getitem__(at)

    packing = Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32')
    dataset = Refusing(local=data[0], shuffle=True, shuffle_seed=7, packing=packing, on_bad_sample='skip')
    loader = StreamingDataLoader(dataset, batch_size=4)
    if fault is MemoryError:
        with pytest.raises(MemoryError, match='odd'):
            next(iter(loader))
    else:
        lengths = [0 if number % 2 else length for number, length in enumerate(data[1])]
        assert sequences(loader, 40) == expected(data[0], lengths, 160)


def test_where_no_document_can_be_read_the_error_is_raised(tmp_path):
    folder = write(tmp_path, [20] * 90)
    for shard in tmp_path.glob('*.mds'):
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ChecksumError):
        sequences(make(folder, on_bad_sample='skip'), 1)
