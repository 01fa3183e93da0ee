"""Files of an unfinished conversion, with which a restart continues it.

``.headrace-convert/plan.json`` names the inputs and the settings. It is written first, gets the report before the index
is written, and is removed last. Beside an index it says that only the removal is left. In a folder it becomes
``.headrace-converted`` before its own folder is removed.

``.headrace-convert/task-00000007.json`` is the record of a finished task. It is written after all shards of the task.
Each file appears whole or not at all, in folders and in stores. So a task without a record is done again, and its new
shards replace those that a killed worker has left.
"""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.storage import Retry, Store

__all__ = [
    'BASE',
    'DONE',
    'FIRST_SHARD',
    'FOLDER',
    'PLAN',
    'REPORT',
    'ROW_BYTES',
    'InputError',
    'TaskRecord',
    'check_plan',
    'get_bytes',
    'put_bytes',
    'read_record',
]

FOLDER: Final = '.headrace-convert'
PLAN: Final = f'{FOLDER}/plan.json'
DONE: Final = '.headrace-converted'
ROW_BYTES: Final = 'row_bytes'
"""Key of the plan: an estimate, which a restart must not make anew. Rows may be random."""
REPORT: Final = 'report'
"""Key of the plan: the report of a conversion that has done all tasks."""

BASE: Final = 'base'
"""Key of the plan: the name of the kept index of the dataset that is added to."""
FIRST_SHARD: Final = 'first_shard'
"""Key of the plan: the first number of a new shard."""


@dataclass(frozen=True, slots=True)
class InputError:
    """An input, or a row of one, that was left out."""

    input: str
    """The path, URL or row."""
    error: str
    """Class and message of the exception."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A finished task."""

    task: int
    begin: int
    end: int
    digest: str | None
    """Of its inputs."""
    rows: int
    raw_bytes: int
    """Bytes of its shards before compression."""
    stored_bytes: int
    """Bytes of its shards as they are stored."""
    shards: tuple[dict[str, Any], ...]
    """Their entries in the index."""
    errors: tuple[InputError, ...]
    nulls: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of each column that has any."""
    dropped: tuple[str, ...] = ()
    """Columns of samples that are not converted."""

    @staticmethod
    def key(task: int) -> str:
        """The name of a task's record."""
        return f'{FOLDER}/task-{task:08}.json'

    def dump(self) -> bytes:
        """The record as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> TaskRecord:
        """Read what `dump` gave."""
        found = json.loads(data)
        errors = tuple(InputError(**error) for error in found.pop('errors'))
        dropped = tuple(found.pop('dropped', ()))
        return cls(shards=tuple(found.pop('shards')), errors=errors, dropped=dropped, **found)


def check_plan(found: bytes, plan: Mapping[str, object], out: str, *, append: bool) -> dict[str, Any]:
    """Refuse to continue a conversion that began with other inputs or settings.

    Returns:
        The plan that was found, with those of `ROW_BYTES`, `BASE`, `FIRST_SHARD` and `REPORT` that it has.

    Raises:
        ConfigError: it began with others; the message gives both values.
    """
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
    added = (ROW_BYTES, BASE, FIRST_SHARD, REPORT)
    names = [name for name in {**before, **plan} if name not in added and before.get(name) != plan.get(name)]
    if not names:
        return before
    name, old, new = names[0], before.get(names[0]), plan.get(names[0])
    raise ConfigError(
        f'A restart continues an unfinished conversion with the same inputs and settings, but {out} holds one with '
        f'{name} {_shown(old, new)}, and got {_shown(new, old)}. Repeat the first call, choose another `out`, or '
        f'{anew}.'
    )


def _shown(value: object, other: object) -> str:
    """A setting, or only those of its keys that differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: value[key] for key in value if value[key] != other.get(key)}
    text = json.dumps(value)
    return text if len(text) <= 200 else f'{text[:200]}...'


def read_record(store: Store, key: str, retry: Retry) -> TaskRecord:
    """The record of a finished task."""
    return TaskRecord.parse(get_bytes(store, key, retry))


def get_bytes(store: Store, key: str, retry: Retry) -> bytes:
    """An object, whole."""

    def attempt() -> bytes:
        data = io.BytesIO()
        store.get(key, data)
        return data.getvalue()

    return retry.call(f'Downloading {store.url}/{key}', attempt)


def put_bytes(store: Store, key: str, data: bytes, retry: Retry) -> None:
    """Store an object, whole."""
    retry.call(f'Uploading {store.url}/{key}', lambda: store.put(key, io.BytesIO(data), size=len(data)))
