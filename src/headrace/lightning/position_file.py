"""The position as JSON beside each checkpoint: for people, and for `headrace explain --state`.

Reading the position from a checkpoint means loading its weights. The file is right or absent: it is removed before its
checkpoint changes, and written after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

import lightning
from headrace.dataset.tracker import loader_entries
from headrace.errors.redaction import redact
from headrace.order import ResumeState
from headrace.version import __version__

POSITION_FILE_SUFFIX = '.headrace.json'


def write_position_files(trainer: Trainer, key: str) -> None:
    """Have a trainer write the state of callback `key` beside each checkpoint. May be repeated."""
    outer: Any = None
    inner: Any = trainer.strategy.checkpoint_io
    # `AsyncCheckpointIO` returns before its thread has written the checkpoint. Innermost, the file follows it in the
    # same thread.
    while isinstance(inner, _WrappingCheckpointIO):
        if isinstance(inner, PositionFiles):
            return
        outer, inner = inner, inner.checkpoint_io
    files = PositionFiles(inner, trainer, key)
    if outer is None:
        trainer.strategy.checkpoint_io = files
    else:
        outer._checkpoint_io = files  # its setter takes no wrapper


def position_file(checkpoint: str | os.PathLike[str]) -> str:
    """The path of the file beside a checkpoint: its name, with `.headrace.json` instead of `.ckpt`."""
    # Only that ending: `model.v1.5` and `model.v1.6` need a file each. The result ends in no `.ckpt`, so nothing that
    # looks for checkpoints finds it.
    return os.fspath(checkpoint).removesuffix('.ckpt') + POSITION_FILE_SUFFIX


class PositionFiles(_WrappingCheckpointIO):
    """Lightning's reading and writing of checkpoints, with a file beside each that holds a position.

    Every way to save or remove a checkpoint in one file goes through here: `ModelCheckpoint` with its top k and its
    last, exceptions, and `trainer.save_checkpoint`. A callback is not told the path.
    """

    def __init__(self, checkpoint_io: Any, trainer: Trainer, key: str) -> None:
        super().__init__(checkpoint_io)
        self._trainer = trainer
        self._key = key

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> None:
        text = self._text(checkpoint, path) if self._trainer.is_global_zero else None
        if self._trainer.is_global_zero:
            self._attempt(_remove, path)
        super().save_checkpoint(checkpoint, path, *args, **kwargs)
        if text is not None:
            self._attempt(write_text, path, text)

    @override
    def remove_checkpoint(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        if self._trainer.is_global_zero:
            self._attempt(_remove, path)
        super().remove_checkpoint(path, *args, **kwargs)

    @override
    def teardown(self) -> None:
        # Lightning's class does not pass it on.
        assert self.checkpoint_io is not None
        self.checkpoint_io.teardown()

    def _text(self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str]) -> str | None:
        state = checkpoint.get('callbacks', {}).get(self._key)
        if not state:  # weights only, or nothing was trained on a position
            return None
        document = {
            'checkpoint': Path(path).name,
            'summary': _summary(state, int(checkpoint['global_step'])),
            'versions': {'headrace': __version__, 'lightning': lightning.__version__, 'torch': torch.__version__},
            'state': state,
        }
        return json.dumps(document, indent=2) + '\n'

    @staticmethod
    def _attempt(action: Any, path: str | os.PathLike[str], *args: str) -> None:
        beside = position_file(path)
        try:
            action(beside, *args)
        except Exception as error:  # no store error may end a training
            rank_zero_warn(redact(f'{beside} could not be brought up to date, and is absent or old: {error!r}'))


def _summary(state: Mapping[str, Any], steps: int) -> list[str]:
    entries = loader_entries(state)
    lines = ['Epochs, samples and batches count from 0.']
    lines += [_next_sample(name, entry) for name, entry in entries.items()]
    sizes = ', '.join(str(entry['global_batch_size']) for entry in entries.values())
    lines += [
        f'Next: global batch {state["trainer_batches"]} of the run, of {sizes} samples.',
        f'Finished: {state["trainer_epoch"]} epochs and {steps} optimizer steps.',
    ]
    for name, entry in entries.items():
        lines += _order_and_streams(name, ResumeState.from_dict(entry['position']))
    return lines


def _next_sample(name: str, entry: Mapping[str, Any]) -> str:
    position = ResumeState.from_dict(entry['position'])
    return f'Next: {_of(name)}sample {position.sample_in_epoch} of {position.epoch_size}, epoch {position.epoch}.'


def _order_and_streams(name: str, position: ResumeState) -> list[str]:
    pinned = position.pinned
    streams = ', '.join(f'{stream["name"]} ({stream["samples"]} samples)' for stream in pinned['streams'])
    order = f'{pinned["algorithm"]}, seed {position.shuffle_seed}' if pinned['shuffle'] else 'not shuffled'
    return [
        f'Order: {_of(name)}{order}, {position.num_canonical_nodes} canonical nodes.',
        f'Streams: {_of(name)}{streams}.',
    ]


def _of(name: str) -> str:
    """Prefix of a line about one of several loaders."""
    return f'{name}: ' if name else ''


def write_text(path: str, text: str) -> None:
    """Write a small file atomically to a path, with its folders, or to a URL."""
    store, place = fsspec.core.url_to_fs(path)
    if isinstance(store, LocalFileSystem):
        # A transaction of fsspec's would be atomic too, but is shared with a checkpoint that a thread is writing.
        unfinished = Path(place + '.tmp')
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding='utf-8')
        unfinished.replace(place)
    else:
        store.pipe_file(place, text.encode())


def _remove(path: str) -> None:
    store, place = fsspec.core.url_to_fs(path)
    if store.exists(place):
        store.rm(place)
