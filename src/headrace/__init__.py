"""headrace: training data from object storage to a trainer, in one order, from any point, on any number of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names
from headrace.version import __version__ as __version__

if TYPE_CHECKING:
    from headrace.convert import merge_index
    from headrace.dataset import (
        BAD_SAMPLE,
        LOSS_WEIGHT,
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
    from headrace.tensors.audio import AudioTensor
    from headrace.tensors.images import ImageTensor
    from headrace.tensors.normalize import NormalizeImages

__all__ = [
    'BAD_SAMPLE',
    'LOSS_WEIGHT',
    'PADDING',
    'STREAM',
    'AudioTensor',
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

_PACKAGES = ('convert', 'dataset', 'format', 'order', 'selection', 'sources', 'storage')
_ELSEWHERE = {
    'AudioTensor': 'headrace.tensors.audio',
    'ImageTensor': 'headrace.tensors.images',
    'NormalizeImages': 'headrace.tensors.normalize',
    'Topology': 'headrace.order',
    'Where': 'headrace.selection',
    'merge_index': 'headrace.convert',
}

if not TYPE_CHECKING:  # a type checker would take every name for one of this module
    # At first use, so that the command line answers at once: torch takes seconds.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(__all__, 'headrace.dataset'),
            **_ELSEWHERE,
            **{package: f'headrace.{package}' for package in _PACKAGES},
        },
    )
