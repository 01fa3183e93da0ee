"""Times of batches: quantiles, drift, and the line of a run."""

from __future__ import annotations

import pytest

from headrace.metrics import DataMeter


def test_quantiles_drift_and_the_line_of_a_run(make_loader, clock):
    loader, meter = make_loader(), DataMeter(clock=clock)
    meter.follow({'': loader})
    meter.begin()
    batches = iter(loader)
    for seconds in [1.0] * 5 + [3.0]:
        next(batches)
        clock.now += seconds
        meter.batch_done()
    before = meter.read()
    assert before['data/batch_seconds_p50'] == 1
    assert 2 < before['data/batch_seconds_p99'] <= 3
    assert 'data/wait_seconds_p50' not in before
    assert before['data/bytes_per_second'] == 0
    shares = {name: before[f'mix/{name}/share'] - before[f'mix/{name}/promised'] for name in 'ab'}
    assert before['mix/drift'] == pytest.approx(max(map(abs, shares.values())))
    meter.pause()  # an evaluation is no batch
    clock.now += 100
    meter.resume()
    for _ in range(2):
        clock.now += 2
        next(batches)
        meter.batch_done()
    detailed = meter.read(detailed=True)
    assert detailed['data/batch_seconds_p99'] == 2
    assert 0 <= detailed['data/wait_seconds_p50'] <= detailed['data/wait_seconds_p99']
    assert (detailed['data/retries'], detailed['data/evictions']) == (0, 0)
    assert 'data/cache_fill' not in detailed  # all data are local
    assert 'data/batch_seconds_p50' not in meter.read()  # no batch since then
    share = loader.seconds_waiting / 12
    line = f'waited {share:.1%} for data; 0 B; 0 retries; mix within {detailed["mix/drift"]:.1%}'
    assert meter.summary() == line.replace('%', ' %')
