"""Files of an unfinished conversion, with which a restart continues it.

``.headrace-convert/plan.json`` names the inputs and the settings. It is written first, gets the report before the index
is written, and is removed last. Beside an index it says that only the removal is left. In a folder it becomes
``.headrace-converted`` before its own folder is removed.

``.headrace-convert/task-00000007.json`` is the record of a finished task. It is written after all shards of the task.
Each file appears whole or not at all, in folders and in stores. So a task without a record is done again, and its new
shards replace those that a killed worker has left.

In a folder, kernel locks keep conversions and their workers apart. Stores have no locks: the user sees to it that one
conversion at a time writes to a prefix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.convert.report import InputError
from headrace.errors import ConfigError, ConversionError
from headrace.redaction import warn
from headrace.storage import Store
from headrace.storage.cache.locks import held, hold, lock_file, try_lock_file
from headrace.storage.output import make_folder, mapped_lock_errors
from headrace.storage.stores.local import LocalStore, mapped_output_errors

FOLDER: Final = '.headrace-convert'
PLAN: Final = f'{FOLDER}/plan.json'
DONE: Final = '.headrace-converted'
ROW_BYTES: Final = 'row_bytes'  # Key of the plan: an estimate, which a restart must not make anew. Rows may be random.
REPORT: Final = 'report'  # key of the plan: the report of a conversion that has done all tasks

BASE: Final = 'base'  # key of the plan: the name of the kept index of the dataset that is added to
FIRST_SHARD: Final = 'first_shard'  # key of the plan: the first number of a new shard

CUT: Final = 'cut'
"""Key of the plan of `tokenize`: the digest of all tasks. Numbers of shards hold for these tasks only."""

_PARENT: Final = f'{FOLDER}/parent.lock'
_WORKERS: Final = f'{FOLDER}/workers.lock'
LOCKS: Final = frozenset({_PARENT, _WORKERS})  # files in the folder of an unfinished conversion


@dataclass(frozen=True, slots=True)
class TaskRecord:
    task: int
    begin: int
    end: int
    digest: str | None  # of its inputs
    rows: int
    raw_bytes: int  # bytes of its shards before compression
    stored_bytes: int  # bytes of its shards as they are stored
    shards: tuple[dict[str, Any], ...]  # their entries in the index
    errors: tuple[InputError, ...]
    nulls: Mapping[str, int] = field(default_factory=dict[str, int])  # of each column that has any
    dropped: tuple[str, ...] = ()  # columns of samples that are not converted
    tokens: int = 0  # of all rows; of `tokenize`
    without_tokens: int = 0  # documents that were left out, since they have no token

    @staticmethod
    def key(task: int) -> str:
        return f'{FOLDER}/task-{task:08}.json'

    def dump(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def of(cls, found: dict[str, Any]) -> TaskRecord:
        errors = tuple(InputError(**error) for error in found.pop('errors'))
        dropped = tuple(found.pop('dropped', ()))
        return cls(shards=tuple(found.pop('shards')), errors=errors, dropped=dropped, **found)


def check_plan(found: bytes, plan: Mapping[str, object], out: str, *, append: bool) -> dict[str, Any]:
    """The plan that was found; ConfigError: it is that of a conversion with other inputs or settings."""
    try:
        before: dict[str, Any] = json.loads(found)
    except ValueError:
        before = {}
    anew = 'pass `exist_ok=True` to begin anew'
    if BASE in before:
        anew = f'remove {FOLDER} there to give the new samples up'
        if not append:
            raise ConfigError(
                f'A restart continues an unfinished conversion with the same settings, but {out} holds one that adds '
                f'to a finished dataset. Pass `append=True`, choose another `out`, or {anew}.'
            )
    differs = difference(before, plan)
    if not differs:
        return before
    raise ConfigError(
        f'A restart continues an unfinished conversion with the same inputs and settings, but {out} holds one with '
        f'{differs}. Repeat the first call, choose another `out`, or {anew}.'
    )


def difference(before: Mapping[str, Any], plan: Mapping[str, object]) -> str:
    """The first setting in which two plans differ, with both values; '' if there is none."""
    added = (ROW_BYTES, BASE, FIRST_SHARD, REPORT, CUT)
    names = [name for name in {**before, **plan} if name not in added and before.get(name) != plan.get(name)]
    if not names:
        return ''
    name, old, new = names[0], before.get(names[0]), plan.get(names[0])
    return f'{name} {_shown(old, new)}, and got {_shown(new, old)}'


def _shown(value: object, other: object) -> str:
    """A setting, or only those of its keys that differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: value[key] for key in value if value[key] != other.get(key)}
    text = json.dumps(value)
    return text if len(text) <= 200 else f'{text[:200]}...'


@contextlib.contextmanager
def claimed(store: Store) -> Generator[None]:
    """Hold a folder for one conversion, once workers of a killed one have ended; a ConversionError if one runs."""
    if not isinstance(store, LocalStore):
        yield
        return
    root = store.root
    make_folder(root / FOLDER)
    parent = _open(root / _PARENT)
    with held(parent):
        # Another one may have ended, and removed the file, after it was opened here.
        with mapped_lock_errors(root / _PARENT):
            is_free = try_lock_file(parent, root / _PARENT)
        if not is_free or not _is_there(parent, root / _PARENT):
            raise ConversionError(f'Another conversion is writing to {root}. Wait for it, or choose another `out`.')
        workers = _open(root / _WORKERS)
        with held(workers), mapped_lock_errors(root / _WORKERS):
            lock_file(workers, root / _WORKERS)
        try:
            yield
        finally:
            if not (root / PLAN).exists():
                _remove(root)


def claimed_by_worker(store: Store) -> None:
    """Have the next conversion wait for the end of this worker process."""
    if isinstance(store, LocalStore):
        handle = _open(store.root / _WORKERS)
        hold(handle)
        lock_file(handle, store.root / _WORKERS, shared=True)


def _is_there(handle: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def _remove(root: Path) -> None:
    try:
        with mapped_output_errors(root):
            for name in LOCKS:
                (root / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a killed conversion has left records
                (root / FOLDER).rmdir()
            (root / DONE).unlink(missing_ok=True)
    except OSError as error:
        warn(f'Files of a conversion that has ended stay in {root}. The same conversion removes them. {error}')


def _open(path: Path) -> int:
    with mapped_output_errors(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
