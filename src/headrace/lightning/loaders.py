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
    """A `StreamingDataLoader` that says when a pass begins, and when a batch is handed out.

    Lightning calls `iter` more often than it iterates, and makes the loader anew for `overfit_batches`, so a pass
    begins with the first `next`, and everything special comes by keyword.

    Args:
        dataset: as `StreamingDataLoader`'s.
        witness: told when a pass begins, before its first batch is read, and when a batch is handed out.
        options: as `StreamingDataLoader`'s.
    """

    def __init__(self, dataset: StreamingDataset, *, witness: Witness, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._witness = witness

    @override
    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._witness.begin(*self.next_pass())
        for batch in super().__iter__():
            self._witness.hand_out()
            yield batch
