"""Proportions that count tokens."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from tests.support.packings.packed_orders import sync_lane_states, unpadded

SIZE, LANES = 32, 8
LENGTHS = {'short': 5, 'long': 100, 'middle': 20}
PROPORTIONS = {'short': 0.5, 'long': 0.3, 'middle': 0.2}


@pytest.fixture(scope='module')
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams of documents whose lengths are 1 to 20; tokens are 1000 times the stream's number, from 1, and more."""
    folder = tmp_path_factory.mktemp('streams')
    random = np.random.default_rng(1)
    for number, (name, mean) in enumerate(LENGTHS.items()):
        with MDSWriter(out=str(folder / name), columns={'tokens': 'ndarray:int32'}, size_limit=2000) as writer:
            for document in range(40 + 7 * number):
                length = int(random.integers(mean // 2, mean * 3 // 2 + 1))
                first = 1_000_000 * (number + 1) + 1000 * document
                writer.write({'tokens': np.arange(first, first + length, dtype=np.int32)})
    return folder


def make(folder: Path, *, rank: int = 0, ranks: int = 1, nodes: int = 1, batch: int = LANES, **options: Any) -> Any:
    packing = {'sequence_length': SIZE, 'window': 3, 'lanes': LANES, 'weights_count': 'tokens'}
    packing |= {key: options.pop(key) for key in list(options) if key in Packing.__dataclass_fields__}
    of_loader = {key: options.pop(key) for key in list(options) if key in ('num_workers', 'mark_streams')}
    weights = options.pop('weights', {name: {'proportion': value} for name, value in PROPORTIONS.items()})
    dataset = PackedDataset(
        streams=[Stream(local=str(folder / name), name=name, **weight) for name, weight in weights.items()],
        packing=Packing(**packing),
        topology=Topology(rank=rank, world_size=ranks, num_nodes=nodes),
        **{'shuffle': True, 'shuffle_seed': 3, **options},
    )
    return StreamingDataLoader(dataset, batch_size=batch // ranks, **of_loader)


def train(
    folder: Path, steps: int, state: Any = None, ranks: int = 1, sync: bool = False, **options: Any
) -> tuple[list[Any], list[Any]]:
    """The sequences of some steps in their order in the run, and the states of all ranks after them."""
    loaders = [make(folder, rank=rank, ranks=ranks, **options) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    each = [itertools.chain.from_iterable(itertools.repeat(loader)) for loader in loaders]  # epoch after epoch
    batches = [[unpadded(next(found)) for found in each] for _ in range(steps)]
    if sync:
        sync_lane_states(loaders)
    rows = [row for batch in batches for turn in zip(*batch, strict=True) for row in turn]
    return rows, [loader.state_dict() for loader in loaders]


def streams_of(rows: list[list[int]]) -> list[int]:
    """The stream of each sequence, which has no other."""
    found = [{token // 1_000_000 - 1 for token in row} for row in rows]
    assert all(len(of_row) == 1 for of_row in found)
    return [of_row.pop() for of_row in found]


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
@pytest.mark.parametrize('shuffle', [True, False])
def test_shares_of_tokens_are_the_proportions_in_every_window_of_batches(streams, method, shuffle):
    rows, _ = train(streams, 200, method=method, shuffle=shuffle)
    of_batches = np.array([np.bincount(of, minlength=3) for of in np.split(np.array(streams_of(rows)), 200)])
    promised = LANES * np.array(list(PROPORTIONS.values()))
    for length in (1, 2, 7, 30, 200):
        sums = np.array([of_batches[first : first + length].sum(0) for first in range(201 - length)])
        assert abs(sums - promised * length).max() < (1 if length == 1 else 9)  # sequences, however many batches
    tokens = np.zeros(3)
    for stream, row in zip(streams_of(rows), rows, strict=True):
        tokens[stream] += len(row)
    tolerance = 0.005 if method == 'concatenate' else 0.05  # padding of 32 tokens
    np.testing.assert_allclose(tokens / tokens.sum(), list(PROPORTIONS.values()), atol=tolerance)
    if method == 'concatenate':
        assert all(len(row) == SIZE for row in rows)


def test_each_stream_has_all_its_tokens_once_in_a_pass(streams):
    rows, _ = train(streams, 120, method='concatenate')
    for number, name in enumerate(LENGTHS):
        tokens = [token for row in rows for token in row if token // 1_000_000 == number + 1]
        folder = StreamingDataset(local=str(streams / name), batch_size=1)
        counts = np.unique(tokens, return_counts=True)[1]
        assert len(counts) == sum(len(sample['tokens']) for sample in folder)
        assert counts.max() - counts.min() <= 4  # lanes are not equally far in some 90 passes


def test_batches_are_the_same_on_any_ranks_and_workers(streams):
    rows, _ = train(streams, 12)
    for ranks, nodes in ((2, 1), (4, 1), (4, 2)):
        loaders = [make(streams, rank=rank, ranks=ranks, nodes=nodes) for rank in range(ranks)]
        each = [list(itertools.islice(loader, 12)) for loader in loaders]
        order = sorted(range(ranks), key=lambda rank: (rank // (ranks // nodes)) + nodes * (rank % (ranks // nodes)))
        found = [
            row
            for batch in range(12)
            for turn in zip(*(unpadded(each[rank][batch]) for rank in order), strict=True)
            for row in turn
        ]
        assert found == rows
    assert train(streams, 12, num_workers=2)[0] == rows


def test_a_run_resumes_from_every_step_on_other_ranks(streams):
    options = {'sequences_per_epoch': 6 * LANES}
    rows, _ = train(streams, 12, **options)
    for step in range(1, 12):
        before, after, batch = [(1, 4, LANES), (2, 1, LANES), (4, 8, LANES), (8, 2, LANES // 2)][step % 4]
        first, states = train(streams, step, ranks=before, sync=step % 3 != 0, **options)
        steps = (12 - step) * LANES // batch
        again, _ = train(streams, steps, json.loads(json.dumps(states[-1])), ranks=after, batch=batch, **options)
        assert first + again == rows


def test_a_resumed_run_reads_only_the_documents_that_it_needs(streams):
    loader = make(streams)
    for _ in itertools.islice(loader, 100):
        pass
    resumed = make(streams)
    resumed.load_state_dict(loader.state_dict())
    next(iter(resumed))
    for name, count in loader.dataset.document_counts.items():
        assert resumed.dataset.document_counts[name].documents < count.documents / 2


def test_a_schedule_counts_sequences(streams):
    schedule = [
        {'at': 0, 'proportions': {'short': 3, 'long': 1}},
        {'at': 20 * LANES, 'proportions': {'short': 1, 'middle': 1}},
        {'at': 40 * LANES, 'proportions': {'long': 1}, 'change': 'linear'},
    ]
    options = {'schedule': schedule, 'weights': {name: {} for name in LENGTHS}, 'method': 'concatenate'}
    rows, _ = train(streams, 50, **options)
    shares = np.array([np.bincount(part, minlength=3) for part in np.split(np.array(streams_of(rows)), 5)]) / (
        10 * LANES
    )
    expected = [[0.75, 0.25, 0], [0.75, 0.25, 0], [0.375, 0.25, 0.375], [0.125, 0.75, 0.125], [0, 1, 0]]
    np.testing.assert_allclose(shares, expected, atol=0.03)
    for step in (7, 19, 21, 33, 45):
        first, states = train(streams, step, ranks=2, **options)
        again, _ = train(streams, 50 - step, states[step % 2], ranks=4, **options)
        assert first + again == rows


def test_the_loader_promises_the_proportions(streams):
    loader = make(streams, method='concatenate', num_workers=2)
    for _ in itertools.islice(loader, 50):
        pass
    shares = loader.dataset.promised_token_shares()
    np.testing.assert_allclose(shares, list(PROPORTIONS.values()), atol=1e-5)


def test_explanations_name_the_documents_of_any_batch(streams):
    rows, states = train(streams, 9)
    fresh = make(streams)
    plan = fresh.dataset.plan(global_batch_size=LANES)
    for number in (8, 2, 5):
        assert told(fresh.dataset.explain(plan, number)) == rows[number * LANES : (number + 1) * LANES]
    continued = make(streams)
    continued.load_state_dict(states[0])
    explanation = continued.dataset.explain(plan, 3)
    assert told(explanation) == rows[3 * LANES : 4 * LANES]
    assert sum(explanation.stream_counts().values()) == sum(map(len, rows[3 * LANES : 4 * LANES]))


def told(explanation: Any) -> list[list[int]]:
    """The tokens of each sequence, as an explanation says them."""
    found: dict[int, list[int]] = {position: [] for position in explanation.sequences.positions.tolist()}
    first = np.cumsum([0, *(40 + 7 * number for number in range(3))])
    columns = (getattr(explanation, name).tolist() for name in ('positions', 'ids', 'streams', 'begins', 'ends'))
    for position, sample_id, stream, begin, end in zip(*columns, strict=True):
        token = 1_000_000 * (stream + 1) + 1000 * int(sample_id - first[stream])
        found[position] += range(token + begin, token + end)
    return list(found.values())


def test_skipped_sequences_and_documents_leave_the_others(streams):
    rows, _ = train(streams, 8)
    skipped, _ = train(streams, 6, skip=[(2 * LANES, 4 * LANES)])
    assert skipped == rows[: 2 * LANES] + rows[4 * LANES :]
    without, _ = train(streams, 8, skip=[('0doc', '40doc')])
    assert without == [row if stream else [] for row, stream in zip(rows, streams_of(rows), strict=True)]


def test_a_run_reads_streams_from_remotes(streams, tmp_path):
    weights = {name: {'proportion': value} for name, value in PROPORTIONS.items()}
    dataset = PackedDataset(
        streams=[
            Stream(remote=str(streams / name), local=str(tmp_path / name), name=name, **weight)
            for name, weight in weights.items()
        ],
        packing=Packing(sequence_length=SIZE, window=3, lanes=LANES, weights_count='tokens'),
        shuffle=True,
        shuffle_seed=3,
        predownload=16,
    )
    loader = StreamingDataLoader(dataset, batch_size=LANES, num_workers=2)
    found = [row for batch in itertools.islice(loader, 12) for row in unpadded(batch)]
    assert found == train(streams, 12)[0]


@pytest.mark.parametrize('counts', ['documents', 'tokens'])
def test_another_count_of_weights_is_no_continuation(streams, counts):
    other = {'documents': 'tokens', 'tokens': 'documents'}[counts]
    state = train(streams, 2, weights_count=counts)[1][0]
    assert ('weights_count' in json.loads(state['config'])['packing']) == (counts == 'tokens')
    with pytest.raises(ResumeError, match=f"weights_count: '{counts}' in the checkpoint, '{other}' now"):
        make(streams, weights_count=other).load_state_dict(state)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'weights': {'short': {'repeat': 1}, 'long': {}}}, "needs a `proportion` of each stream.*'short' has none"),
        ({'weights': {'short': {}, 'long': {}}}, "needs a `proportion` of each stream.*'short' has none"),
        ({'epoch_size': 50}, '`epoch_size` must be left out with .*, but is 50: it counts documents'),
        ({'when_exhausted': 'stop'}, "`when_exhausted` must be left out with .*, but is 'stop'"),
        ({'sampling_method': 'fixed'}, "`sampling_method` must be left out with .*, but is 'fixed'"),
        ({'on_mixture_change': 'continue'}, "`on_mixture_change` must be left out with .*, but is 'continue'"),
        ({'sequences_per_epoch': 'all', 'lanes': None}, "`weights_count` must be 'documents' if `sequences_per_epoch`"),
        ({'weights_count': 'bytes'}, '`weights_count` must be one of documents, tokens'),
        ({'lanes': 41, 'batch': 41}, "there are 41 lanes and 40 samples of stream 'short'"),
    ],
)
def test_options_that_count_documents_are_refused(streams, options, message):
    with pytest.raises(ConfigError, match=message):
        next(iter(make(streams, **options)))


def test_a_yaml_says_what_weights_count(streams, tmp_path):
    (tmp_path / 'run.yaml').write_text(f"""
        global_batch_size: {LANES}
        train:
          streams:
            short: {{local: {streams}/short, proportion: 0.5}}
            long: {{local: {streams}/long, proportion: 0.3}}
            middle: {{local: {streams}/middle, proportion: 0.2}}
          shuffle: true
          shuffle_seed: 3
          packing: {{sequence_length: {SIZE}, window: 3, weights_count: tokens}}
        """)
    loader = build_loader(load_config(tmp_path / 'run.yaml').train)
    found = [row for batch in itertools.islice(loader, 4) for row in unpadded(batch)]
    assert found == train(streams, 4)[0]
