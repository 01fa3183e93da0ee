"""Metrics that leave out what only fills up a batch."""

from __future__ import annotations

import pytest
import torch
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from headrace import PADDING, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError
from headrace.metrics import WithoutPadding


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


def test_rows_of_bad_samples_are_left_out():
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
