"""Shares by losses: the rule, and a loop that follows it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import STREAM, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError
from headrace.metrics import PerStreamMean, proportions_by_loss
from headrace.metrics.online_mixture import MixtureObserver
from tests.support.orders.order_cases import relaxed

BEFORE = {'a': 0.2, 'b': 0.3, 'c': 0.5}


def test_memory_is_between_a_softmax_and_exponentiated_gradient() -> None:
    losses = {'a': 1.0, 'b': 2.0, 'c': 3.0}
    grown = {name: share * math.exp(0.5 * losses[name]) for name, share in BEFORE.items()}
    assert proportions_by_loss(BEFORE, losses, rate=0.5) == pytest.approx(
        {name: share / sum(grown.values()) for name, share in grown.items()}
    )
    powers = {name: math.exp(loss / 2) for name, loss in losses.items()}
    assert proportions_by_loss(BEFORE, losses, rate=0.5, memory=0) == pytest.approx(
        {name: power / sum(powers.values()) for name, power in powers.items()}
    )
    assert proportions_by_loss(BEFORE, dict.fromkeys(BEFORE, 7.0)) == pytest.approx(BEFORE)


def test_references_are_subtracted_and_a_stream_below_its_own_is_at_it() -> None:
    references = {'a': 2.0, 'b': 2.0, 'c': 3.0}
    found = proportions_by_loss(BEFORE, {'a': 1.0, 'b': 2.0, 'c': 4.0}, references=references)
    assert found['a'] / found['b'] == pytest.approx(2 / 3)
    assert found['c'] / found['b'] == pytest.approx(math.e * 5 / 3)


amounts = st.floats(0, 50)


@relaxed
@given(
    st.dictionaries(st.sampled_from('abcdef'), st.sampled_from([0, 1e-9, 0.3, 2.0]), min_size=1).filter(
        lambda before: any(before.values())
    ),
    st.dictionaries(st.sampled_from('abcdef'), amounts | st.just(math.nan), min_size=1),
    st.floats(0, 0.15),
    st.floats(0, 1),
    st.floats(-100, 100),
)
def test_shares_sum_to_one_and_none_is_below_the_floor(
    before: dict[str, float], losses: dict[str, float], floor: float, memory: float, rate: float
) -> None:
    drawn = [name for name in before if before[name]]
    if not any(math.isfinite(losses.get(name, math.nan)) for name in drawn):
        with pytest.raises(ConfigError, match='follow the losses'):
            proportions_by_loss(before, losses, floor=floor, memory=memory, rate=rate)
        return
    found = proportions_by_loss(before, losses, floor=floor, memory=memory, rate=rate)
    assert math.fsum(found.values()) == pytest.approx(1)
    assert [name for name in found if not found[name] >= floor] == [] if len(drawn) == len(before) else True
    assert all(found[name] == 0 for name in before if not before[name])
    assert list(found) == list(before)


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        ({'memory': 2}, 'memory'),
        ({'floor': 0.4}, 'below 1 / 3'),
        ({'rate': math.inf}, 'inf'),
        ({'references': {'a': 1}}, 'b'),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        proportions_by_loss(BEFORE, dict.fromkeys(BEFORE, 1.0), **options)


def test_a_loop_decides_by_its_metric(tmp_path: Path, make_dataset_in: Any) -> None:
    for number, name in enumerate('ab'):
        make_dataset_in(tmp_path, name, 40, first=100 * number)
    streams = [Stream(local=str(tmp_path / name), name=name, proportion=1) for name in 'ab']
    loader = StreamingDataLoader(StreamingDataset(streams=streams, batch_size=8, shuffle=True), mark_streams=True)
    metric = PerStreamMean(loader.dataset.stream_names, prefix='loss/')
    observer = MixtureObserver(metric, 2, rate=1.0, memory=1.0, floor=0.1, references=None)
    for step, batch in enumerate(loader, 1):
        metric.update((batch['id'] >= 100).float() * math.log(3), batch[STREAM])
        if step % observer.every == 0 and step <= 4:
            decision = observer.decide(loader, torch.nn.Identity())
            assert not metric.rows.sum()
            # a : b is 1 : 3, then 1 : 3 of what the floor made of it
            assert decision.by == 'OnlineMixture'
    one, two = (decision.what['proportions']['b'] for decision in loader.dataset.run.decisions)
    assert one == pytest.approx(0.1 + 0.8 * 3 / 4)
    assert two == pytest.approx(0.1 + 0.8 * 3 * one / (3 * one + 1 - one))
    with pytest.raises(ConfigError, match="`metric` 'losses' is None"):
        MixtureObserver('losses', 2, rate=1, memory=1, floor=0, references=None).decide(loader, torch.nn.Identity())
    with pytest.raises(ConfigError, match='got 0'):
        MixtureObserver('losses', 0, rate=1, memory=1, floor=0, references=None)
    with pytest.raises(ConfigError, match='`memory` from 0 to 1'):
        MixtureObserver('losses', 2, rate=1, memory=5, floor=0, references=None)
