"""A job folder: the plan of a job, the records of its finished tasks, and the locks of the processes that do them.

A job is cut into numbered tasks, such as one for each shard. Any process may do a task, and `add` its record.

- ``plan.json`` has the settings of the job, which `difference` compares with those of a restart. It is written before
  the first task, and removed last.
- ``task-00000007.json`` is the record of a finished task: what it wrote, with bytes and hashes. It comes after all that
  the task wrote, and each file appears whole or not at all, in folders and in stores. So a task without a record is
  done again, and what it writes replaces what a killed process has left.
- After the last task the plan gets the result of all (`finish`), so no record is needed from then on. The caller's last
  step stores it, as a new index does. A restart that finds a result repeats that step. Then `remove` takes the records,
  and last the plan. In a folder, the plan stands beside the job's folder until that is gone.

In a folder, kernel locks keep two jobs apart, and a new one waits for the workers of a killed one. They end with their
processes. Stores have no locks: the user sees to it that one job at a time writes to a prefix.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConversionError
from headrace.errors.redaction import warn
from headrace.storage.cache.locks import held, hold, lock_file, release
from headrace.storage.output import lock_output, make_folder, mapped_lock_errors, open_lock
from headrace.storage.stores.local import LocalStore, mapped_output_errors

CONVERSION: Final = '.headrace-convert'  # The folder of a conversion.
PLAN: Final = f'{CONVERSION}/plan.json'
_THREADS: Final = 16


class JobFolder:
    """The files of a job, in a folder beside those that it makes. `name`: of that folder."""

    def __init__(self, place: StorePlace, name: str = CONVERSION) -> None:
        self.place, self._name = place, name
        self._plan_key, self._done = f'{name}/plan.json', f'{name}-done'  # The other one: while the folder is removed.
        self._parent, self._workers = f'{name}/parent.lock', f'{name}/workers.lock'
        self._task = re.compile(rf'{re.escape(name)}/task-(\d{{8}})\.json')
        self.plan: dict[str, Any] = {}
        """Of the unfinished job: its `settings`, and facts that a restart takes over. Empty if there is none."""
        self.records: dict[int, dict[str, Any]] = {}
        """Of the finished tasks, by number."""

    @property
    def result(self) -> Any:
        """The result of all tasks, or None if some may be left to do."""
        return self.plan.get('result')

    @property
    def locks(self) -> frozenset[str]:
        """Keys of the files whose locks claim the job."""
        return frozenset({self._parent, self._workers})

    def read(self) -> bool:
        """Read the plan and the records of an unfinished job; whether there is one."""
        keys = [info.key for info in self.place.list(self._name)]
        self.plan = {}
        for key in {self._plan_key, self._done}.intersection(keys):
            self.plan = {'settings': {'version': 'of an older headrace, or damaged'}}
            with contextlib.suppress(ValueError):
                self.plan |= json.loads(self.place.read(key))
        tasks = {int(match[1]): match[0] for match in map(self._task.fullmatch, keys) if match}
        with ThreadPoolExecutor(_THREADS) as threads:
            self.records = dict(zip(tasks, map(json.loads, threads.map(self.place.read, tasks.values())), strict=True))
        return bool(self.plan)

    def begin(self, settings: Mapping[str, Any], **facts: Any) -> None:
        self._write({'settings': dict(settings), **facts})

    def finish(self, result: Any) -> None:
        """Store the result of all tasks, before the last step shows it."""
        self._write({**self.plan, 'result': result})

    def add(self, number: int, record: Mapping[str, Any]) -> None:
        """Store the record of a task, after all that it wrote."""
        self.place.write(self._task_key(number), json.dumps(record).encode())
        self.records[number] = dict(record)

    def reopen(self, number: int) -> None:
        """Forget a record whose files are about to be replaced: a restart must not take its task for finished."""
        if self.records.pop(number, None) is not None:
            self.place.delete(self._task_key(number))

    def delete(self, keys: Collection[str]) -> None:
        """Delete files beside the job, many at a time."""
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self.place.delete, keys))

    def empty(self, keys: Collection[str], first: str) -> None:
        """Delete everything at the place, and `first` what makes it a dataset; then the plan."""
        for key in (first, self._plan_key):
            self.delete({key} & set(keys))
        self.delete(keys)
        self.plan, self.records = {}, {}

    def remove(self) -> None:
        """Remove the records, then the plan, of a job that is done."""
        store = self.place.store
        self.plan, self.records = {}, {}
        kept = {*self.locks, self._plan_key}
        self.delete([info.key for info in self.place.list(f'{self._name}/') if info.key not in kept])
        self.place.remove_unfinished(['', self._name])
        if not isinstance(store, LocalStore):
            self.place.delete(self._plan_key)
            return
        with mapped_output_errors(store.root), contextlib.suppress(FileNotFoundError):
            (store.root / self._plan_key).replace(store.root / self._done)
        self._remove_folder(store.root)

    def remove_or_warn(self) -> None:
        """As `remove`, where files that stay do no harm: a restart removes them."""
        try:
            self.remove()
        except OSError as error:
            warn(
                f'The job at {self.place.shown} is done, but files in {self._name} could not be removed. The same call '
                f'removes them. The reason: {error}'
            )

    @contextlib.contextmanager
    def claimed(self) -> Generator[None]:
        """Hold a folder for one job, once workers of a killed one have ended; a ConversionError if another one runs."""
        store = self.place.store
        if not isinstance(store, LocalStore):
            yield
            return
        root = store.root
        make_folder(root / self._name)
        parent = None
        with contextlib.suppress(FileNotFoundError):  # of another one that has ended, and removed it
            parent = lock_output(root / self._parent)
        if parent is None:
            raise ConversionError(f'Another conversion is writing to {root}. Wait for it, or choose another `out`.')
        with contextlib.ExitStack() as claim:
            claim.callback(release, parent)
            workers = open_lock(root / self._workers)
            with held(workers), mapped_lock_errors(root / self._workers):
                lock_file(workers, root / self._workers)
            try:
                yield
            finally:
                if (root / self._name).exists() and not any(map(self.place.has, (self._plan_key, self._done))):
                    self.remove_or_warn()  # of a call that began nothing

    def claim_by_worker(self) -> None:
        """Have the next job wait for the end of this worker process."""
        if isinstance(self.place.store, LocalStore):
            path = self.place.store.root / self._workers
            handle = open_lock(path)
            hold(handle)
            lock_file(handle, path, shared=True)

    def _task_key(self, number: int) -> str:
        return f'{self._name}/task-{number:08}.json'

    def _write(self, plan: Mapping[str, Any]) -> None:
        self.plan = dict(plan)
        self.place.write(self._plan_key, json.dumps(plan, indent=1).encode())

    def _remove_folder(self, root: Path) -> None:
        with mapped_output_errors(root):
            for name in self.locks:
                (root / name).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (root / self._name).rmdir()
            (root / self._done).unlink(missing_ok=True)


def difference(before: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The first setting in which two jobs differ, with both values; '' if there is none."""
    name = next((name for name in {**before, **settings} if before.get(name) != settings.get(name)), None)
    if name is None:
        return ''
    old, new = before.get(name), settings.get(name)
    return f'{name} {_shown(old, new)}, and got {_shown(new, old)}'


def _shown(value: object, other: object) -> str:
    """A setting, or only those of its keys that differ."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: value[key] for key in value if value[key] != other.get(key)}
    text = json.dumps(value)
    return text if len(text) <= 200 else f'{text[:200]}...'
