"""Batches have another sample in the place of an erased one, on any ranks, and say which rows these are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.convert import erase
from headrace.dataset.batch_keys import BAD_SAMPLE
from headrace.dataset.reading.erased import ErasedSamples
from headrace.errors import EmptyDatasetError, ErasedError
from headrace.format.shards import Erasure
from headrace.order import SampleMap
from headrace.packing import PackedDataset, Packing

ERASED = [0, 1, 2, 3, 4, 9, 33, 34, 77, 159]


class Shards:
    def __init__(self, first_shard: int, sizes: list[int], erased: dict[int, Erasure]) -> None:
        self.first_shard, self.shards, self.erased = first_shard, self, erased
        self._count, self.title = len(sizes), f'from {first_shard}'

    def __len__(self) -> int:
        return self._count


def stand_in(sample_id: int, shards: list[range], stream: range, erased: set[int]) -> int:
    """The rule, word for word."""
    (shard,) = (shard for shard in shards if sample_id in shard)
    for near in (range(sample_id, shard.stop), range(sample_id, shard.start - 1, -1),
                 range(sample_id, stream.stop), range(sample_id, stream.start - 1, -1)):  # fmt: skip
        for other in near:
            if other not in erased:
                return other
    raise LookupError


@given(
    st.lists(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=5), min_size=1, max_size=3)
)
def test_stand_ins(streams: list[list[list[bool]]]) -> None:
    """`streams`: for each row of each shard whether it is erased."""
    made: list[Any] = []
    shards, spans, first = list[range](), list[range](), 0
    for stream in streams:
        of_stream = dict[int, Erasure]()
        begin = shards[-1].stop if shards else 0
        for number, rows in enumerate(stream):
            at = shards[-1].stop if shards else 0
            shards.append(range(at, at + len(rows)))
            if any(rows):
                of_stream[number] = Erasure(tuple(np.flatnonzero(rows).tolist()))
        spans.append(range(begin, shards[-1].stop))
        made.append(Shards(first, [len(rows) for rows in stream], of_stream))
        first += len(stream)
    flat = [is_erased for stream in streams for rows in stream for is_erased in rows]
    gone = set(np.flatnonzero(flat).tolist())
    sample_map = SampleMap(np.array([len(shard) for shard in shards]))
    if any(gone.issuperset(span) for span in spans):
        with pytest.raises(EmptyDatasetError, match='erased'):
            ErasedSamples(made, sample_map)
        return
    found = ErasedSamples(made, sample_map)
    ids = np.arange(len(flat))
    expected = [stand_in(i, shards, next(span for span in spans if i in span), gone) for i in range(len(flat))]
    replaced, mask = found.replaced(ids)
    assert replaced.tolist() == expected
    assert (mask is None) == (not gone)
    assert gone == set() if mask is None else mask.tolist() == flat


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same samples, whole and with erased ones."""
    made: list[str] = []
    for name in ('whole', 'erased'):
        made.append(str(tmp_path_factory.mktemp(name)))
        columns = {'id': 'int', 'tokens': 'ndarray:int32:4', 'text': 'str'}
        with MDSWriter(out=made[-1], columns=columns, size_limit=900) as writer:
            for i in range(160):
                writer.write({'id': i, 'tokens': np.full(4, i, np.int32), 'text': f'text {i}'})
    erase(made[1], ERASED)
    return made[0], made[1]


OPTIONS: dict[str, Any] = {'shuffle': True, 'shuffle_seed': 7, 'batch_size': 8}


def read(
    folder: str,
    *,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
    state: Any = None,
    collate_fn: Any = None,
    **options: Any,
) -> list[tuple[list[int], list[bool]]]:
    """The ids of each batch, and whether each row is that of an erased sample."""
    given: dict[str, Any] = {**OPTIONS, 'batch_size': 16 // ranks, **options}
    loader = StreamingDataLoader(
        StreamingDataset(local=folder, **given),
        batch_size=16 // ranks,
        num_workers=workers,
        topology=Topology(rank=rank, world_size=ranks),
        collate_fn=collate_fn,
    )
    if state is not None:
        loader.load_state_dict(state)
    batches: list[tuple[list[int], list[bool]]] = []
    for batch in loader:
        marks = loader.own_bad_rows
        if 'on_bad_sample' in options:
            assert batch[BAD_SAMPLE].tolist() == marks.tolist()
        else:
            assert BAD_SAMPLE not in batch
        assert batch['tokens'][:, 0].tolist() == batch['id'].tolist()
        batches.append((batch['id'].tolist(), marks.tolist() if len(marks) else [False] * len(batch['id'])))
    return batches


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.array([one[name] for one in samples])) for name in ('id', 'tokens')}


@pytest.mark.parametrize('options', [{}, {'workers': 2}, {'collate_fn': collate}, {'on_bad_sample': 'skip'}])
def test_batches(folders: tuple[str, str], options: dict[str, Any]) -> None:
    whole, found = read(folders[0]), read(folders[1], **options)
    missing = set[int]()
    for (ids, _), (others, marks) in zip(whole, found, strict=True):
        assert marks == [i in ERASED for i in ids]
        assert [a for a, gone in zip(ids, marks, strict=True) if not gone] == [
            b for b, gone in zip(others, marks, strict=True) if not gone
        ]
        assert not set(others).intersection(ERASED)
        missing |= {a for a, gone in zip(ids, marks, strict=True) if gone}
    assert missing == set(ERASED)


def test_ranks_agree(folders: tuple[str, str]) -> None:
    one = read(folders[1])
    parts = [read(folders[1], rank=rank, ranks=4) for rank in range(4)]
    for number, (ids, _) in enumerate(one):
        rows = [part[number][0] for part in parts]
        assert sorted(i for of_rank in rows for i in of_rank) == sorted(ids)


def test_a_checkpoint_from_before_the_erasure(folders: tuple[str, str]) -> None:
    options: dict[str, Any] = {**OPTIONS, 'batch_size': 16}
    loader = StreamingDataLoader(StreamingDataset(local=folders[0], **options), batch_size=16)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, rest = loader.state_dict(), [batch['id'].tolist() for batch in batches]
    after = read(folders[1], state=state)
    for ids, (others, marks) in zip(rest, after, strict=True):
        assert all(gone or a == b for a, b, gone in zip(ids, others, marks, strict=True))


def test_a_selection(folders: tuple[str, str]) -> None:
    dataset = StreamingDataset(
        streams=[Stream(local=folders[0], subset=[[20, 40]]), Stream(local=folders[1], subset=[[5, 80]])], batch_size=1
    )
    stored = [i - 20 + 5 for i in dataset.pool.erased.ids.tolist()]
    assert stored == [9, 33, 34, 77]
    assert [int(dataset[int(i)]['id']) for i in dataset.pool.erased.replaced(dataset.pool.erased.ids)[0]] == [
        10,
        32,
        35,
        78,
    ]
    with pytest.raises(EmptyDatasetError, match=r'All samples that stream stream_0 .* offers are erased'):
        StreamingDataset(local=folders[1], subset=[[0, 5]], batch_size=1)


def test_samples_by_id(folders: tuple[str, str]) -> None:
    dataset = StreamingDataset(local=folders[1], batch_size=1)
    assert [int(one['id']) for one in dataset[5:9]] == [5, 6, 7, 8]
    for at in (33, -1, [32, 33], slice(150, None)):
        with pytest.raises(ErasedError, match='leave it out'):
            dataset[at]


class Doubled(StreamingDataset):
    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        other = super().get_item((sample_id + 1) % 160)
        return {'id': super().get_item(sample_id)['id'], 'other': other['id']}


def test_a_users_code_that_asks_for_an_erased_sample(folders: tuple[str, str]) -> None:
    with pytest.raises(ErasedError):
        list(StreamingDataLoader(Doubled(local=folders[1], batch_size=8), batch_size=8))
    loader = StreamingDataLoader(Doubled(local=folders[1], batch_size=8, on_bad_sample='skip'), batch_size=8)
    bad = sum(int(batch[BAD_SAMPLE].sum()) for batch in loader)
    assert bad == len(set(ERASED) | {(i - 1) % 160 for i in ERASED})


@pytest.mark.parametrize('options', [{}, {'on_bad_sample': 'skip'}])
def test_a_plain_loader(folders: tuple[str, str], options: dict[str, Any]) -> None:
    dataset = StreamingDataset(local=folders[1], batch_size=8, **options)
    found = [sample for batch in DataLoader(dataset, batch_size=8, collate_fn=list) for sample in batch]
    assert [int(one['id']) for one in found] == [
        5,
        5,
        5,
        5,
        5,
        *range(5, 9),
        10,
        *range(10, 33),
        32,
        35,
        *range(35, 77),
        78,
        *range(78, 159),
        158,
    ]
    if options:
        assert [i for i, one in enumerate(found) if one[BAD_SAMPLE]] == ERASED


@pytest.mark.parametrize('options', [{}, {'on_bad_sample': 'skip'}])
def test_packing_leaves_them_out(folders: tuple[str, str], options: dict[str, Any]) -> None:
    packing = Packing(column='tokens', sequence_length=16)
    dataset = PackedDataset(local=folders[1], packing=packing, batch_size=2, **options)
    seen = set[int]()
    for _, batch in zip(range(20), StreamingDataLoader(dataset, batch_size=2), strict=False):  # a pass has no end
        seen |= set(batch['input_ids'].flatten().tolist())
    assert seen.isdisjoint(set(ERASED) - {0})
    assert len(seen) > 100


def test_explained(folders: tuple[str, str]) -> None:
    dataset = StreamingDataset(local=folders[1], batch_size=8)
    explained = dataset.explain(dataset.run.plan(0, 0, dataset.batch_spec()), 0)
    assert [row['is_erased'] for row in explained.to_json()['rows']] == [*[True] * 5, False, False, False]
    assert [line.endswith('erased') for line in str(explained).split('\n')[1:]] == [*[True] * 5, False, False, False]
    later = dataset.explain(dataset.run.plan(0, 0, dataset.batch_spec()), 2)
    assert 'is_erased' not in later.to_json()['rows'][0]


def test_the_log_says_it_once(folders: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    dataset = StreamingDataset(local=folders[1], **OPTIONS)
    loader = StreamingDataLoader(dataset, batch_size=8)
    for _ in range(2):
        list(loader)
    assert caplog.text.count('Erased samples: 10. ') == 1
    assert loader.stats().bad_samples == 2 * len(ERASED)


def test_a_message_names_the_file(folders: tuple[str, str]) -> None:
    with pytest.raises(ErasedError, match=r"shard 'shard\.\d+\.mds', row \d+, sample id 9"):
        StreamingDataset(local=folders[1], batch_size=1)[9]
    assert len(list(Path(folders[1]).glob('shard*'))) == len(list(Path(folders[0]).glob('shard*')))
