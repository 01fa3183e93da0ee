"""The training loaders that the data module returns to Lightning, and checks of them before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader
from typing_extensions import override

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.device import Device
from headrace.dataset.loader import StreamingDataLoader
from headrace.dataset.tracker import LoaderPosition, PositionListener, TrainMode
from headrace.errors import ConfigError
from headrace.lightning.train_position import TrainPosition
from headrace.order import Remainder
from headrace.tensors.padding import Pad


class TrackedLoader(StreamingDataLoader):
    """Reports each batch, and the begin of a pass at the first `next`: Lightning also calls `iter` alone."""

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
        pad: Mapping[str, Any] | Pad | None = None,
        device: Device | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            dataset,
            fixed_epoch=fixed_epoch,
            max_epochs=max_epochs,
            mark_streams=mark_streams,
            remainder=remainder,
            pad=pad,
            device=device,
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
    """Several `TrackedLoader`s as one, with a batch of each in every step, in the collection that steps get."""

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
    """Whether data has loaders of a position; `may_be_hidden`: objects that are not a `DataLoader` count."""
    streaming, others = split_loaders(data, position)
    return bool(streaming) or (may_be_hidden and not all(isinstance(loader, DataLoader) for loader in others))


OTHER_TRAINER = (
    'This StreamingDataModule has trained under another Trainer. Under this one its data starts over, at the start of '
    'epoch 0. Pass `ckpt_path` to continue from a checkpoint, or make a StreamingDataModule for each Trainer.'
)


def check_training(position: TrainPosition) -> None:
    """Check that each of Lightning's epochs has a batch of each loader, and that an endless epoch is the only one."""
    for loader in position.loaders:
        loader.dataset.check_batches(_label(loader), loader.global_batch_size, loader.remainder)
        if not loader.dataset.has_length:
            _check_endless(position, loader)


def check_other_loaders(position: TrainPosition, data: Any, batches: int | float) -> str | None:
    """Refuse loaders that outlast `batches` of the position's epoch; a warning of those without checkpoints."""
    streaming, others = split_loaders(data, position)
    names = ', '.join(type(loader).__name__ for loader in others)
    if not streaming or not others:
        return None
    if not position.ends_epochs_of(batches):
        raise ConfigError(
            f'A StreamingDataModule cannot resume together with {names}: an epoch of {batches} batches does not end '
            f'with its own data. Combine them with `CombinedLoader(..., "min_size")`, without `skip` and `batch_cost`, '
            f'or give the other data to the module, as one of several datasets in `train`.'
        )
    if all(hasattr(loader, 'load_state_dict') for loader in others):
        return None
    return (
        f'Checkpoints have the position of the StreamingDataModule, but not that of {names}: after a resume in the '
        f'middle of an epoch that data starts over. Give it to the module, as one of several datasets in `train`.'
    )


def rest_of_last_fit(position: TrainPosition) -> str | None:
    """A warning that the next `fit` drops the rest of an epoch that the last one began; None if nothing is dropped."""
    if position.trainer.overfit_batches > 0:  # pyright: ignore[reportAttributeAccessIssue] - set by a connector
        return None
    places = position.unfinished
    if places is None:
        return None
    left = ', '.join(
        f'{_label(loader)} at sample {sample} of epoch {epoch}'
        for loader, (epoch, sample) in zip(position.loaders, places, strict=True)
    )
    return (
        f'The last `fit` ended in the middle of an epoch ({left}). This one begins the next epoch, and the rest of the '
        f'last one is not trained. Save a checkpoint after a `fit`, and pass it as `ckpt_path`, to continue where it '
        f'ended.'
    )


def _check_endless(position: TrainPosition, loader: LoaderPosition) -> None:
    trainer, fix = position.trainer, 'Set `sequences_per_epoch` in its `packing`'
    what = f'the epoch of {_label(loader)} does not end: it is packed without `sequences_per_epoch`'
    if len(position.loaders) > 1:
        raise ConfigError(
            f'An epoch of several training loaders ends and the next one begins (train_mode {position.mode!r}), but '
            f'{what}. {fix}.'
        )
    option = 'overfit_batches' if trainer.overfit_batches > 0 else 'limit_train_batches'  # pyright: ignore[reportAttributeAccessIssue] - set by a connector
    batches: int | float = getattr(trainer, option)
    if not _begins_another_epoch(trainer, option, batches):
        return
    size = '' if isinstance(batches, float) else f' to {batches * loader.global_batch_size}, for {batches} batches'
    raise ConfigError(
        f'Trainer({option}={batches}) ends an epoch and begins another, but {what}. {fix}{size}, or leave {option} out.'
    )


def _begins_another_epoch(trainer: Trainer, option: str, batches: int | float) -> bool:
    if option == 'overfit_batches':
        return True  # the same epoch, again and again
    if isinstance(batches, float):
        return batches not in (0.0, 1.0)
    steps = trainer.max_steps * trainer.accumulate_grad_batches
    return batches > 0 and trainer.max_epochs != 1 and not 0 <= steps <= batches


def _label(loader: LoaderPosition) -> str:
    return f'train {loader.name}'.rstrip()
