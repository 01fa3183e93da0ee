"""The training loaders that the data module returns to Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader
from typing_extensions import override

from headrace.dataset.loader import StreamingDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.dataset.dataset import StreamingDataset
    from headrace.dataset.tracker import PositionListener, TrainMode
    from headrace.lightning.position.train_position import TrainPosition
    from headrace.order import Remainder

__all__ = ['TrackedLoader', 'TrackedLoaders', 'has_loaders_of', 'split_loaders']


class TrackedLoader(StreamingDataLoader):
    """A `StreamingDataLoader` that reports the begin of a pass, and each batch.

    A pass begins with the first `next`, because Lightning also calls `iter` without iterating.

    Args:
        dataset: as `StreamingDataLoader`'s.
        listener: called when a pass begins, before its first batch is read, and for each batch.
        fixed_epoch, max_epochs, mark_streams, remainder, options: as `StreamingDataLoader`'s.
    """

    # For `overfit_batches`, Lightning copies a loader from the attributes named like its `__init__` parameters.
    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        listener: PositionListener,
        fixed_epoch: int | None = None,
        max_epochs: int | None = None,
        mark_streams: bool = False,
        remainder: Remainder | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            dataset,
            fixed_epoch=fixed_epoch,
            max_epochs=max_epochs,
            mark_streams=mark_streams,
            remainder=remainder,
            **options,
        )
        self.listener = listener

    @property
    @override
    def _reader(self) -> object:
        return self.listener

    @override
    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.listener.begin([self.next_pass()])
        for batch in super().__iter__():
            self.listener.handed_out()
            yield batch


class TrackedLoaders(CombinedLoader):
    """Several `TrackedLoader`s with a batch of each in every step, as one.

    Args:
        loaders: the loaders, in the collection that a step's batches come in.
        mode: when a pass ends.
        position: called when a pass begins, before its first batches are read, and for each step; knows the length of
            a pass.
    """

    def __init__(
        self,
        loaders: Mapping[str, TrackedLoader] | Sequence[TrackedLoader],
        mode: TrainMode,
        *,
        position: TrainPosition,
    ) -> None:
        super().__init__(loaders, mode)
        self.position = position
        self._is_begun = False

    @override
    def __len__(self) -> int:
        # Lightning's sum ignores that a loader's epochs may differ in length.
        length = self.position.length(is_begun=self._is_begun)
        return super().__len__() if length is None else length

    @override
    def __iter__(self) -> TrackedLoaders:
        super().__iter__()
        self._is_begun = False
        return self

    @override
    def __next__(self) -> Any:
        if not self._is_begun:
            self.position.begin([loader.next_pass() for loader in self.flattened])
            self._is_begun = True
        batches = super().__next__()
        self.position.handed_out()
        return batches


def split_loaders(data: Any, position: TrainPosition) -> tuple[list[Any], list[Any]]:
    """The loaders in a trainer's data that are a position's, and the others."""
    loaders: list[Any] = (data if isinstance(data, CombinedLoader) else CombinedLoader(data)).flattened

    def is_own(loader: Any) -> bool:
        if isinstance(loader, TrackedLoaders):
            return loader.position is position
        return isinstance(loader, TrackedLoader) and (
            loader.listener is position or loader.listener in position.loaders
        )

    return [loader for loader in loaders if is_own(loader)], [loader for loader in loaders if not is_own(loader)]


def has_loaders_of(data: Any, position: TrainPosition, *, may_be_hidden: bool) -> bool:
    """Whether a trainer's data has loaders of a position.

    Args:
        data: the loaders.
        position: the position.
        may_be_hidden: whether objects that are no `DataLoader` count as such loaders.
    """
    own, others = split_loaders(data, position)
    return bool(own) or (may_be_hidden and not all(isinstance(loader, DataLoader) for loader in others))
