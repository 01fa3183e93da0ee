"""A `skip` of documents takes their tokens, and nothing else, out of the sequences from a resume on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from headrace import StreamingDataset
from headrace.cli import main
from headrace.errors import ConfigError, ResumeError
from headrace.mixing import load_config
from tests.support.packings.packed_streams import FIRST, LENGTHS, SIZE, packed, tokens_of, told, unpadded, write_streams

SKIPPED = {2, 6, FIRST['prose'] + 6}
SKIP = [[f'{number}doc', f'{number + 1}doc'] for number in sorted(SKIPPED)]
ITS_TOKENS = {token for number in SKIPPED for token in tokens_of(number)}


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    return write_streams(tmp_path_factory.mktemp('streams'))


def without(rows: list[list[int]]) -> list[list[int]]:
    return [[token for token in row if token not in ITS_TOKENS] for row in rows]


@pytest.mark.parametrize(
    ('method', 'sequences_per_epoch', 'ranks', 'num_workers'),
    [
        ('best_fit', None, 1, 1),
        ('best_fit', None, 2, 0),
        ('best_fit', 12, 2, 0),
        ('concatenate', None, 4, 0),
        ('concatenate', 12, 1, 0),
    ],
)
def test_documents_leave_the_sequences_after_a_resume(folder, method, sequences_per_epoch, ranks, num_workers):
    options = {'method': method, 'sequences_per_epoch': sequences_per_epoch}
    first = packed(folder, **options)
    whole: list[list[list[int]]] = []
    for _ in range(5 if sequences_per_epoch else 1):
        whole += map(unpadded, itertools.islice(first, 15))
    state = packed(folder, **options)
    for _ in itertools.islice(state, 2):
        pass
    position = state.state_dict()
    each = []
    for rank in range(ranks):
        loader = packed(folder, rank=rank, ranks=ranks, skip=SKIP, num_workers=num_workers, **options)
        loader.load_state_dict(json.loads(json.dumps(position)))
        found: list[list[list[int]]] = []
        while len(found) < 13:
            found += map(unpadded, itertools.islice(loader, 13 - len(found)))
        each.append(found)
    found = [[row for turn in zip(*batches, strict=True) for row in turn] for batches in zip(*each, strict=True)]
    assert found == [without(rows) for rows in whole[2:15]]
    assert found != whole[2:15]
    # The state of a run with `skip` continues exactly, and only with it.
    again = packed(folder, skip=[*SKIP, ['0doc', '1doc']], **options)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ResumeError, match=r"leaves documents out .*\[\['6doc', '7doc'\]\]. Put them into skip"):
        packed(folder, skip=[SKIP[0], SKIP[2]], **options).load_state_dict(loader.state_dict())


def test_explanations_and_counts_leave_them_out(folder):
    loader, whole = packed(folder, skip=SKIP), packed(folder)
    batches = [unpadded(batch) for batch in itertools.islice(loader, 6)]
    for k, rows in enumerate(batches):
        assert told(packed(folder, skip=SKIP).dataset.explain(loader.plan(), k)) == rows
        assert not SKIPPED & set(loader.dataset.explain(loader.plan(), k).ids.tolist())
    kept = sum(len(row) for rows in batches for row in rows)
    assert sum(loader.stats().stream_samples.values()) == kept
    assert sum(len(row) for batch in itertools.islice(whole, 6) for row in unpadded(batch)) > kept


def test_a_whole_sequence_may_go(folder):
    count = sum(map(len, LENGTHS.values()))
    loader = packed(folder, skip=[['0doc', f'{count}doc']])
    batch = next(iter(loader))
    assert not batch['num_tokens'].any()
    assert (batch['labels'] == -100).all()


def test_sequences_and_documents_together(folder):
    loader = packed(folder, skip=[*SKIP, ['1ba', '3ba']])
    whole = [unpadded(batch) for batch in itertools.islice(packed(folder), 8)]
    found = [unpadded(batch) for batch in itertools.islice(loader, 4)]
    assert found == [without(rows) for rows in [whole[0], *whole[3:6]]]


@pytest.mark.parametrize(
    ('skip', 'message'),
    [
        ([['3doc', 8]], 'two bounds of documents or none'),
        ([['3doc', '4ba']], 'two bounds of documents or none'),
        ([['4doc', '4doc']], 'must end after it begins'),
        ([['4doc', '99doc']], r"ids of documents below 20, .* but got \['4doc', '99doc'\]"),
        ([['-4doc', '5doc']], 'or text such as'),
    ],
)
def test_wrong_ranges_are_refused(folder, skip, message):
    with pytest.raises(ConfigError, match=message):
        packed(folder, skip=skip)


def test_data_that_is_not_packed_has_no_documents(folder):
    with pytest.raises(ConfigError, match="counts documents, as '17doc', only with `packing`"):
        StreamingDataset(local=str(folder / 'code'), skip=[['3doc', '4doc']])
    with pytest.raises(ConfigError, match='only with `packing`'):
        load_config({'train': {'local': 'x', 'global_batch_size': 4, 'skip': [['3doc', '4doc']]}})


@pytest.mark.parametrize('value', [5, 'abc', [[1]], [[3, 1]], [[-1, 2]], {'a': 1}])
def test_damaged_states_are_refused(folder, value):
    state = packed(folder, skip=SKIP).state_dict()
    config = json.loads(str(state['config']))
    state['config'] = json.dumps({**config, 'skipped_documents': value})
    with pytest.raises(ResumeError, match='The checkpoint is damaged'):
        packed(folder, skip=SKIP).load_state_dict(state)


def test_the_command_writes_a_skip_of_documents(folder, tmp_path, capsys):
    file = tmp_path / 'packed.yaml'
    packing = {'sequence_length': SIZE, 'window': 3, 'token_dtype': 'int32'}
    streams = {name: {'local': str(folder / name)} for name in LENGTHS}
    train = {'streams': streams, 'shuffle': True, 'shuffle_seed': 5, 'packing': packing, 'skip': [['0doc', '1doc']]}
    file.write_text(json.dumps({'global_batch_size': 4, 'train': train}))
    assert main(['skip', str(file), '--step', '2', '--documents', '--write', str(tmp_path / 'without.yaml')]) == 0
    loader = packed(folder)
    ids = set(loader.dataset.explain(loader.plan(), 2).ids.tolist()) | {0}
    train = load_config(tmp_path / 'without.yaml').train
    assert train is not None
    found = [range(int(str(begin)[:-3]), int(str(end)[:-3])) for begin, end in train.skip]
    assert sorted(number for numbers in found for number in numbers) == sorted(ids)
    assert all(str(bound).endswith('doc') for bounds in train.skip for bound in bounds)
    capsys.readouterr()
    del train
    plain = {'train': {'local': str(folder / 'code'), 'global_batch_size': 4}}
    file.write_text(json.dumps(plain))
    assert main(['skip', str(file), '--step', '0', '--documents']) != 0
    assert 'only with `packing`' in capsys.readouterr().err
