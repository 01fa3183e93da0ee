"""The plugin for MosaicML Composer.

1. `data_spec.streaming_data_spec` makes Composer's `DataSpec` of a YAML file, a dataset or a loader.
2. `batches` counts and cuts what that DataSpec hands to the trainer.
3. `position.StreamingPosition`, a callback, keeps the loader where the trainer's time says it is.
4. `statistics.DataStatistics`, a callback, logs what loaders count, by way of `headrace.metrics`.
5. `spikes.LossSpikes`, a callback, writes beside the checkpoints what a loss spike was trained on, and what leaves it
   out.
6. `stream_metrics` makes metrics by stream such as Composer wants.

The position itself is the dataset's: Composer saves it with `StreamingDataset.state_dict`.
"""

from __future__ import annotations

try:
    import composer.core as _  # noqa: F401 - the absolute name: MosaicML's package
except ImportError as error:
    from headrace.errors import MissingDependencyError

    raise MissingDependencyError(
        'headrace.composer needs MosaicML Composer, which is not installed: pip install "headrace[composer]".'
    ) from error

from headrace.composer.data_spec import StreamingDataSpec, streaming_data_spec, streaming_evaluators
from headrace.composer.position import StreamingPosition
from headrace.composer.spikes import LossSpikes
from headrace.composer.statistics import DataStatistics
from headrace.composer.stream_metrics import stream_metrics

__all__ = [
    'DataStatistics',
    'LossSpikes',
    'StreamingDataSpec',
    'StreamingPosition',
    'stream_metrics',
    'streaming_data_spec',
    'streaming_evaluators',
]
