"""The plugin for MosaicML Composer.

1. `data_spec.streaming_data_spec` makes Composer's `DataSpec` of a YAML file, a dataset or a loader. It counts
   and splits batches.
2. `position.StreamingPosition`, a callback, sets the loader to the trainer's time.
3. `callbacks` watch the data: `DataStatistics` and `LossSpikes` by way of `headrace.metrics`, and `RunRecord` by way of
   `headrace.watching`. `OnlineMixture` sets proportions.
4. `stream_metrics` makes metrics by stream for Composer.

The dataset owns the position: Composer saves it with `StreamingDataset.state_dict`.
"""

from __future__ import annotations

try:
    import composer.core as _  # noqa: F401 - the absolute name: MosaicML's package
except ImportError as error:
    from headrace.errors import MissingDependencyError

    raise MissingDependencyError(
        'headrace.composer needs MosaicML Composer, which is not installed: pip install "headrace[composer]".'
    ) from error

from headrace.composer.callbacks import DataStatistics, LossSpikes, OnlineMixture, RunRecord
from headrace.composer.data_spec import StreamingDataSpec, streaming_data_spec, streaming_evaluators
from headrace.composer.position import StreamingPosition
from headrace.composer.stream_metrics import stream_metrics

__all__ = [
    'DataStatistics',
    'LossSpikes',
    'OnlineMixture',
    'RunRecord',
    'StreamingDataSpec',
    'StreamingPosition',
    'stream_metrics',
    'streaming_data_spec',
    'streaming_evaluators',
]
