"""Global batches on ranks that do not divide them: rows, marks, counts, and resumes from and to any ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import LOSS_WEIGHT, PADDING, StreamingDataLoader, StreamingDataset, Topology
from headrace.config.build import build_dataset
from headrace.config.load import load_config
from headrace.errors import ConfigError, StreamError, TopologyError
from headrace.packing import PackedDataset, Packing
from headrace.watching.record import loader_config
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


@pytest.mark.parametrize(
    ('uneven', 'options'),
    [
        ('pad', {'num_workers': 2}),
        ('ragged', {}),
        ('ragged', {'remainder': 'exact'}),
        pytest.param('pad', {}, marks=pytest.mark.slow),
        pytest.param('pad', {'remainder': 'exact'}, marks=pytest.mark.slow),
        pytest.param('ragged', {'num_workers': 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
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


def test_the_record_of_a_run_explains_its_uneven_rows(make_dataset: Any) -> None:
    loader = loaders(make_dataset(samples=SAMPLES), 7, 'ragged')[3]
    recorded = loader_config(loader)
    assert recorded is not None
    config = load_config({'train': recorded}).train
    assert config is not None
    again = build_dataset(config, topology=loader.dataset.topology).plan()
    assert [again.ids(k).tolist() for k in range(6)] == [loader.plan().ids(k).tolist() for k in range(6)]


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
                    loss_weight='samples',
                )
            )
            for rank in range(ranks)
        ]
        found: list[list[list[int]]] = []
        for batches in zip(*made, strict=True):
            counted = sum(float(b[LOSS_WEIGHT].mean()) for b in batches) / ranks
            assert counted == pytest.approx(1)
            found.append(sorted(sum((b['input_ids'][~b[PADDING]].tolist() for b in batches), [])))
            if len(found) == 5:
                break
        return found

    assert sequences(5) == sequences(1)


def global_mean(ranks: list[StreamingDataLoader], loss: Any) -> list[float]:
    """By batch, the mean of the ranks' means of weighted losses, as DDP averages them."""
    means: list[float] = []
    for batches in zip(*ranks, strict=True):
        local = [(batch[LOSS_WEIGHT] * loss(batch)).mean() for batch in batches]
        assert all(not batch[LOSS_WEIGHT][batch[PADDING]].any() for batch in batches if PADDING in batch)
        means.append(float(torch.stack(local).mean()))
    return means


@pytest.mark.parametrize('options', [{}, {'balance': 1.0, 'cost': 'id'}, {'remainder': 'exact'}], ids=str)
@pytest.mark.parametrize('uneven', ['pad', 'ragged', None])
def test_weighted_losses_of_ranks_have_the_mean_of_the_global_batch(
    alone: Any, uneven: Any, options: dict[str, Any]
) -> None:
    folder, batches = alone

    def loss(batch: Any) -> torch.Tensor:
        return torch.sin(batch['id'].double()) + 2

    expected = [float(loss({'id': torch.tensor(ids)}).mean()) for ids in batches]
    ranks = loaders(folder, 7 if uneven else 8, uneven, loss_weight='samples', **options)
    assert global_mean(ranks, loss) == pytest.approx(expected, rel=1e-6)
    assert ranks[0].own_loss_weights.dtype == np.float32


@pytest.mark.parametrize('uneven', ['pad', 'ragged'])
def test_losses_weighted_by_cost_have_the_mean_of_all_tokens(alone: Any, uneven: Any) -> None:
    folder, batches = alone
    expected = [sum(i * np.cos(i) for i in ids) / sum(ids) for ids in batches]  # a sample of id i has i tokens
    ranks = loaders(folder, 7, uneven, loss_weight='cost', cost='id', num_workers=1)
    assert global_mean(ranks, lambda batch: torch.cos(batch['id'].double())) == pytest.approx(expected, rel=1e-5)


def test_weights_of_batches_that_are_no_dicts_are_the_loader_s(alone: Any) -> None:
    (loader,) = loaders(alone[0], 1, loss_weight='cost', cost='id')
    with pytest.raises(ConfigError, match='a batch that was handed out'):
        _ = loader.own_loss_weights
    for batch in loader:
        assert loader.own_loss_weights.tolist() == batch[LOSS_WEIGHT].tolist()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'loss_weight': 'tokens'}, "must be 'samples' or 'cost', but is 'tokens'"),
        ({'loss_weight': 'cost'}, '`loss_weight: cost` need the costs'),
    ],
)
def test_weights_that_cannot_be_are_refused(make_dataset: Any, options: Any, message: str) -> None:
    with pytest.raises((ConfigError, StreamError), match=message):
        loaders(make_dataset(), 1, **options)


def test_uneven_ranks_without_weights_are_told(make_dataset: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO', logger='headrace')
    for options, told in (({}, True), ({'loss_weight': 'samples'}, False)):
        caplog.clear()
        next(iter(loaders(make_dataset(str(told)), 7, **options)[0]))
        assert ('7 ranks share batches of 64 samples unevenly' in caplog.text) == told


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    'no option': ({'uneven': None}, TopologyError, '7 ranks must divide the global batch size.*`uneven: pad`'),
    'fewer rows than ranks': ({'global_batch_size': 6}, TopologyError, 'it is 6. The nearest that they divide: 7'),
    'per device': ({'global_batch_size': None, 'batch_size': 8}, ConfigError, '`uneven` deals a `global_batch_size`'),
    'twice': ({'batch_size': 8}, ConfigError, 'exclude each other'),
    'none': ({'global_batch_size': 0}, ConfigError, 'must be at least 1, but is 0'),
    'unknown': ({'uneven': 'fill'}, ConfigError, "must be 'pad' or 'ragged', but is 'fill'"),
    'MosaicML': ({'shuffle_algo': 'py1e'}, ConfigError, "native order.* got shuffle_algo 'py1e'"),
    'of one stream': (
        {'batching_method': 'per_stream'},
        ConfigError,
        "native order.* got batching_method 'per_stream'",
    ),
}


@pytest.mark.parametrize(('options', 'error', 'message'), REFUSED.values(), ids=REFUSED)
def test_uneven_batches_that_cannot_be_are_refused(make_dataset: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        loaders(make_dataset(samples=SAMPLES), 7, **options)[0].plan()


def test_a_plain_loader_of_uneven_batches_is_refused(make_dataset: Any) -> None:
    dataset = StreamingDataset(local=str(make_dataset()), global_batch_size=8, uneven='pad', topology=Topology())
    with pytest.raises(ConfigError, match=r'StreamingDataLoader, or leave both out'):
        next(iter(dataset))


@pytest.mark.parametrize(
    ('options', 'message'), [({'uneven': 'fill'}, "but is 'fill'"), ({'global_batch_size': 0}, 'but is 0')]
)
def test_wrong_values_are_refused_before_ranks_are_known(make_dataset: Any, options: Any, message: str) -> None:
    options = {'global_batch_size': 8, **options}
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(local=str(make_dataset()), **options)


def test_a_loader_has_the_batch_size_of_the_ranks_that_there_are(make_dataset: Any) -> None:
    dataset = StreamingDataset(local=str(make_dataset(samples=SAMPLES)), global_batch_size=BATCH, uneven='pad')
    loader = StreamingDataLoader(dataset)
    assert loader.batch_size == BATCH
    for rank in (StreamingDataLoader(dataset, topology=Topology(world_size=7)), loader):
        assert rank.batch_size == len(next(iter(rank))['id']) == 10
        assert '10 samples per device' in repr(rank)


def test_a_batch_size_beside_a_global_one_is_refused(make_dataset: Any) -> None:
    dataset = StreamingDataset(local=str(make_dataset()), global_batch_size=8, topology=Topology(world_size=2))
    dataset.batch_size = 4
    with pytest.raises(ConfigError, match='`global_batch_size` 8, 4 samples per device, but `batch_size` is to be 8'):
        dataset.batch_size = 8
