"""Which losses stand out, and how they are reported."""

from __future__ import annotations

import json
import math
import random

import pytest

from headrace.errors import ConfigError
from headrace.metrics import SpikeDetector


def noisy(count: int, level: float = 2.0) -> list[float]:
    generator = random.Random(0)
    return [generator.gauss(level, 0.05) for _ in range(count)]


def test_noise_and_a_falling_loss_are_no_spikes() -> None:
    detector = SpikeDetector()
    falling = [10 * math.exp(-step / 200) + noise for step, noise in enumerate(noisy(1000))]
    assert not any(map(detector.add, falling))


@pytest.mark.parametrize('loss', [4.0, math.inf, math.nan])
def test_what_stands_out_is_a_spike(loss: float) -> None:
    detector = SpikeDetector(factor=10)
    for other in noisy(100):
        detector.add(other)
    spike = detector.add(loss)
    assert spike is not None
    assert spike.median == pytest.approx(2, abs=0.02)
    assert spike.threshold == pytest.approx(2.5, abs=0.1)
    assert 'where the median before it was 1.99, and 2.512 the threshold' in str(spike)
    # It does not hide the next one, nor makes one of what follows.
    assert detector.add(2.1) is None
    assert detector.add(4.0) is not None


def test_losses_that_hardly_vary_need_a_tenth_more() -> None:
    detector = SpikeDetector(warmup=4)
    assert [detector.add(loss) is not None for loss in (1, 1, 1, 1, 1.09, 1.11)] == [False] * 5 + [True]


def test_nothing_is_judged_before_it_is_warm_but_what_is_no_number() -> None:
    detector = SpikeDetector(warmup=5)
    assert not any(map(detector.add, [1, 1000, 1, 1000]))
    spike = detector.add(math.nan)
    assert (str(spike), spike.median, spike.threshold) == ('nan', None, None)


def test_a_loss_that_stays_high_is_taken_for_what_it_is() -> None:
    detector = SpikeDetector(window=20, warmup=10)
    for loss in noisy(20):
        detector.add(loss)
    assert [detector.add(loss) is not None for loss in noisy(20, 8.0)] == [True] * 10 + [False] * 10


def test_a_state_continues() -> None:
    detector, resumed = SpikeDetector(window=20), SpikeDetector(window=20)
    for loss in noisy(30):
        detector.add(loss)
    resumed.load_state_dict(json.loads(json.dumps(detector.state_dict())))
    assert resumed.add(9.0) == detector.add(9.0)
    resumed.load_state_dict({})
    assert resumed.add(9.0) is None


@pytest.mark.parametrize('wrong', [{'factor': 0}, {'factor': -1}, {'warmup': 1}, {'window': 19}])
def test_bad_numbers_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=f'`{next(iter(wrong))}`'):
        SpikeDetector(**wrong)
