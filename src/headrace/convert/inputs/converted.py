"""The inputs that a finished dataset has, so that a later call does only what is new.

For `convert`, the files whose rows it has, so that an append takes new ones only.
``.headrace-inputs.json`` lists the tasks of all conversions to the dataset: their shards, and for each input a digest
of its file's place and one of its version. It is written before the index, and a task counts while the index lists its
shards, or what an erasure has made of them. So neither a kill nor a rollback loses an input.

For `tokenize`, ``.headrace-tokenized.json`` keeps the records of all tasks, with the digests of their inputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from headrace.convert.inputs.records import Inputs, digest_of
from headrace.convert.job import difference
from headrace.convert.report import TaskRecord
from headrace.convert.stored_dataset import INDEX
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConfigError

SHARD: Final = re.compile(r'shard\.\d{5,}\.\d{5,}\.mds(\.\w+)?')
"""Names of the shards of conversions."""
CONVERTED: Final = '.headrace-inputs.json'
RECORDS: Final = '.headrace-tokenized.json'
_DIGITS: Final = 16  # of each of the two digests of an input


class NewInputs(Inputs):
    """Some of the inputs of a source, by their numbers there."""

    def __init__(self, inputs: Inputs, numbers: list[int]) -> None:
        vars(self).update(vars(inputs))
        self.kind, self.are_files, self.gives_batches = inputs.kind, inputs.are_files, inputs.gives_batches
        self._inputs, self._numbers = inputs, numbers
        self.rows = len(numbers) if inputs.rows == len(inputs) else None
        if inputs.sizes is not None and inputs.sizes.each is not None:
            self.sizes = replace(inputs.sizes, each=inputs.sizes.each[numbers])

    def __len__(self) -> int:
        return len(self._numbers)

    def name(self, number: int) -> str:
        return self._inputs.name(self._numbers[number])

    def file(self, number: int) -> str | None:
        return self._inputs.file(self._numbers[number])

    def places(self) -> Iterable[Any]:
        return self._inputs.places()

    def digest(self, begin: int, end: int) -> str | None:
        digests = [self._inputs.digest(number, number + 1) for number in self._numbers[begin:end]]
        return digests[0] if len(digests) == 1 else digest_of(digests)  # an input keeps its own

    def read(self, number: int) -> Iterable[Any]:
        return self._inputs.read(self._numbers[number])


def new_inputs(inputs: Inputs, place: StorePlace) -> Inputs:
    """The inputs whose rows the dataset at `place` lacks; all of them if they are not files.

    Raises:
        ConfigError: files have changed since they were converted, or nothing says which ones were.
    """
    if not len(inputs) or inputs.file(0) is None:
        return inputs
    anew = "pass `append='all'` (--all) to add all rows of the source"
    index = json.loads(place.read(INDEX))
    entries = [*index['shards'], *(json.loads(erased['was']) for erased in (index.get('erased') or {}).values())]
    names = {entry['raw_data']['basename'] for entry in entries}
    found = place.read_if_there(CONVERTED)
    if found is None and any(map(SHARD.fullmatch, names)):
        raise ConfigError(
            f'`append` adds the files of a source that are new, but {place.shown} has no {CONVERTED}, which names '
            f'those that it has: its rows are of a program, or of an older headrace. Give a source that holds the new '
            f'files only, and {anew}.'
        )
    versions: dict[str, set[str]] = {}
    for task in json.loads(found or b'{"tasks": []}')['tasks']:
        for at in range(0, len(task['inputs']), 2 * _DIGITS) if names.issuperset(task['shards'][:1]) else ():
            file, version = task['inputs'][at : at + _DIGITS], task['inputs'][at + _DIGITS : at + 2 * _DIGITS]
            versions.setdefault(file, set()).add(version)
    new = list[int]()
    for number in range(len(inputs)):
        file, version = _digests(inputs, number)
        there = versions.get(file, ())
        if there and version not in there:
            raise ConfigError(
                f'`append` adds the files of a source that are new, but {inputs.file(number)} has changed since '
                f'{place.shown} got its rows, or was converted with another `limit`, and its old rows would stay. Put '
                f'new rows into new files; or {anew} once more.'
            )
        if not there:
            new.append(number)
    return inputs if len(new) == len(inputs) else NewInputs(inputs, new)


def write_converted(inputs: Inputs, records: Collection[TaskRecord], place: StorePlace, *, is_added: bool) -> None:
    """Note the inputs of a conversion's tasks; `is_added`: behind those that are noted already."""
    found = place.read_if_there(CONVERTED) if is_added else None
    names = {entry['raw_data']['basename'] for record in records for entry in record.shards}
    before: list[Mapping[str, Any]] = [] if found is None else json.loads(found)['tasks']
    tasks = [task for task in before if names.isdisjoint(task['shards'])]  # those of shards that were removed
    for record in records if len(inputs) and inputs.file(0) is not None else ():
        shards = [entry['raw_data']['basename'] for entry in record.shards]
        digests = (digest for number in range(record.begin, record.end) for digest in _digests(inputs, number))
        tasks.append({'shards': shards, 'inputs': ''.join(digests)})
    if tasks:
        place.write(CONVERTED, json.dumps({'tasks': tasks}).encode())


def read_kept(place: StorePlace, settings: Mapping[str, Any], *, is_finished: bool) -> dict[str, TaskRecord]:
    """The records of a dataset of tokens, by digest; `is_finished`: no later call has begun to bring it up to date."""
    again = 'choose another `out`, or pass `exist_ok=True` to begin again'
    try:
        kept = json.loads(place.read(RECORDS))
        records = list(map(TaskRecord.of, kept['records']))
        names = {entry['raw_data']['basename'] for record in records for entry in record.shards}
        indexed = {entry['raw_data']['basename'] for entry in json.loads(place.read(INDEX))['shards']}
        differs = difference(kept['plan'], settings)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f'{RECORDS} of {place.shown} is damaged: {error!r}. Correct it, {again}.') from error
    if differs:
        raise ConfigError(
            f'Tokens are brought up to date with the same source, tokenizer and settings, but {place.shown} has '
            f'{differs}. Repeat the first call, {again}.'
        )
    if is_finished and names != indexed:
        raise ConfigError(
            f'Tokens are brought up to date if nothing else has written to the dataset, but the index of '
            f'{place.shown} lists other shards than {RECORDS}, such as {min(names ^ indexed)}. To go on, {again}.'
        )
    return {record.digest: record for record in records if record.digest}


def write_kept(place: StorePlace, settings: Mapping[str, Any], records: Iterable[TaskRecord]) -> None:
    data = json.dumps({'plan': settings, 'records': list(map(asdict, records))}).encode()
    if place.read_if_there(RECORDS) != data:
        place.write(RECORDS, data)


def _digests(inputs: Inputs, number: int) -> tuple[str, str]:
    version = inputs.digest(number, number + 1)
    return digest_of(inputs.file(number))[:_DIGITS], digest_of(version)[:_DIGITS]
