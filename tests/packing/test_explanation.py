"""The documents that `explain` names for a step are those whose tokens its batch holds."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from headrace.cli import main
from headrace.errors import TopologyError
from tests.support.packings.packed_streams import FIRST, LENGTHS, SIZE, packed, told, unpadded


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
@pytest.mark.parametrize('ranks', [1, 2, 4])
def test_the_named_documents_hold_the_tokens_of_every_rank(explained_folder, method, ranks):
    loaders = [packed(explained_folder, rank=rank, ranks=ranks, method=method) for rank in range(ranks)]
    each = [list(itertools.islice(loader, 12)) for loader in loaders]
    asked = packed(explained_folder, ranks=ranks, method=method)  # knows no sequence
    plan, dataset = loaders[0].plan(), loaders[0].dataset
    for k in (0, 5, 11):  # the last one is in the third pass over the documents
        explanation = asked.dataset.explain(asked.plan(), k)
        rows = [row for batches in each for row in unpadded(batches[k])]
        assert told(explanation) == rows
        for rank in range(ranks):
            assert told(explanation.of_rank(rank)) == unpadded(each[rank][k])
        # Rank 0 knows what it delivered, and reads what it did not.
        assert told(dataset.explain(plan, k)) == rows
        own = dataset.explain(plan, k, reads_data=False)
        assert told(own.of_rank(0)) == unpadded(each[0][k])
        assert own.is_known.tolist() == (own.sequences.ranks == 0).tolist()
        assert all(row['documents'] is None for row in own.to_json()['rows'] if row['rank'])
    with pytest.raises(TopologyError):
        explanation.of_rank(ranks)
    with pytest.raises(IndexError):
        dataset.explain(plan, -1)


def test_a_document_is_named_by_its_place(explained_folder):
    loader = packed(explained_folder)
    dataset = loader.dataset
    passes = [loader.dataset.explain(loader.plan(), k) for k in range(12)]
    columns = {name: [] for name in passes[0].columns()}
    for explanation in passes:
        for name, values in explanation.columns().items():
            columns[name] += values
    for number, sample_id in enumerate(columns['id']):
        stream = 'prose' if sample_id >= FIRST['prose'] else 'code'
        assert columns['stream'][number] == stream
        shards, rows = dataset.locate(np.array([sample_id]))
        assert dataset.place(int(shards[0])) == (stream, columns['shard'][number], columns['file'][number])
        assert columns['shard_row'][number] == rows[0]
    # Each pass has every token once, whichever sequence holds it.
    seen = [
        (sample_id, token)
        for sample_id, begin, end, which in zip(*(columns[n] for n in ('id', 'begin', 'end', 'pass')), strict=True)
        if which == 0
        for token in range(begin, end)
    ]
    lengths = [*LENGTHS['code'], *LENGTHS['prose']]
    assert sorted(seen) == [(number, token) for number, length in enumerate(lengths) for token in range(length)]


def test_a_resumed_run_names_the_same_documents_on_other_ranks(explained_folder):
    loader, first = packed(explained_folder), packed(explained_folder)
    batches = [sorted(unpadded(batch)) for batch in itertools.islice(loader, 8)]
    for _ in itertools.islice(first, 5):
        pass
    later = packed(explained_folder, ranks=2)
    later.load_state_dict(first.state_dict())
    plan = later.plan(*later.next_pass())
    assert [sorted(told(later.dataset.explain(plan, k))) for k in range(3)] == batches[5:]
    # A batch before the checkpoint is packed again from the beginning.
    assert sorted(told(later.dataset.explain(later.plan(0, 0), 1))) == batches[1]


def test_explaining_leaves_the_run_alone(explained_folder):
    quiet = [unpadded(batch) for batch in itertools.islice(packed(explained_folder), 8)]
    loader = packed(explained_folder)
    asked: list[Any] = []
    found = []
    for k, batch in enumerate(itertools.islice(loader, 8)):
        found.append(unpadded(batch))
        asked.append(told(loader.dataset.explain(loader.plan(), (k * 5) % 11)))
    assert found == quiet
    assert asked[1] == quiet[5]
    undisturbed = packed(explained_folder)
    for _ in itertools.islice(undisturbed, 8):
        pass
    assert loader.state_dict() == undisturbed.state_dict()
    assert loader.dataset.document_counts == undisturbed.dataset.document_counts


def test_the_command_names_documents(explained_folder, tmp_path, capsys):
    file = tmp_path / 'packed.yaml'
    streams = {name: {'local': str(explained_folder / name)} for name in LENGTHS}
    packing = {'sequence_length': SIZE, 'window': 3, 'token_dtype': 'int32'}
    train = {'streams': streams, 'shuffle': True, 'shuffle_seed': 5, 'packing': packing}
    file.write_text(json.dumps({'global_batch_size': 4, 'train': train}))
    batch = list(itertools.islice(packed(explained_folder), 3))[2]
    assert main(['explain', str(file), '--batch', '2', '--ranks', '2', '--json']) == 0
    rows = json.loads(capsys.readouterr().out)['rows']
    rows.sort(key=lambda row: row['position'])
    assert [sum(d['end'] - d['begin'] for d in row['documents']) for row in rows] == batch['num_tokens'].tolist()
    assert [[d['offset'] for d in row['documents']] for row in rows] == [
        bounds[: len(row['documents'])] for row, bounds in zip(rows, batch['cu_seqlens'].tolist(), strict=True)
    ]
    assert [[d['id'] * 1000 + 1 + d['begin'] for d in row['documents']] for row in rows] == [
        [ids[at] for at in bounds[: len(row['documents'])]]
        for row, ids, bounds in zip(rows, batch['input_ids'].tolist(), batch['cu_seqlens'].tolist(), strict=True)
    ]
    assert main(['explain', str(file), '--batch', '2']) == 0
    printed = capsys.readouterr().out
    tokens = dict.fromkeys(LENGTHS, 0)
    for document in (document for row in rows for document in row['documents']):
        tokens[document['stream']] += document['end'] - document['begin']
    total = sum(tokens.values())
    shares = ', '.join(f'{name} {count} ({count / total:.3f})' for name, count in tokens.items())
    assert f'Streams, in tokens: {shares}\n' in printed
    assert main(['skip', str(file), '--step', '2']) == 0
    printed = capsys.readouterr().out
    assert 'sequences 8 to 12 of the run' in printed
    for name in LENGTHS:
        ids = sorted({d['id'] for row in rows for d in row['documents'] if d['stream'] == name})
        documents = f'{tokens[name]} tokens of {len(ids)} document{"s" * (len(ids) != 1)}: {", ".join(map(str, ids))}'
        assert f'#   {name} {documents}\n' in printed
