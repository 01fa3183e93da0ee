"""headrace: training data from object storage to a trainer, in one order, from any point, on any number of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.dataset import (
    BAD_SAMPLE,
    PADDING,
    STREAM,
    LoaderStats,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    sample_rng,
    topology_of_mesh,
    without_padding,
)
from headrace.images import ImageTensor
from headrace.lazy_names import lazy_names
from headrace.order import Topology
from headrace.selection import Where

if TYPE_CHECKING:
    from headrace.convert import merge_index
    from headrace.dataset import CSVWriter, JSONWriter, LocalDataset, MDSWriter, PositionTracker, TSVWriter, XSVWriter
    from headrace.images.normalize import NormalizeImages

__version__ = '0.1.0'

__all__ = [
    'BAD_SAMPLE',
    'PADDING',
    'STREAM',
    'CSVWriter',
    'ImageTensor',
    'JSONWriter',
    'LoaderStats',
    'LocalDataset',
    'MDSWriter',
    'NormalizeImages',
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

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys((name for name in __all__ if name not in globals()), 'headrace.dataset'),
            **dict.fromkeys(('convert', 'merge_index'), 'headrace.convert'),
            'NormalizeImages': 'headrace.images.normalize',
            'sources': 'headrace.sources',
        },
    )
