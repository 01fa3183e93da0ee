"""headrace: training data from object storage to a trainer, in one order, from any point, on any number of GPUs."""

from __future__ import annotations

from headrace.convert import merge_index
from headrace.dataset import (
    BAD_SAMPLE,
    PADDING,
    STREAM,
    CSVWriter,
    JSONWriter,
    LoaderStats,
    LocalDataset,
    MDSWriter,
    PositionTracker,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
    sample_rng,
    topology_of_mesh,
    without_padding,
)
from headrace.order import Topology
from headrace.selection import Where

__version__ = '0.1.0'

__all__ = [
    'BAD_SAMPLE',
    'PADDING',
    'STREAM',
    'CSVWriter',
    'JSONWriter',
    'LoaderStats',
    'LocalDataset',
    'MDSWriter',
    'PositionTracker',
    'Stream',
    'StreamingDataLoader',
    'StreamingDataset',
    'TSVWriter',
    'Topology',
    'Where',
    'XSVWriter',
    'merge_index',
    'sample_rng',
    'topology_of_mesh',
    'without_padding',
]
