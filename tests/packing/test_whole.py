"""Evaluation packs its documents once and whole, whatever the number of sequences that they make."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import PADDING, MDSWriter
from headrace.errors import ConfigError, EmptyDatasetError, ResumeError
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from headrace.packing.whole import WholePass
from tests.support.packings.packed_streams import LENGTHS, SIZE, packed, tokens_of, told, unpadded, write_streams

EVERY_TOKEN = Counter(token for number in range(sum(map(len, LENGTHS.values()))) for token in tokens_of(number))


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    return write_streams(tmp_path_factory.mktemp('streams'))


def whole(folder: Path, **options: Any):
    return packed(
        folder, **{'lanes': None, 'sequences_per_epoch': 'all', 'fixed_epoch': 0, 'remainder': 'exact', **options}
    )


@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any),
    window=st.integers(1, 5),
    method=st.sampled_from(['best_fit', 'concatenate']),
)
def test_every_token_is_in_one_sequence(lengths, window, method):
    packing = Packing(sequence_length=SIZE, window=window, method=method)
    found = WholePass(packing, np.array(lengths, np.int32))
    rows = [found.pieces(number).tolist() for number in range(len(found))]
    tokens = [(document, token) for row in rows for document, begin, end in row for token in range(begin, end)]
    assert sorted(tokens) == [(number, token) for number, length in enumerate(lengths) for token in range(length)]
    used = [sum(end - begin for _, begin, end in row) for row in rows]
    assert all(0 < count <= SIZE for count in used)
    if method == 'concatenate':
        assert len(rows) == -(-sum(lengths) // SIZE)
    else:
        assert all(end - begin == min(SIZE, lengths[d] - begin) for row in rows for d, begin, end in row)


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
@pytest.mark.parametrize(('ranks', 'batch', 'num_workers'), [(1, 4, 0), (3, 6, 0), (5, 5, 0), (1, 4, 2)])
def test_every_rank_has_its_part_of_each_token_once(folder, method, ranks, batch, num_workers):
    loaders = [
        whole(folder, method=method, rank=rank, ranks=ranks, batch=batch, num_workers=num_workers)
        for rank in range(ranks)
    ]
    each = [list(loader) for loader in loaders]
    assert {len(batches) for batches in each} == {len(loaders[0])}
    tokens: Counter[int] = Counter()
    for batches in each:
        for one in batches:
            for row, is_padding in zip(unpadded(one), one[PADDING].tolist(), strict=True):
                assert bool(row) != is_padding
                tokens.update(row)
    assert tokens == EVERY_TOKEN
    size = loaders[0].dataset.epoch_size
    assert sum(int((~one[PADDING]).sum()) for batches in each for one in batches) == size
    # Each pass is the same.
    assert [unpadded(one) for one in loaders[0]] == [unpadded(one) for one in each[0]]
    for k in range(len(loaders[0])):
        rows = [row for batches in each for row in unpadded(batches[k]) if row]
        assert [row for row in told(loaders[0].dataset.explain(loaders[0].plan(), k)) if row] == rows


def test_a_pass_continues_in_the_middle_on_other_ranks(folder):
    options = {'fixed_epoch': None, 'remainder': 'repeat'}
    rows = [unpadded(batch) for batch in whole(folder, **options)]
    first = whole(folder, **options)
    assert [unpadded(batch) for batch in itertools.islice(first, 2)] == rows[:2]
    state = json.loads(json.dumps(first.state_dict()))
    later = [whole(folder, rank=rank, ranks=2, **options) for rank in range(2)]
    for loader in later:
        loader.load_state_dict(state)
    found = [
        [row for turn in zip(*map(unpadded, batches), strict=True) for row in turn]
        for batches in zip(*later, strict=True)
    ]
    assert found[:-1] == rows[2:-1]
    assert [row for row in found[-1] if row] == [row for row in rows[-1] if row]
    with pytest.raises(ResumeError, match='only with the packing that it began with'):
        packed(folder, lanes=1, sequences_per_epoch=first.dataset.epoch_size).load_state_dict(state)


def test_documents_may_be_skipped(folder):
    tokens: Counter[int] = Counter()
    loader = whole(folder, skip=[['2doc', '3doc']])
    for batch in loader:
        for row in unpadded(batch):
            tokens.update(row)
    gone = Counter(tokens_of(2))
    assert tokens == EVERY_TOKEN - gone
    assert sum(loader.stats().stream_samples.values()) == sum(tokens.values())
    assert len(loader) == len(whole(folder))


def test_a_dataset_is_made_before_its_ranks_are_known(folder):
    packing = Packing(column='tokens', sequence_length=SIZE, sequences_per_epoch='all', token_dtype='int32')
    name = next(iter(LENGTHS))
    dataset = PackedDataset(local=str(folder / name), batch_size=2, replication=2, packing=packing)
    assert dataset.num_samples == len(LENGTHS[name])


def test_a_configuration_needs_no_number(folder):
    packing = {'sequence_length': SIZE, 'token_dtype': 'int32', 'sequences_per_epoch': 'all'}
    streams = {name: {'local': str(folder / name)} for name in LENGTHS}
    config = load_config({'global_batch_size': 4, 'eval': {'books': {'streams': streams, 'packing': packing}}})
    tokens: Counter[int] = Counter()
    for batch in build_loader(config.eval[0]):
        for row in unpadded(batch):
            tokens.update(row)
    assert tokens == EVERY_TOKEN


@pytest.mark.parametrize(
    ('packing', 'message'),
    [
        ({'sequences_per_epoch': 'every'}, 'or `all`'),
        ({'sequences_per_epoch': 0}, 'at least 1'),
        ({'sequences_per_epoch': float('inf')}, 'at least 1'),
        ({'sequences_per_epoch': True}, 'at least 1'),
        ({'sequences_per_epoch': 'all', 'lanes': 4}, 'left out if `sequences_per_epoch` is `all`'),
    ],
)
def test_wrong_configurations_are_refused(packing, message):
    train = {'local': 'x', 'packing': {'sequence_length': 8, **packing}}
    with pytest.raises(ConfigError, match=message):
        load_config({'global_batch_size': 4, 'train': train})


def test_wrong_packings_are_refused(folder):
    with pytest.raises(ConfigError, match=r"must be a number or `all` \(got 'every'\)"):
        Packing(sequence_length=8, sequences_per_epoch='every')  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='`lanes` must be left out if `sequences_per_epoch` is `all`'):
        Packing(sequence_length=8, sequences_per_epoch='all', lanes=2)
    calls = itertools.count(1)
    unstable = whole(folder, tokenizer=lambda values: [[1] * next(calls) for _ in values], column='tokens')
    with pytest.raises(ConfigError, match='must give the same tokens each time, but document'):
        list(unstable)


def test_data_without_tokens_is_refused(tmp_path):
    for name in LENGTHS:
        with MDSWriter(out=str(tmp_path / name), columns={'tokens': 'bytes'}) as writer:
            writer.write({'tokens': b''})
    with pytest.raises(EmptyDatasetError, match='none of 2 has any'):
        whole(tmp_path)
