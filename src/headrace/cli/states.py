"""The position in a checkpoint, wherever a trainer or a loop put it: JSON, a file of torch.save, or a folder."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import pickle
import zipfile
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from headrace.errors import ResumeError

_POSITION: Final = frozenset({'epoch', 'sample_in_epoch', 'num_canonical_nodes', 'shuffle_seed'})
"""Keys of every position."""
_OF_HEADRACE: Final = frozenset({'headrace', 'initial_physical_nodes', 'epoch_size', 'config', 'trainer_batches'})
_STEPS: Final = frozenset({'step', 'steps', 'global_step', 'iteration'})  # names under which loops count steps
_OF_TRAINERS: Final = ('callbacks.headrace.position', 'state.dataset_state.train')
"""The places of the training position under Lightning and Composer, whose checkpoints hold others beside it."""


@dataclass(frozen=True, slots=True)
class FoundState:
    state: dict[str, Any]  # the loader's state
    batches: int | None  # global batches trained by then, in all epochs; None: unknown
    steps: frozenset[int] = frozenset()  # steps that it counts under any name: of batches, or of an optimizer


def read_state(path: Path, key: str | None = None) -> FoundState:
    """Read the position in a checkpoint, or the one at `key`; no tensor is read, and no code runs."""
    from headrace.order import find_state

    is_archive = path.is_dir() or (path.is_file() and zipfile.is_zipfile(path))
    try:
        content = _of_folder(path) if path.is_dir() else _of_file(path)
    except OSError as error:
        raise ResumeError(f'--state {path} cannot be read: {error.strerror}.') from error
    except pickle.UnpicklingError as error:
        raise ResumeError(f'--state {path} is a checkpoint that cannot be read: {error}.') from error
    except ValueError as error:
        raise ResumeError(f'--state {path} must hold JSON, or what torch.save wrote: {error}.') from error
    if not isinstance(content, dict):
        raise ResumeError(f'--state {path} must hold a JSON object, the state of a loader, got {content!r:.40}.')
    mappings = list(_mappings(cast('dict[Any, Any]', content)))
    states = {'.'.join(at): (mapping, holder) for at, mapping, holder in mappings if mapping.keys() >= _POSITION}
    if not states and not is_archive:
        return FoundState(dict(find_state(cast('dict[str, Any]', content))), None)  # loading it says what is missing
    if not states:
        raise ResumeError(
            f'--state {path} is a checkpoint without a position of the training data: under Lightning it comes from '
            f'StreamingDataModule, under Composer from streaming_data_spec, in a loop from `loader.state_dict()`.'
        )
    if key is not None and key not in states:
        raise ResumeError(f'--state-key must be one of {", ".join(states)}, got {key!r}.')
    of_trainer = [name for name in states if any(f'.{place}.' in f'.{name}.' for place in _OF_TRAINERS)]
    names = of_trainer or list(states) if key is None else [key]
    position, holder = states[names[0]]
    if any(states[name][0] != position for name in names):
        raise ResumeError(f'--state {path} holds several positions: {", ".join(names)}. Choose one by --state-key.')
    batches = holder.get('trainer_batches')
    if of_trainer and batches is None:
        batches = _at(content, 'state', 'timestamp', 'Timestamp', 'batch')  # of Composer
    steps = (count for _, mapping, _ in mappings for step, count in mapping.items() if step in _STEPS)
    return FoundState(
        dict(position), batches if isinstance(batches, int) else None, frozenset(n for n in steps if type(n) is int)
    )


def _mappings(content: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[Any, Any], Mapping[Any, Any]]]:
    """All mappings in nested mappings and lists, outer ones first: the keys to each, the mapping, the one around it."""
    waiting: deque[tuple[tuple[str, ...], Any, Mapping[Any, Any]]] = deque([((), content, content)])
    seen = set[int]()
    while waiting:
        at, value, around = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            yield at, cast('Mapping[Any, Any]', value), around
        items = cast('Any', value.items() if isinstance(value, Mapping) else enumerate(value))
        for key, inner in items:
            if isinstance(inner, (Mapping, list, tuple)):
                waiting.append(((*at, str(key)), inner, value if isinstance(value, Mapping) else around))


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = cast('Mapping[str, object]', value).get(key) if isinstance(value, Mapping) else None
    return value


def _of_file(path: Path) -> Any:
    if not (path.is_file() and zipfile.is_zipfile(path)):
        return json.loads(path.read_text(encoding='utf-8'))
    with path.open('rb') as file:
        return _saved(file)


def _of_folder(folder: Path) -> dict[str, Any]:
    """The content of a folder's files by their names; of one of `torch.distributed.checkpoint`, what it saved."""
    content: dict[str, Any] = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and (file.suffix == '.json' or zipfile.is_zipfile(file)):
            with contextlib.suppress(ValueError, pickle.UnpicklingError):  # of something else
                content[file.name] = _of_file(file)
    if (folder / '.metadata').is_file():
        content |= _of_distributed(folder)
    if not any(mapping.keys() >= _POSITION for _, mapping, _ in _mappings(content)):
        raise IsADirectoryError(errno.EISDIR, 'Is a directory, without a position in its files')
    return content


def _of_distributed(folder: Path) -> dict[str, Any]:
    """The values of positions and steps in a checkpoint of `torch.distributed.checkpoint`, in their mappings."""
    content: dict[str, Any] = {}
    with (folder / '.metadata').open('rb') as file:
        metadata = _unpickled(file)
    try:
        for index, stored in metadata.kept['storage_data'].items():
            name = index.kept['fqn']
            *keys, last = (metadata.kept['planner_data'] or {}).get(name, name.split('.'))
            if last in _POSITION | _OF_HEADRACE | _STEPS:
                with (folder / Path(stored.kept['relative_path']).name).open('rb') as file:
                    file.seek(stored.kept['offset'])
                    value = _saved(io.BytesIO(file.read(stored.kept['length'])))
                holder = content
                for key in keys:
                    holder = holder.setdefault(key, {})
                holder[last] = value
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise pickle.UnpicklingError(f'.metadata is damaged, or of another version of torch: {error!r}') from error
    return content


def _saved(file: IO[bytes]) -> Any:
    with zipfile.ZipFile(file) as archive:
        name = next((name for name in archive.namelist() if name.endswith('data.pkl')), None)
        if name is None:
            raise pickle.UnpicklingError('an archive that torch.save did not write')
        with archive.open(name) as structure:
            return _unpickled(structure)


def _unpickled(file: IO[bytes]) -> Any:
    try:
        return _Structure(file).load()
    except Exception as error:  # damaged pickles raise anything
        raise pickle.UnpicklingError(repr(error)) from error


class _Inert:
    """A stand-in for an object of any class: it accepts all operations of a pickle, and keeps the object's state."""

    kept: Any = None

    def __new__(cls, *_: object, **__: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> _Inert:
        return self

    def __setstate__(self, state: object) -> None:
        self.kept = state

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
