"""The position in a file: a loader's state as JSON, the file beside a checkpoint, or a checkpoint itself."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headrace.errors import ResumeError

__all__ = ['FoundState', 'read_state']


@dataclass(frozen=True, slots=True)
class FoundState:
    """The position in a file."""

    state: dict[str, Any]
    """The loader's state."""
    batches: int | None
    """Global batches trained by then, in all epochs; None: unknown."""


def read_state(path: Path) -> FoundState:
    """Read the position in a file.

    Of a checkpoint of Lightning's or Composer's, only the structure is read: no tensor, and no code that it names runs.

    Raises:
        ResumeError: the file cannot be read, or holds no position of one training loader.
    """
    from headrace.order import find_state

    try:
        is_checkpoint = path.is_file() and zipfile.is_zipfile(path)
        document = _checkpoint(path) if is_checkpoint else json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise ResumeError(f'--state {path} cannot be read: {error.strerror}.') from error
    except ValueError as error:
        raise ResumeError(
            f'--state {path} must hold JSON, or be a checkpoint in one file that torch.save wrote: {error}.'
        ) from error
    if not isinstance(document, dict):
        raise ResumeError(f'--state {path} must hold a JSON object, the state of a loader, got {document!r:.40}.')
    found = cast('dict[str, Any]', document)
    holder = found.get('state', found)
    batches = cast('dict[str, Any]', holder).get('trainer_batches') if isinstance(holder, dict) else None
    return FoundState(dict(find_state(found)), batches)


def _checkpoint(path: Path) -> dict[str, Any]:
    """The position in a checkpoint, in the form of the file beside one of Lightning's."""
    with zipfile.ZipFile(path) as archive:
        name = next((name for name in archive.namelist() if name.endswith('data.pkl')), None)
        if name is None:
            raise ResumeError(f'--state {path} is an archive, but no checkpoint that torch.save wrote.')
        with archive.open(name) as file:
            try:
                content = _Structure(file).load()
            except Exception as error:  # damaged pickles raise anything
                raise ResumeError(f'--state {path} is a checkpoint that cannot be read: {error!r}.') from error
    document = _of_lightning(content) or _of_composer(content)
    if document is None:
        raise ResumeError(
            f'--state {path} is a checkpoint without a position of the training data: under Lightning it comes from '
            f'StreamingDataModule, under Composer from streaming_data_spec. Give what `loader.state_dict()` returned, '
            f'as JSON.'
        )
    return document


def _of_lightning(content: object) -> dict[str, Any] | None:
    state = _at(content, 'callbacks', 'headrace.position')
    return {'state': state} if isinstance(state, dict) and state else None


def _of_composer(content: object) -> dict[str, Any] | None:
    position = _at(content, 'state', 'dataset_state', 'train')
    if not isinstance(position, dict):
        return None
    time = _at(content, 'state', 'timestamp')
    batches = _at(time, 'Timestamp', 'batch')
    return {'state': {'position': position, 'trainer_batches': batches if isinstance(batches, int) else None}}


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = cast('Mapping[str, object]', value).get(key) if isinstance(value, Mapping) else None
    return value


class _Inert:
    """A stand-in for an object of any class: it accepts all operations of a pickle, and does nothing."""

    def __new__(cls, *_: object, **__: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> _Inert:
        return self

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        pass

    def extend(self, values: object) -> None:
        pass

    def add(self, value: object) -> None:
        pass


class _Structure(pickle.Unpickler):
    """Reads dicts, lists, numbers and texts of a pickle, and replaces all else by inert objects."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        return OrderedDict if (module_name, global_name) == ('collections', 'OrderedDict') else _Inert

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - a tensor, of which nothing is read
        return _Inert()
