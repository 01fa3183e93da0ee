"""Metrics by stream, and metrics without padding."""

from __future__ import annotations

import json
import math
import warnings

import pytest
import torch
from torchmetrics import CatMetric, MeanMetric, SumMetric
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

from headrace import PADDING, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError
from headrace.metrics import PerStream, PerStreamMean, WithoutPadding
from tests.support.trainers.ranks import run_ranks

NAMES = ['code', 'prose', 'maths']


def batches(count: int = 5, rows: int = 16, streams: int = 2):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield (
            torch.rand(rows, generator=generator),
            torch.randint(0, streams, (rows,), generator=generator),
            torch.arange(rows) >= rows - 1,
        )


def expected(seen, stream: int, *, is_padded: bool) -> float:
    values = [
        float(value)
        for row_values, streams, padding in seen
        for value, number, is_padding in zip(row_values, streams, padding, strict=True)
        if number == stream and not (is_padded and is_padding)
    ]
    return sum(values) / len(values) if values else math.nan


@pytest.mark.parametrize('is_padded', [False, True])
@pytest.mark.parametrize('kind', ['mean', 'wrapped'])
def test_each_stream_has_the_mean_of_its_rows(kind, is_padded):
    metric = PerStreamMean(NAMES, prefix='loss/') if kind == 'mean' else PerStream(MeanMetric(), NAMES, prefix='loss/')
    for _ in range(2):
        seen = list(batches())
        for values, streams, padding in seen:
            metric.update(values, streams=streams, **({'is_padding': padding} if is_padded else {}))
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            result = metric.compute()
        assert list(result) == ['loss/code', 'loss/prose', 'loss/maths']
        for number, name in enumerate(NAMES):
            assert float(result[f'loss/{name}']) == pytest.approx(
                expected(seen, number, is_padded=is_padded), nan_ok=True
            )
        metric.reset()


def test_there_may_be_one_stream():
    metric = PerStream(MeanMetric(), ['all'])
    metric.update(torch.tensor([1.0, 3.0]), streams=torch.zeros(2, dtype=torch.int64))
    assert metric.compute() == {'all': 2}


def test_padding_that_is_no_number_does_not_spoil_the_mean():
    metric = PerStreamMean(['a'])
    metric.update(torch.tensor([1.0, math.nan]), torch.zeros(2, dtype=torch.int64), torch.tensor([False, True]))
    assert metric.compute() == {'a': 1}


def test_values_hold_no_graph():
    metric = PerStreamMean(['a'])
    metric.update(torch.ones(2, requires_grad=True) * 2, torch.zeros(2, dtype=torch.int64))
    assert not metric.compute()['a'].requires_grad


def test_any_metric_with_rows_can_be_had_by_stream():
    metric = PerStream(BinaryAccuracy(), ['a', 'b'])
    scores, labels = torch.tensor([0.9, 0.1, 0.9, 0.1]), torch.tensor([1, 1, 1, 0])
    metric.update(scores, labels, streams=torch.tensor([0, 0, 1, 1]))
    assert metric.compute() == {'a': 0.5, 'b': 1}
    value = metric(scores, labels, streams=torch.tensor([1, 1, 1, 1]))
    assert value == {'b': 0.75}
    assert metric.compute()['b'] == pytest.approx(5 / 6)


def test_rows_of_lists_and_arrays_are_chosen_too():
    class Texts(CatMetric):
        def update(self, texts, weights):
            super().update(torch.tensor([len(text) * weight for text, weight in zip(texts, weights, strict=True)]))

    metric = PerStream(Texts(), ['a', 'b'])
    metric.update(['x', 'yy', 'zzz'], weights=torch.tensor([1.0, 10, 100]).numpy(), streams=torch.tensor([1, 0, 1]))
    assert metric.compute()['b'].tolist() == [1, 300]


def test_millions_of_rows_lose_nothing():
    mean = PerStreamMean(['code'])
    values, streams = torch.full((1 << 12,), 0.4), torch.zeros(1 << 12, dtype=torch.int64)
    for _ in range(3000):
        mean.update(values, streams)
    assert mean.compute()['code'].item() == pytest.approx(0.4, rel=1e-4)


def test_wrong_use_is_refused():
    streams = torch.tensor([0, 1])
    with pytest.raises(ConfigError, match="reduction='none'"):
        PerStream(MeanMetric(), NAMES).update(torch.tensor(1.0), streams=streams)
    with pytest.raises(ConfigError, match="reduction='none'"):
        PerStreamMean(NAMES).update(torch.tensor(1.0), streams)
    with pytest.raises(ConfigError, match="reduction='none'"):
        PerStreamMean(NAMES).update(torch.ones(2, 3), streams)
    with pytest.raises(ConfigError, match=r'rows of streams \[5\]'):
        PerStream(MeanMetric(), NAMES).update(torch.ones(2), streams=torch.tensor([0, 5]))
    for names in ([], ['a', 'a'], 'code'):
        with pytest.raises(ConfigError, match='different names'):
            PerStreamMean(names)


RANK_PROGRAM = """
import json, os, sys, torch
from pathlib import Path
from tests.support.programs.processes import end_rank
from torchmetrics import CatMetric, MeanMetric
from headrace.metrics import PerStream, PerStreamMean
rank = int(os.environ['RANK'])
torch.distributed.init_process_group('gloo')
names = ['code', 'prose', 'maths']
# Rank 0 has rows of stream 0 only, rank 1 of stream 1 only; stream 2 has none.
metrics = [PerStreamMean(names), PerStream(CatMetric(), names)]
for metric in metrics:
    metric.update(torch.tensor([1.0, 2.0]) + 10 * rank, streams=torch.full((2,), rank))
metrics[0].compute(), metrics[1].compute()
# Since then, streams have rows on one rank only.
running = PerStream(MeanMetric(), names)
running.update(torch.tensor([1.0, 2.0]), streams=torch.tensor([0, 1]))
running.compute()
running.update(torch.tensor([3.0 + rank]), streams=torch.tensor([rank]))
then = {name: value.item() for name, value in running.compute().items()}
assert abs(then['code'] - 5 / 3) + abs(then['prose'] - 8 / 3) < 1e-5, then
found = [{name: value.flatten().tolist() for name, value in metric.compute().items()} for metric in metrics]
Path(f'{rank}.json').write_text(json.dumps(found))
end_rank()
"""


@pytest.mark.lightning  # its server of ranks has imported torchmetrics, which takes longer than this test
def test_ranks_agree_also_where_one_has_no_row_of_a_stream(tmp_path):
    program = tmp_path / 'program.py'
    program.write_text(RANK_PROGRAM)
    run_ranks('lightning', 2, program, folder=tmp_path)
    for rank in range(2):
        mean, wrapped = json.loads((tmp_path / f'{rank}.json').read_text())
        assert (mean['code'], mean['prose']) == ([1.5], [11.5])
        assert (wrapped['code'], wrapped['prose']) == ([1, 2], [11, 12])
        assert math.isnan(mean['maths'][0])
        assert math.isnan(wrapped['maths'][0])


def test_rows_of_bad_samples_are_left_out():
    values, streams = torch.tensor([1.0, 3.0, 5.0, 7.0]), torch.tensor([0, 0, 1, 1])
    padding, bad = torch.tensor([False, False, False, True]), torch.tensor([True, False, False, False])
    marks = {'is_padding': padding, 'is_bad_sample': bad}
    mean, each = PerStreamMean(NAMES), PerStream(MeanMetric(), NAMES)
    mean.update(values, streams, **marks)
    each.update(values, streams=streams, **marks)
    assert each(values, streams=streams, **marks) == {'code': 3, 'prose': 5}
    for metric in (mean, each):
        assert [float(value) for value in metric.compute().values()][:2] == [3, 5]


def test_packed_data_has_a_value_for_each_token():
    draw = torch.Generator().manual_seed(4)
    streams = torch.randint(-1, 2, (5, 6), generator=draw)  # -1 is padding
    loss = torch.randint(0, 9, (5, 6), generator=draw).float()
    mean, total = PerStreamMean(['code', 'prose']), PerStream(SumMetric(), ['code', 'prose'])
    is_padding = torch.tensor([False] * 4 + [True])
    mean.update(loss, streams, is_padding)
    total.update(loss, streams=streams, is_padding=is_padding)
    by_stream = [loss[:4][streams[:4] == number] for number in range(2)]
    assert [value.item() for value in mean.compute().values()] == [values.mean().item() for values in by_stream]
    assert [value.item() for value in total.compute().values()] == [values.sum().item() for values in by_stream]


def test_every_sample_counts_once_on_ranks_of_any_number(make_dataset):
    folder = make_dataset('data', 13)
    metric = WithoutPadding(MeanMetric())
    for rank in range(4):
        data = StreamingDataset(local=str(folder), batch_size=2, remainder='exact')
        for batch in StreamingDataLoader(data, topology=Topology(rank=rank, world_size=4)):
            metric.update(batch['id'].float(), is_padding=batch[PADDING])
    assert metric.compute() == sum(range(13)) / 13
    assert metric.metric.weight == 13


def test_a_batch_of_nothing_but_padding_changes_nothing():
    metric = WithoutPadding(MeanMetric())
    metric.update(torch.tensor([1.0]), is_padding=torch.tensor([False]))
    metric.update(torch.tensor([5.0]), is_padding=torch.tensor([True]))
    assert metric(torch.tensor([7.0]), is_padding=torch.tensor([True])) is None
    assert metric.compute() == 1
    metric.reset()
    assert metric(torch.tensor([3.0, 9.0]), is_padding=torch.tensor([False, True])) == 3


def test_scores_keep_their_classes():
    metric = WithoutPadding(MulticlassAccuracy(num_classes=3, average='micro'))
    scores = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    metric.update(scores, torch.tensor([0, 2, 0]), is_padding=torch.tensor([False, False, True]))
    assert metric.compute() == 0.5


def test_rows_of_bad_samples_are_padding_too():
    metric = WithoutPadding(MeanMetric())
    padding, bad = torch.tensor([False, False, True]), torch.tensor([True, False, False])
    metric.update(torch.tensor([5.0, 1.0, 9.0]), is_padding=padding, is_bad_sample=bad)
    metric.update(torch.tensor([5.0, 3.0, 3.0]), is_bad_sample=bad)
    assert metric(torch.tensor([7.0]), is_bad_sample=torch.tensor([True])) is None
    assert (metric.compute(), metric.metric.weight) == (7 / 3, 3)
    with pytest.raises(ConfigError, match='leaves out rows by their mark, but got none'):
        metric.update(torch.tensor([1.0]))


def test_a_value_for_the_whole_batch_is_refused():
    with pytest.raises(ConfigError, match="reduction='none'"):
        WithoutPadding(MeanMetric()).update(torch.tensor(1.0), is_padding=torch.tensor([False, True]))
