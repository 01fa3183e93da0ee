"""The tokens of each stream in packed batches: marks, counts and logs, against the documents themselves."""

from __future__ import annotations

import itertools
import json

import pytest

from headrace import PADDING, STREAM
from headrace.errors import ConfigError
from headrace.metrics import DataMeter
from tests.support.packings.counted_packings import counted, stream_of
from tests.support.packings.packed_streams import LENGTHS, packed

NAMES = list(LENGTHS)


@pytest.mark.parametrize('num_workers', [0, 1])
def test_each_token_has_the_mark_of_its_stream(counted_folder, num_workers):
    loader = packed(
        counted_folder, mark_streams=True, num_workers=num_workers, remainder='exact', sequences_per_epoch=8
    )
    for batch in itertools.islice(loader, 6):
        tokens, marks = batch['input_ids'].flatten().tolist(), batch[STREAM].flatten().tolist()
        assert marks == [stream_of(token) if token else -1 for token in tokens]
        assert batch[STREAM].shape == batch['input_ids'].shape
        assert not batch[PADDING].any()
    with pytest.raises(ConfigError, match='mark_streams=True'):
        _ = loader.own_streams


def test_a_loader_counts_tokens_by_stream(counted_folder):
    loader = packed(counted_folder)
    assert loader.dataset.stream_unit == 'tokens'
    assert [tuple(count) for count in loader.mix().values()] == [(0, 0), (0, 0)]
    batches = list(itertools.islice(loader, 9))
    tokens = dict(zip(NAMES, counted(batches), strict=True))
    stats, mix = loader.stats(), loader.mix()
    assert dict(stats.stream_samples) == tokens
    assert stats.samples == 36  # sequences
    assert {name: count.samples for name, count in mix.items()} == tokens
    assert sum(count.promised for count in mix.values()) == pytest.approx(sum(tokens.values()))
    # Documents are drawn by their number, so a stream's share in tokens goes with the length of its documents.
    taken = loader.dataset.document_counts
    lengths = {name: len(LENGTHS[name]) * taken[name].tokens / taken[name].documents for name in NAMES}
    for name in NAMES:
        share = lengths[name] / sum(lengths.values())
        assert mix[name].promised == pytest.approx(share * sum(tokens.values()))
        assert stats.streams[name].samples == taken[name].documents


@pytest.mark.parametrize('is_summed', [False, True])
def test_logs_count_trained_tokens_of_all_ranks_and_continue_after_a_resume(counted_folder, is_summed):
    loaders = [packed(counted_folder, rank=rank, ranks=2) for rank in range(2)]
    meters = [DataMeter(clock=lambda: 0.0) for _ in loaders]
    each = []
    for loader, meter in zip(loaders, meters, strict=True):
        meter.follow({'': loader})
        batches = []
        for number, batch in enumerate(itertools.islice(loader, 7)):
            batches.append(batch)
            meter.batch_done(int(batch['num_tokens'].sum()), is_step=number != 6)  # the last is not trained yet
        each.append(batches[:6])
    own = [counted(batches) for batches in each]

    sent: list[list[float]] = []
    meters[1].read(ranks=2, replicas=2, sum_over_ranks=lambda numbers: sent.append(list(numbers)) or numbers)
    figures = meters[0].read(
        ranks=2,
        replicas=2,
        sum_over_ranks=(lambda numbers: [a + b for a, b in zip(numbers, sent[0], strict=True)]) if is_summed else None,
    )
    wanted = [a + b for a, b in zip(*own, strict=True)] if is_summed else [2 * count for count in own[0]]
    assert [figures[f'mix/{name}/tokens'] for name in NAMES] == wanted
    assert [figures[f'mix/{name}/share'] for name in NAMES] == [count / sum(wanted) for count in wanted]
    assert sum(figures[f'mix/{name}/promised'] for name in NAMES) == pytest.approx(1)
    assert figures['data/samples'] == 24  # sequences of both ranks
    assert not any('sequences' in name for name in figures)

    state = json.loads(json.dumps(meters[0].state_dict()))
    later, resumed = DataMeter(clock=lambda: 0.0), packed(counted_folder)
    later.follow({'': resumed})
    later.load_state_dict(state)
    resumed.load_state_dict({**loaders[0].state_dict(), 'sample_in_epoch': 24})
    more = []
    for batch in itertools.islice(resumed, 2):
        more.append(batch)
        later.batch_done(int(batch['num_tokens'].sum()))
    figures = later.read()
    wanted = [2 * before + after for before, after in zip(own[0], counted(more), strict=True)]
    assert [figures[f'mix/{name}/tokens'] for name in NAMES] == wanted
    assert figures['data/samples'] == 32
    assert later.texts()['mix'] == '/'.join(f'{count / sum(wanted):.2f}' for count in wanted)


def test_states_of_meters_that_counted_sequences_as_a_stream_load(counted_folder):
    meter = DataMeter(clock=lambda: 0.0)
    meter.follow({'': packed(counted_folder)})
    meter.load_state_dict({'streams': {'sequences': [24, 24.0]}})
    assert meter.read()['data/samples'] == 24
    assert set(meter.counts()) == set(NAMES)
