"""Streams, datasets, loaders and writers, on top of format, storage and order. Writers and converters need no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.dataset.sample_rng import sample_rng  # at once: its module has the same name
from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.dataset.batch_keys import BAD_SAMPLE, LOSS_WEIGHT, PADDING, STREAM, without_padding
    from headrace.dataset.dataset import LocalDataset, StreamingDataset
    from headrace.dataset.loader import StreamingDataLoader
    from headrace.dataset.statistics import LoaderStats, StreamCount, StreamStats
    from headrace.dataset.streams.stream import Stream, streams_registry
    from headrace.dataset.topology import detect_topology, topology_of_mesh
    from headrace.dataset.tracker import PositionTracker
    from headrace.dataset.writing.writer import CSVWriter, JSONWriter, MDSWriter, TSVWriter, Writer, XSVWriter

__all__ = [
    'BAD_SAMPLE',
    'LOSS_WEIGHT',
    'PADDING',
    'STREAM',
    'CSVWriter',
    'JSONWriter',
    'LoaderStats',
    'LocalDataset',
    'MDSWriter',
    'PositionTracker',
    'Stream',
    'StreamCount',
    'StreamStats',
    'StreamingDataLoader',
    'StreamingDataset',
    'TSVWriter',
    'Writer',
    'XSVWriter',
    'detect_topology',
    'sample_rng',
    'streams_registry',
    'topology_of_mesh',
    'without_padding',
]

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'BAD_SAMPLE': 'headrace.dataset.batch_keys',
            'LocalDataset': 'headrace.dataset.dataset',
            'PositionTracker': 'headrace.dataset.tracker',
            'STREAM': 'headrace.dataset.batch_keys',
            'Stream': 'headrace.dataset.streams.stream',
            'StreamingDataLoader': 'headrace.dataset.loader',
            'StreamingDataset': 'headrace.dataset.dataset',
            'Writer': 'headrace.dataset.writing.writer',
            'detect_topology': 'headrace.dataset.topology',
            'streams_registry': 'headrace.dataset.streams.stream',
            'topology_of_mesh': 'headrace.dataset.topology',
            **dict.fromkeys(('LOSS_WEIGHT', 'PADDING', 'without_padding'), 'headrace.dataset.batch_keys'),
            'StreamCount': 'headrace.dataset.statistics',
            **dict.fromkeys(('LoaderStats', 'StreamStats'), 'headrace.dataset.statistics'),
            **dict.fromkeys(
                ('CSVWriter', 'JSONWriter', 'MDSWriter', 'TSVWriter', 'XSVWriter'), 'headrace.dataset.writing.writer'
            ),
        },
    )
