"""The sizes of the demo: what is trained, on how many ranks, and when it is killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ['Launch', 'Settings']


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How many processes one run of a rank program uses."""

    ranks: int
    workers: int
    """Dataloader workers of each rank."""

    def __str__(self) -> str:
        return f'{self.ranks} rank{"s" * (self.ranks != 1)} x {self.workers} worker{"s" * (self.workers != 1)}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One demo. The defaults fit two cores and four minutes."""

    rows: int = 1280
    """Rows of text in each of the two corpora."""
    row_bytes: int = 129
    """Length of a row: each byte but the first is predicted from those before it."""
    repeats: Mapping[str, float] = field(default_factory=lambda: {'code': 1, 'prose': 1.4})
    """Passes over each corpus in one epoch, as ``configs/demo.yaml`` says."""
    shard_bytes: int = 1 << 15
    """Size of a shard before compression: some six shards a corpus."""
    global_batch_size: int = 32
    epochs: int = 3
    checkpoint_every: int = 20
    """Optimizer steps between two checkpoints."""
    kill_after: int = 147
    """The run is killed once this step is recorded: in the middle of the second epoch, 7 steps after a checkpoint."""
    uninterrupted: Launch = Launch(ranks=1, workers=0)
    killed: Launch = Launch(ranks=2, workers=1)
    resumed: Launch = Launch(ranks=1, workers=2)
    compared_steps: int = 20
    """Steps after the resume whose losses must agree with those of the uninterrupted run."""
    loss_tolerance: float = 1e-4

    @property
    def samples_per_epoch(self) -> int:
        """The rows of all corpora, as often as the mix takes them."""
        return sum(round(self.rows * repeat) for repeat in self.repeats.values())

    @property
    def steps(self) -> int:
        """Optimizer steps of a whole run."""
        return self.epochs * (self.samples_per_epoch // self.global_batch_size)
