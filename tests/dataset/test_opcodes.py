"""The Python instructions that a batch costs the trainer's process, counted: the median does not depend on the load.

A batch that waited takes up to 90 instructions more, and some batches open a shard or collect dead references.
The bounds leave room for a median batch that waited. A change that adds a hundred to every batch fails here.
If it is worth them, raise the bound by as many as it costs.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason='each Python has its own instructions')

BATCHES = 64
SAMPLES = {'tokens': 16, 'text': 64}
"""In a batch."""


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of 130 batches, in shards of 2,000 samples."""
    root = tmp_path_factory.mktemp('counted')
    rng = np.random.default_rng(0)
    with MDSWriter(out=str(root / 'tokens'), columns={'tokens': 'ndarray:int32:256'}, size_limit=1 << 21) as writer:
        for row in rng.integers(0, 50_000, (130 * SAMPLES['tokens'], 256), dtype=np.int32):
            writer.write({'tokens': row})
    with MDSWriter(out=str(root / 'text'), columns={'id': 'int', 'text': 'str'}, size_limit=1 << 20) as writer:
        for number, words in enumerate(rng.integers(10, 60, 130 * SAMPLES['text']).tolist()):
            writer.write({'id': number, 'text': 'word ' * words})
    return root


def opcodes(batches: Iterator[Any]) -> int:
    """Instructions that this thread runs for the next batch."""
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == 'opcode'
        return trace

    resumed = batches.gi_frame  # type: ignore[attr-defined]  # it was begun before the tracing
    resumed.f_trace, resumed.f_trace_opcodes, resumed.f_trace_lines = trace, True, False
    before = sys.gettrace()
    gc.disable()  # objects of other tests that it finds may run Python, too
    sys.settrace(trace)
    try:
        next(batches)
    finally:
        sys.settrace(before)
        gc.enable()
    return executed


@pytest.mark.parametrize(
    ('data', 'workers', 'most'), [('tokens', 0, 940), ('text', 0, 2700), ('tokens', 2, 1300), ('text', 2, 1300)]
)
def test_instructions_of_a_batch(folder: Path, data: str, workers: int, most: int) -> None:
    dataset = StreamingDataset(local=str(folder / data), batch_size=SAMPLES[data], shuffle=True)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    batches = iter(loader)
    for _ in range(2):  # begins the pass, and opens the shards
        next(batches)
    found = statistics.median(opcodes(batches) for _ in range(BATCHES))
    assert 0.7 * most < found <= most
