"""Checks and warnings about a training's data, before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.lightning.position.loaders import split_loaders

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from headrace.dataset.tracker import LoaderPosition
    from headrace.lightning.position.train_position import TrainPosition

__all__ = ['OTHER_TRAINER', 'check_other_loaders', 'check_training', 'rest_of_last_fit']

OTHER_TRAINER = (
    'This StreamingDataModule has trained under another Trainer. Under this one its data begins anew, at the start of '
    'epoch 0. Pass `ckpt_path` to continue from a checkpoint, or make a StreamingDataModule for each Trainer.'
)


def check_training(position: TrainPosition) -> None:
    """Check that each of Lightning's epochs has a batch of each loader, and that an endless epoch is the only one.

    Raises:
        ConfigError: a loader has no batch, or the trainer ends an epoch of packed data that has no end.
    """
    for loader in position.loaders:
        loader.dataset.check_batches(_label(loader), loader.global_batch_size, loader.remainder)
        if not loader.dataset.has_length:
            _check_endless(position, loader)


def check_other_loaders(position: TrainPosition, data: Any, batches: int | float) -> str | None:
    """Check that no other loader keeps an epoch going after the end of the position's.

    Args:
        position: the position.
        data: all training loaders.
        batches: the length of an epoch.

    Returns:
        A warning about other loaders that checkpoints do not have; None if there are none.

    Raises:
        ConfigError: another loader is longer, or epochs differ in length.
    """
    own, others = split_loaders(data, position)
    names = ', '.join(type(loader).__name__ for loader in others)
    if not own or not others:
        return None
    if not position.ends_epochs_of(batches):
        raise ConfigError(
            f'A StreamingDataModule cannot resume together with {names}: an epoch of {batches} batches does not end '
            f'with its own data. Combine them with `CombinedLoader(..., "min_size")`, without `skip`, or give the '
            f'other data to the module, as one of several datasets in `train`.'
        )
    if all(hasattr(loader, 'load_state_dict') for loader in others):
        return None
    return (
        f'Checkpoints have the position of the StreamingDataModule, but not that of {names}: after a resume in the '
        f'middle of an epoch that data begins anew. Give it to the module, as one of several datasets in `train`.'
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
