"""The loaders that the data module hands to Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lightning.pytorch.utilities import CombinedLoader
from typing_extensions import override

from headrace.dataset.loader import StreamingDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.dataset.dataset import StreamingDataset
    from headrace.lightning.loader_position import LoaderPosition
    from headrace.lightning.position import TrainMode
    from headrace.order import Remainder

__all__ = ['MemberLoader', 'PassLoader', 'PassLoaders']


class Witness(Protocol):
    """Follows the passes over the data."""

    def begin(self, places: Sequence[tuple[int, int]]) -> None:
        """A pass begins, at an epoch of each loader and a position in it."""

    def hand_out(self) -> None:
        """The next batch of the pass is handed out."""

    def length(self, *, is_begun: bool) -> int | None:
        """Batches of the pass under way, or of the next one; None where all have the same number."""


class PassLoader(StreamingDataLoader):
    """A `StreamingDataLoader` that says when a pass begins, and when a batch is handed out.

    Lightning calls `iter` more often than it iterates, and makes the loader anew for `overfit_batches`, so a pass
    begins with the first `next`, and everything special comes by keyword.

    Args:
        dataset: as `StreamingDataLoader`'s.
        witness: told when a pass begins, before its first batch is read, and when a batch is handed out.
        fixed_epoch, mark_streams, remainder, options: as `StreamingDataLoader`'s.
    """

    # Lightning makes a loader anew with what the names of `__init__` find among its attributes.
    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        witness: Witness,
        fixed_epoch: int | None = None,
        mark_streams: bool = False,
        remainder: Remainder | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, fixed_epoch=fixed_epoch, mark_streams=mark_streams, remainder=remainder, **options)
        self.witness = witness

    @override
    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.witness.begin([self.next_pass()])
        for batch in super().__iter__():
            self.witness.hand_out()
            yield batch


class MemberLoader(StreamingDataLoader):
    """One of several: its next epoch is one of which something is left, since an empty one would end all.

    Args:
        dataset: as `StreamingDataLoader`'s.
        position: the loader's position.
        fixed_epoch, mark_streams, remainder, options: as `StreamingDataLoader`'s.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        position: LoaderPosition,
        fixed_epoch: int | None = None,
        mark_streams: bool = False,
        remainder: Remainder | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, fixed_epoch=fixed_epoch, mark_streams=mark_streams, remainder=remainder, **options)
        self.position = position

    @override
    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.position.has_skips:
            self.position.pass_over_empty_epochs()
        yield from super().__iter__()


class PassLoaders(CombinedLoader):
    """Several `MemberLoader`s with a batch of each in every step, as one `PassLoader`.

    Args:
        loaders: the loaders, in the collection that a step's batches come in.
        mode: when a pass ends.
        witness: told when a pass begins, before its first batches are read, and when batches are handed out.
    """

    def __init__(
        self,
        loaders: Mapping[str, MemberLoader] | Sequence[MemberLoader],
        mode: TrainMode,
        *,
        witness: Witness,
    ) -> None:
        super().__init__(loaders, mode)
        self._witness = witness
        self._is_begun = False

    @override
    def __len__(self) -> int:
        # Of loaders whose epochs differ, Lightning's sum knows only the epochs that they are in.
        length = self._witness.length(is_begun=self._is_begun)
        return super().__len__() if length is None else length

    @override
    def __iter__(self) -> PassLoaders:
        super().__iter__()
        self._is_begun = False
        return self

    @override
    def __next__(self) -> Any:
        if not self._is_begun:
            self._witness.begin([loader.next_pass() for loader in self.flattened])
            self._is_begun = True
        batches = super().__next__()
        self._witness.hand_out()
        return batches
