"""Random numbers of a sample, for augmentation: the same on any number of ranks, nodes and workers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

import numpy as np

from headrace.errors import ConfigError

_NO_SAMPLE = (
    'Random numbers of a sample are drawn while a batch is read: in `get_item` or `__getitem__` of a StreamingDataset '
    'subclass, read by a loader, or in `transform` of a StreamingDataModule subclass. Here no sample is being read.'
)


class _Draws:
    def __init__(self, *key: int) -> None:
        self.key = key
        self._generator: np.random.Generator | None = None

    @property
    def generator(self) -> np.random.Generator:
        """Made on request, since that takes longer than reading a small sample."""
        if self._generator is None:
            self._generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.key)))
        return self._generator


_draws: ContextVar[_Draws | None] = ContextVar('headrace_draws', default=None)
_batch: ContextVar[tuple[int, int, list[int]] | None] = ContextVar('headrace_batch', default=None)


def sample_rng() -> np.random.Generator:
    """The random numbers of the sample that is being read, for augmentation, masking or cropping.

    They depend on the dataset's `shuffle_seed`, the epoch and the sample's id alone. So a sample gets the same ones on
    any number of ranks, nodes and workers, and after any resume. The next epoch gives others. A second call for the
    same sample returns the same generator.

    Returns:
        A generator of the sample's own (PCG64). For PyTorch's functions that take a generator:
        ``torch.Generator().manual_seed(int(sample_rng().integers(2**63)))``.

    Raises:
        ConfigError: no sample is being read.
    """
    draws = _draws.get()
    if draws is None:
        raise ConfigError(_NO_SAMPLE)
    return draws.generator


def tensor_draws(sample_id: int, count: int) -> list[float] | None:
    """Random numbers for the crops of a sample, from 0 to below 1; None if no pass is being read."""
    draws, batch = _draws.get(), _batch.get()
    if draws is not None:
        seed, epoch = draws.key[:2]
    elif batch is not None:
        seed, epoch = batch[:2]
    else:
        return None
    return _Draws(seed, epoch, sample_id, 2).generator.random(count).tolist()


@contextlib.contextmanager
def drawing_for_batch(seed: int, epoch: int, ids: list[int]) -> Generator[None]:
    """Set the batch whose samples are read inside the block."""
    token = _batch.set((seed, epoch, ids))
    try:
        yield
    finally:
        _batch.reset(token)


@contextlib.contextmanager
def drawing_for(seed: int, epoch: int, sample_id: int) -> Generator[None]:
    """Set the sample that is read inside the block."""
    _draws.set(_Draws(seed, epoch, sample_id, 0))
    try:
        yield
    finally:
        _draws.set(None)


def each_row() -> Generator[None]:
    """Set the sample of each row of the current batch, row by row, while it is transformed."""
    batch = _batch.get()
    if batch is None:  # the samples come from another reader
        while True:
            yield
    seed, epoch, ids = batch
    try:
        for sample_id in ids:
            _draws.set(_Draws(seed, epoch, sample_id, 1))
            yield
    finally:
        _draws.set(None)
