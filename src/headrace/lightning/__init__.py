"""Lightning's hooks onto the one position of a streaming dataset.

1. `datamodule.StreamingDataModule` reads its arguments or a YAML file (`sources`), and takes the ranks from the
   trainer (`topology`). A subclass may change the samples of batches.
2. Its `loaders` say when a pass over the data begins. `train_position.TrainPosition` is a `headrace.PositionTracker`
   that asks Lightning's counters for the trained batches.
3. `position_callback.PositionCallback` puts the position into every checkpoint. At a resume it sets Lightning's loop
   counters to it, and may restore the random generators.
4. `requeue` has SLURM's signals wait for the end of a batch.
5. `position_file` writes the position beside each checkpoint, for people.
6. `callbacks` watch the data: `DataStatistics` and `LossSpikes` by way of `headrace.metrics`, and `RunRecord` by way of
   `headrace.watching`. `OnlineMixture` sets proportions.

Fabric has no loops and no hooks: `fabric.setup` gives it loaders that know their position.
"""

from __future__ import annotations

from headrace.errors import MissingDependencyError

try:
    import lightning.pytorch  # noqa: F401 # pyright: ignore[reportUnusedImport] — the modules below use it
except ImportError as error:
    raise MissingDependencyError(
        'headrace.lightning needs the package `lightning`: pip install "headrace[lightning]". '
        'Programs that import `pytorch_lightning` change that import to `lightning.pytorch`.'
    ) from error

from headrace.lightning.callbacks import DataStatistics, LossSpikes, OnlineMixture, RunRecord
from headrace.lightning.datamodule import StreamingDataModule
from headrace.lightning.fabric import FabricLoader, FabricLoaders, setup
from headrace.lightning.position_callback import PositionCallback

__all__ = [
    'DataStatistics',
    'FabricLoader',
    'FabricLoaders',
    'LossSpikes',
    'OnlineMixture',
    'PositionCallback',
    'RunRecord',
    'StreamingDataModule',
    'setup',
]
