"""The loader that the data module hands to Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from headrace.dataset.loader import StreamingDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.dataset.dataset import StreamingDataset

__all__ = ['PassLoader']


class Witness(Protocol):
    """Follows the passes over the data."""

    def begin(self, epoch: int, start: int) -> None:
        """A pass begins, at a position of an epoch."""

    def hand_out(self) -> None:
        """The next batch of the pass is handed out."""


class PassLoader(StreamingDataLoader):
    """A `StreamingDataLoader` that says when a pass begins, or whose passes are all alike.

    Lightning calls `iter` more often than it iterates, and makes the loader anew for `overfit_batches` and for
    prediction, so a pass begins with the first `next`, and everything special comes by keyword.

    Args:
        dataset: as `StreamingDataLoader`'s.
        witness: told when a pass begins, before its first batch is read, and when a batch is handed out.
        same_epoch: give epoch 0's batches in every pass: for evaluation, and for overfitting on a few batches.
        options: as `StreamingDataLoader`'s.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        witness: Witness | None = None,
        same_epoch: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(dataset, **options)
        self._witness = witness
        self._same_epoch = same_epoch

    @override
    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        progress, rank = self.dataset.progress, self.dataset.topology.rank
        epoch, start = progress.next(rank=rank)
        if self._same_epoch and epoch:
            epoch = 0
            progress.load(epoch, start)
        if self._witness is None:
            yield from super().__iter__()
            return
        self._witness.begin(epoch, start)
        for batch in super().__iter__():
            self._witness.hand_out()
            yield batch
