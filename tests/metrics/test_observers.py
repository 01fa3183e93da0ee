"""Observers of a training's data, without a trainer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace import StreamingDataLoader
from headrace.metrics import SpikeFile, TrainedBatch
from headrace.metrics.exporters import export_figures
from headrace.metrics.observers import DataObserver, SpikeObserver


def test_figures_exports_and_the_line_of_a_run(loader: StreamingDataLoader, capsys: pytest.CaptureFixture[str]) -> None:
    exported: list[Any] = []
    observer = DataObserver(
        per_stream=False,
        per_stream_reads=None,
        sync_dist=False,
        detailed=False,
        summary=True,
        bottleneck=True,
        exporters=[exported.append],
        spans=None,
    )
    observer.begin({'': loader})

    next(iter(loader))
    observer.batch_done(None, is_first_rank=True)
    export_figures(observer.exporters, observer.figures(1, lambda numbers: numbers))
    for is_first_rank in (False, True):
        observer.end(is_first_rank=is_first_rank)

    assert exported[0]['data/samples'] == loader.global_batch_size
    assert capsys.readouterr().err.count('headrace: waited') == 1


def test_the_files_of_a_spike_and_an_error_of_their_folder(loader: StreamingDataLoader) -> None:
    observer = SpikeObserver(factor=10.0, window=100, warmup=20, before=0, after=0, limit=2)
    next(iter(loader))
    assert loader.handed_out is not None
    batches = {'': TrainedBatch(loader, *loader.handed_out)}
    spike = observer.detector.add(math.inf)
    assert spike is not None
    written: list[SpikeFile] = []

    def fail(_: SpikeFile) -> None:
        raise OSError('the disk is full')

    assert observer.figures(spike) == {'spikes/loss': math.inf}
    assert observer.report(spike, 0, batches, 'runs/a', written.append, optimizer_step=7) == (
        'The loss of batch 0 (step 7) was inf: see runs/a/loss-spike-batch0.json.'
    )
    assert [file.name for file in written] == ['loss-spike-batch0.json', 'loss-spike-batch0.yaml']
    assert 'could not be written' in str(observer.report(spike, 0, batches, 'runs/a', fail))
    assert 'nothing more is written' in str(observer.report(spike, 0, batches, 'runs/a', written.append))
    assert observer.report(spike, 0, batches, 'runs/a', written.append) is None
