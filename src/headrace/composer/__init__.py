"""The plugin for MosaicML Composer.

1. `data_spec.streaming_data_spec` makes Composer's `DataSpec` of a YAML file, a dataset or a loader.
2. `batches` counts and splits batches for that DataSpec.
3. `position.StreamingPosition`, a callback, sets the loader to the trainer's time.
4. `statistics.DataStatistics`, a callback, logs the loaders' counters through `headrace.metrics`.
5. `spikes.LossSpikes`, a callback, writes the data of a loss spike beside the checkpoints, with a `skip` to omit it.
6. `record.RunRecord`, a callback, writes the record of the run (`headrace.watching`).
7. `stream_metrics` makes metrics by stream for Composer.

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

from headrace.composer.data_spec import StreamingDataSpec, streaming_data_spec, streaming_evaluators
from headrace.composer.position import StreamingPosition
from headrace.composer.record import RunRecord
from headrace.composer.spikes import LossSpikes
from headrace.composer.statistics import DataStatistics
from headrace.composer.stream_metrics import stream_metrics

__all__ = [
    'DataStatistics',
    'LossSpikes',
    'RunRecord',
    'StreamingDataSpec',
    'StreamingPosition',
    'stream_metrics',
    'streaming_data_spec',
    'streaming_evaluators',
]
