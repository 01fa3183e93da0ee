"""Global batches on ranks that do not divide them: rows, marks, counts, and resumes from and to any ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace import PADDING, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, TopologyError
from headrace.packing import PackedDataset, Packing
from tests.support.packings.packed_orders import write

SAMPLES, BATCH = 330, 64


def loaders(folder: Path, ranks: int, uneven: Any = 'pad', **options: Any) -> list[StreamingDataLoader]:
    options = {'global_batch_size': BATCH, 'shuffle': True, 'num_canonical_nodes': 4, **options}
    workers = options.pop('num_workers', 0)
    return [
        StreamingDataLoader(
            StreamingDataset(
                local=str(folder), topology=Topology(rank=rank, world_size=ranks), uneven=uneven, **options
            ),
            num_workers=workers,
        )
        for rank in range(ranks)
    ]


def global_batches(ranks: list[StreamingDataLoader], most: int = 100) -> list[list[int]]:
    """The ids of each global batch, sorted; padding is left out."""
    found: list[list[int]] = []
    for batches in zip(*ranks, strict=True):
        found.append(sorted(sum((batch['id'][~batch[PADDING]].tolist() for batch in batches), [])))
        if len(found) == most:
            break
    return found


@pytest.fixture
def alone(make_dataset: Any) -> tuple[Path, list[list[int]]]:
    folder = make_dataset(samples=SAMPLES)
    return folder, global_batches(loaders(folder, 1))


@pytest.mark.parametrize('uneven', ['pad', 'ragged'])
@pytest.mark.parametrize('options', [{}, {'num_workers': 2}, {'remainder': 'exact'}], ids=['', 'workers', 'exact'])
def test_seven_ranks_read_the_global_batches_of_one(alone: Any, uneven: Any, options: Any) -> None:
    folder, expected = alone
    ranks = loaders(folder, 7, uneven, **options)
    assert ranks[0].batch_size == 10
    assert global_batches(ranks) == expected
    assert sum(expected, []) != sorted(sum(expected, []))
    assert sum(rank.stats().samples for rank in ranks) == SAMPLES, 'padding counts'


def test_pad_gives_ranks_equal_rows_and_ragged_gives_no_padding(make_dataset: Any) -> None:
    folder = make_dataset(samples=70)
    padded, ragged = ([list(rank) for rank in loaders(folder, 7, uneven)] for uneven in ('pad', 'ragged'))
    assert {len(batch['id']) for rank in padded for batch in rank[:1]} == {10}
    assert sorted(len(rank[0]['id']) for rank in ragged) == [9] * 6 + [10]
    assert not any(bool(rank[0][PADDING].any()) for rank in ragged)
    assert [sum(bool(rank[k][PADDING].any()) for rank in ragged) for k in (0, 1)] == [0, 1], 'a rank without a row'
    for rank in padded:
        for batch in rank:
            assert not batch[PADDING][:-1].any()


@pytest.mark.parametrize('uneven', ['pad', 'ragged'])
def test_a_run_moves_between_any_ranks(alone: Any, uneven: Any) -> None:
    folder, expected = alone
    found: list[list[int]] = []
    state = None
    for ranks in (8, 7, 5, 6, 3):
        now = loaders(folder, ranks, uneven)
        for loader in now:
            if state is not None:
                loader.load_state_dict(state)
        found += global_batches(now, 1)
        states = [loader.state_dict() for loader in now]
        assert states == states[:1] * ranks
        state = states[0]
    assert found == expected[:5]


@pytest.mark.parametrize('power', [1, 2])
def test_balanced_rows_of_uneven_ranks_are_each_a_row_once(make_dataset: Any, power: int) -> None:
    folder = make_dataset(samples=SAMPLES)
    options = {'cost': 'id', 'balance': power}
    balanced = loaders(folder, 7, 'ragged', **options)
    batches = [list(rank) for rank in balanced]
    expected = global_batches(loaders(folder, 1))
    for k in range(SAMPLES // BATCH):
        rows = [rank[k]['id'].tolist() for rank in batches]
        assert sorted(sum(rows, [])) == expected[k]
        assert {len(row) for row in rows} == {9, 10}
        padded = [plan.ids(k).tolist() for plan in (rank.plan(0) for rank in loaders(folder, 7, 'pad', **options))]
        assert [row[: len(own)] for row, own in zip(padded, rows, strict=True)] == rows
        assert {len(row) for row in padded} == {10}


@pytest.mark.parametrize('method', [{}, {'sequences_per_epoch': 'all'}], ids=['lanes', 'whole'])
@pytest.mark.parametrize('uneven', ['pad', 'ragged'])
def test_packed_sequences_are_the_same_on_five_ranks(tmp_path: Path, method: Any, uneven: Any) -> None:
    folder = write(tmp_path / 'documents', [(7 * number) % 23 for number in range(150)])

    def sequences(ranks: int) -> list[list[list[int]]]:
        made = [
            StreamingDataLoader(
                PackedDataset(
                    local=folder,
                    packing=Packing(sequence_length=16, token_dtype='int32', **method),
                    topology=Topology(rank=rank, world_size=ranks),
                    global_batch_size=12,
                    uneven=uneven,
                )
            )
            for rank in range(ranks)
        ]
        found: list[list[list[int]]] = []
        for batches in zip(*made, strict=True):
            found.append(sorted(sum((b['input_ids'][~b[PADDING]].tolist() for b in batches), [])))
            if len(found) == 5:
                break
        return found

    assert sequences(5) == sequences(1)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    'no option': ({'uneven': None}, TopologyError, '7 ranks must divide the global batch size.*`uneven: pad`'),
    'fewer rows than ranks': ({'global_batch_size': 6}, TopologyError, 'it is 6. The nearest that they divide: 7'),
    'per device': ({'global_batch_size': None, 'batch_size': 8}, ConfigError, '`uneven` deals a `global_batch_size`'),
    'twice': ({'batch_size': 8}, ConfigError, 'both given'),
    'unknown': ({'uneven': 'fill'}, ConfigError, "one of .'pad', 'ragged'., or None, got 'fill'"),
    'MosaicML': ({'shuffle_algo': 'py1e'}, ConfigError, "native order.* got shuffle_algo 'py1e'"),
    'of one stream': ({'batching_method': 'per_stream'}, ConfigError, 'native order.* got batches of one stream'),
}


@pytest.mark.parametrize(('options', 'error', 'message'), REFUSED.values(), ids=REFUSED)
def test_uneven_batches_that_cannot_be_are_refused(make_dataset: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        loaders(make_dataset(samples=SAMPLES), 7, **options)[0].plan()


def test_a_plain_loader_of_uneven_batches_is_refused(make_dataset: Any) -> None:
    dataset = StreamingDataset(local=str(make_dataset()), global_batch_size=8, uneven='pad', topology=Topology())
    with pytest.raises(ConfigError, match=r'StreamingDataLoader, or leave `uneven` out'):
        next(iter(dataset))


def test_a_batch_size_beside_a_global_one_is_refused(make_dataset: Any) -> None:
    dataset = StreamingDataset(local=str(make_dataset()), global_batch_size=8, topology=Topology(world_size=2))
    dataset.batch_size = 4
    with pytest.raises(ConfigError, match='`global_batch_size` 8, 4 samples per device, but `batch_size` is to be 8'):
        dataset.batch_size = 8
