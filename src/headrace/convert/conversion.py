"""`convert`: from other data to MDS shards, with many processes.

- The inputs are cut into tasks by a rule that does not know the number of workers (`tasks`). Each task writes shards of
  its own: ``shard.00007.00002.mds`` is the third shard of task 7. The index lists them by task. So the dataset is the
  same for any number of workers.
- A finished task leaves a record (`record`). A restart does the other tasks only. The index comes last, so an
  unfinished dataset has none. The records go after it, and the plan last. A restart that finds index and plan removes
  what is left of both.
- An append begins behind the shard with the largest number. The old index stays until the new one, with the old entries
  first, replaces it; a copy is kept (`merge`).
- The parent reads no inputs, except iterables, which only one process can read. It sends those to the workers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from tqdm import tqdm

from headrace.convert.apart import check_apart, check_keeps
from headrace.convert.inputs.choose import choose_inputs
from headrace.convert.inputs.converted import (
    RECORDS,
    SHARD,
    new_inputs,
    read_kept,
    write_converted,
    write_kept,
)
from headrace.convert.inputs.programs import ENOUGH, IterableSamples, RowInputs, columns_of, measure
from headrace.convert.inputs.records import BadRow, Inputs, digest_of
from headrace.convert.job import CONVERSION, JobFolder, difference
from headrace.convert.merge import check_finished, keep_index, replace_index
from headrace.convert.report import ConversionReport, TaskRecord
from headrace.convert.stored_dataset import INDEX
from headrace.convert.tasks import Job, News, OnError, Task, cut, cut_by_content, run_tasks, tasks_of_rows
from headrace.dataset.arguments import check_kind
from headrace.dataset.writing.place import StorePlace
from headrace.dataset.writing.start import next_number
from headrace.errors import ConfigError, ConversionError
from headrace.errors.redaction import logger_of
from headrace.format import MDSEncoder, Schema, parse_index
from headrace.format.encodings.registry import get_mds_encoding
from headrace.format.index import dump_entries
from headrace.format.shards import NAME_MEANINGS, differing_meanings
from headrace.storage import Retry, StoreOptions, open_store
from headrace.storage.output import check_output

_VERSION: Final = 1  # of the plan: another version of headrace may cut tasks in another way
_SHOWN: Final = 10  # errors that are logged, and returned, with `on_error='skip'`

# Facts of the plan.
_ROW_BYTES: Final = 'row_bytes'  # an estimate, which a restart must not make again: rows may be random
_BASE: Final = 'base'  # the name of the kept index of the dataset that is added to
_FIRST_SHARD: Final = 'first_shard'  # the number in the names of the first task's shards
_CUT: Final = 'cut'  # the digest of all tasks of `tokenize`: numbers of shards hold for these tasks only
_FACTS: Final = (_ROW_BYTES, _BASE, _FIRST_SHARD, _CUT)
_log = logger_of(__name__)


def convert(
    source: Any,
    out: str | Path,
    *,
    function: Callable[[Any], Any] | None = None,
    columns: Mapping[str, str] | Sequence[str] | None = None,
    format: str | None = None,  # noqa: A002 - as in a stream
    format_options: Mapping[str, Any] | None = None,
    split: str | None = None,
    workers: int = 1,
    on_error: OnError = 'stop',
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int | str | None = 1 << 26,
    cost: str | None = None,
    limit: int | None = None,
    exist_ok: bool = False,
    append: bool | Literal['all'] = False,
    progress_bar: bool = True,
    start_method: str | None = None,
    allow_unsafe_types: bool = False,
    source_options: StoreOptions | None = None,
    out_options: StoreOptions | None = None,
    retry: int = 2,
) -> ConversionReport:
    """Write a dataset of MDS shards from other data.

    The dataset is the same for any number of workers. After a crash, the same call does only what is left to do.

    Args:
        source: one of

            - a folder, URL, file or glob. It holds images by class (``ROOT/CLASS/NAME.jpg``), or data of a format of
              `headrace.sources`, such as Parquet;
            - a map-style dataset: of Hugging Face, torch or torchvision, or a list of samples;
            - a `DataLoader`, or a data module of Lightning, whose loader `split` names. The samples that it reads of
              its dataset are taken in the dataset's order, without its `collate_fn`;
            - an iterable of samples, which one process reads and the others encode;
            - with `function`: a sequence of inputs, such as paths.

            A sample is a mapping from column to value, or a tuple.
        out: folder or URL of the new dataset.
        function: makes of an input a sample, an iterable of samples, or None. With processes that are not forked, it
            stands at the top of a module. Each of 256 inputs or fewer has shards of its own, so few large inputs are
            better than many small ones.
        columns: encodings by column; or names of the columns to convert. None: all of them, with the encodings of the
            format, or those that fit the first samples. For tuples, the names in order.
        format: name of the source's format; None: found by the names of its files.
        format_options: options of the named format, as in a stream.
        split: a sub-folder, or files with this name, as in a stream; for paths and URLs. Of a data module: 'train' (the
            default), 'val', 'test' or 'predict'.
        workers: number of processes. 1: this process.
        on_error: for a bad input: 'stop', 'skip' (count it, log the first ten), or 'collect' (also list all in the
            report and in ``errors.jsonl`` beside the index). Of an input with many samples those before the error are
            kept.
        compression: 'zstd', 'br', 'bz2', 'gz' or 'snappy', with a level as in 'zstd:7'.
        hashes: names of hashes to store in the index, sorted.
        size_limit: bytes of a shard before compression, as a number or text ('64mb'); None for a single shard.
        cost: a column of the new dataset: shards store its numbers or lengths so that streams with this `cost` start
            without reading them.
        limit: number of rows to convert, from the first. With `function`: number of inputs.
        exist_ok: whether to empty an `out` that holds something, or an unfinished conversion of another kind. An `out`
            that holds an input is refused.
        append: whether to add to the finished dataset that `out` holds, if there is one. Its columns and encodings
            hold for the new samples, and its shards stay as they are. The old index is kept: see `rollback`. Of a
            source of files, those are added that `out` does not have already. 'all': all samples of any source.
        progress_bar: whether to show one.
        start_method: of processes: 'fork', 'spawn' or 'forkserver'. None: Python's default.
        allow_unsafe_types: whether columns may have an encoding that runs code when it is read.
        source_options: how to reach the store of `source`.
        out_options: how to reach the store of `out`.
        retry: attempts after the first for a request that fails.

    Raises:
        ConfigError: an argument breaks a rule; or `out` holds an unfinished conversion with other inputs or settings;
            or files that `append` finds in `out` have changed, or nothing says which files `out` has.
        FileExistsError: `out` holds something else, and neither `exist_ok` nor `append` allows it.
        ConversionError: an input is bad, or a worker process died. The message names the input.
        StorageError: a store failed.
    """
    begin = time.monotonic()
    if append != 'all':
        check_kind('append', append, bool)
    check_settings(workers=workers, on_error=on_error, limit=limit, exist_ok=exist_ok)
    if exist_ok and append:
        raise ConfigError(
            '`exist_ok` of convert empties `out`, and `append` adds to it, but both are set. Pass one of the two.'
        )
    if isinstance(columns, str):
        raise ConfigError(
            f'`columns` of convert is a list or a mapping, but is the text {columns!r}. Pass [{columns!r}].'
        )
    check_output(out)
    check_apart(source, out)
    attempts = Retry(attempts=1 + retry)
    chosen = choose_inputs(
        source,
        function=function,
        columns=None if columns is None else list(columns),
        format=format,
        format_options=format_options,
        split=split,
        limit=limit,
        allow_unsafe_types=allow_unsafe_types,
        options=source_options or StoreOptions(),
        retry=attempts,
    )
    inputs = chosen.first if isinstance(chosen, IterableSamples) else chosen
    place = StorePlace(open_store(str(out), out_options or StoreOptions()), attempts)
    before = _schema_at(place) if append else None
    encodings = encodings_of(inputs, columns) if before is None else _encodings_as_before(inputs, columns, before)
    encoder = MDSEncoder(encodings, compression=compression, hashes=hashes, size_limit=size_limit, cost=cost)
    new = inputs if before is None or append == 'all' else new_inputs(inputs, place)
    if new is not inputs:
        if not len(new) and not JobFolder(place).read():
            return _nothing_new(inputs, encodings, place, seconds=time.monotonic() - begin)
        chosen = new
    job = Job(
        inputs=new,
        columns=encodings,
        meanings=_meanings(inputs, encodings),
        out=str(out),
        options=out_options or StoreOptions(),
        compression=encoder.compression,
        hashes=encoder.hashes,
        size_limit=encoder.size_limit,
        cost=cost,
        settings={} if cost is None else {'cost': cost},
        source_columns=encodings,
        on_error=on_error,
        retry=attempts,
    )
    report = Conversion(job, place, chosen).do(
        exist_ok=exist_ok, append=bool(append), workers=workers, start_method=start_method, progress_bar=progress_bar
    )
    return replace(report, seconds=time.monotonic() - begin, inputs_there=len(inputs) - len(new))


def _nothing_new(inputs: Inputs, columns: dict[str, str], place: StorePlace, *, seconds: float) -> ConversionReport:
    counts = dict.fromkeys(
        ('inputs', 'rows', 'shards', 'raw_bytes', 'stored_bytes', 'tasks_done_before', 'num_errors'), 0
    )
    return ConversionReport(
        out=place.shown,
        kind=inputs.kind,
        columns=columns,
        seconds=seconds,
        errors=(),
        ledger=inputs.ledger,
        rows_before=sum(entry['samples'] for entry in json.loads(place.read(INDEX))['shards']),
        inputs_there=len(inputs),
        **counts,
    )


def check_settings(*, workers: int, on_error: str, limit: int | None, exist_ok: bool) -> None:
    for name, value, kind in (('workers', workers, int), ('limit', limit, int), ('exist_ok', exist_ok, bool)):
        check_kind(name, value, kind)
    if workers < 1 or on_error not in ('stop', 'skip', 'collect') or (limit is not None and limit < 1):
        raise ConfigError(
            f"`workers` and `limit` of a conversion are 1 or more, and `on_error` is 'stop', 'skip' or 'collect', but "
            f'got {workers}, {limit} and {on_error!r}.'
        )


def encodings_of(inputs: Inputs, columns: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    given = dict(columns) if isinstance(columns, Mapping) else {}
    available = inputs.columns
    if available is None and (not given or not isinstance(columns, Mapping)):
        available = columns_of(_first_samples(inputs))
    if available is None:
        return given
    wanted = list(available) if columns is None else list(columns)
    missing = [name for name in wanted if name not in available]
    if missing:
        raise ConfigError(f'The source has the columns {list(available)}, but got {missing[0]!r} to be converted.')
    return {name: given.get(name, available[name]) for name in wanted}


def _schema_at(place: StorePlace) -> Schema | None:
    index = place.read_if_there(INDEX)
    if index is None:
        return None
    shards = parse_index(index, source=f'{place.shown}/{INDEX}', allow_unsafe_types=True, allow_empty=True)
    if not len(shards):
        return None
    schema = shards[len(shards) - 1].schema
    if schema.format != 'mds':
        raise ConfigError(
            f'`append` of convert adds to a dataset of MDS shards, but those of {place.shown} are {schema.format}. '
            f'Choose another `out`, or add to it with its own writer.'
        )
    return schema


def _meanings(inputs: Inputs, columns: Mapping[str, str]) -> dict[str, str]:
    """What the columns mean; not for decimals, whose values have a scale each."""
    meanings = inputs.meanings or {}
    return {
        name: text
        for name, text in meanings.items()
        if name in columns and get_mds_encoding(columns[name]).kind != 'Decimal'
    }


def _encodings_as_before(
    inputs: Inputs, columns: Mapping[str, str] | Sequence[str] | None, schema: Schema
) -> dict[str, str]:
    """The encodings of the dataset that is added to, if the source has exactly its columns, with the same meanings."""
    before = schema.columns
    given = columns if columns is not None else inputs.columns
    wanted = list(_first_samples(inputs)[0] if given is None else given)
    encodings = {**before, **(columns if isinstance(columns, Mapping) else {})}
    for name in {**before, **dict.fromkeys(wanted)}:
        there, ours = before.get(name, 'missing'), encodings.get(name, 'given') if name in wanted else 'missing'
        if there != ours:
            raise ConfigError(
                f'Samples that are appended have the columns and encodings of the dataset, {dict(before)!r:.300}, but '
                f'{name!r} is {there} in the dataset and {ours} in the source. Name the same columns in `columns`, or '
                f'choose another `out`.'
            )
    if inputs.columns is not None:
        encodings_of(inputs, wanted)
    if inputs.meanings is not None:
        kinds = schema.kinds()
        places = [(kinds, schema.meaning_of, 'the dataset'), (kinds, _meanings(inputs, before), 'the source')]
        for difference in differing_meanings(places).values():
            raise ConfigError(
                f'Samples that are appended mean the same as those of the dataset, but {difference}. Give the source '
                f'the type of the dataset, or choose another `out`.{NAME_MEANINGS}'
            )
    return {name: before[name] for name in wanted}


def _first_samples(inputs: Inputs) -> list[Mapping[str, Any]]:
    """Some samples: of rows that are spread over all, else those of the first input that has any."""
    rows: list[Mapping[str, Any]] = []
    first: Exception | None = None
    failed = 0
    count = len(inputs)
    numbers = range(count) if inputs.rows is None else np.unique(np.linspace(0, count - 1, ENOUGH).astype(int)).tolist()
    for number in numbers if count else ():
        try:
            samples = (row for row in inputs.read(number) if not isinstance(row, BadRow))
            rows += islice(samples, ENOUGH - len(rows))
        except Exception as error:  # a bad input is reported when it is converted
            first, failed = first or error, failed + 1
        if (rows and inputs.rows is None) or failed > _SHOWN:
            break
    if rows:
        return rows
    if first is None:
        raise ConversionError('The encodings of the columns cannot be inferred: there is no sample. Pass `columns`.')
    raise ConversionError(
        f'The encodings of the columns cannot be inferred, since the first inputs are bad. {inputs.name(0)}: '
        f'{type(first).__name__}: {first}. Correct it, or pass `columns`.'
    ) from first


class Conversion:
    """One call: it begins a job or continues one, does the tasks that are left, and finishes the dataset."""

    def __init__(self, job: Job, place: StorePlace, source: Inputs | IterableSamples) -> None:
        self._job, self._place, self._source = job, place, source
        self._folder = JobFolder(place)
        self._tasks: Iterable[Task] = ()
        self._kept: dict[str, TaskRecord] = {}  # by the digest of the inputs: tasks of the dataset that is kept current
        self._records: dict[int, TaskRecord] = {}  # of all tasks of this call
        self._done_before = 0
        self._base: str | None = None  # the kept index of the dataset that is added to

    def do(
        self, *, exist_ok: bool, append: bool, workers: int, start_method: str | None, progress_bar: bool
    ) -> ConversionReport:
        check_keeps(self._source.places(), self._place.store, are_files=self._job.inputs.are_files)
        with self._folder.claimed():
            report = self._begin(exist_ok=exist_ok, append=append)
            if report is None:
                self._run(workers=workers, start_method=start_method, progress_bar=progress_bar)
                report = self._finish()
            self._folder.remove_or_warn()
        return report

    def _settings(self) -> dict[str, Any]:
        job = self._job
        settings = {
            'version': _VERSION,
            'kind': self._source.kind,
            'inputs': dict(self._source.identity),
            'columns': dict(job.columns),
            'compression': job.compression,
            'hashes': list(job.hashes),
            'size_limit': job.size_limit,
            **job.settings,
        }
        return json.loads(json.dumps(settings))

    def _begin(self, *, exist_ok: bool, append: bool) -> ConversionReport | None:
        """Store the plan, or continue with the one that is there. Returns the report if all tasks are done."""
        place, folder, settings = self._place, self._folder, self._settings()
        is_new = not folder.read()
        keys = [key for key in place.sizes() if key not in folder.locks]
        is_added = append and is_new and INDEX in keys
        try:
            if not is_new:
                _check_same(folder, settings, place.shown, append=append)
            if self._job.keeps_records and {RECORDS, INDEX}.issubset(keys):
                self._kept = read_kept(place, settings, is_finished=is_new)
            elif keys and is_new and not is_added:
                raise FileExistsError(_not_empty(place, keys, can_append=not self._job.keeps_records))
        except (ConfigError, FileExistsError):
            if not exist_ok:
                raise
            folder.empty(keys, INDEX)
            keys = []
        facts = dict(folder.plan)
        if folder.result is not None and INDEX in keys and self._is_indexed(facts.get(_BASE)):
            _log.warning('The conversion to %s had finished. Only what it had left is removed now.', place.shown)
            return ConversionReport.of(folder.result)
        if is_added or _BASE in facts:
            self._check_files()
        if is_added:
            check_finished(place)
            facts |= {_BASE: keep_index(place, place.read(INDEX)), _FIRST_SHARD: next_number(keys)}
        if isinstance(self._source, RowInputs) and _ROW_BYTES not in facts:
            facts[_ROW_BYTES] = measure(len(self._source), self._source.read, self._job.source_columns)
        self._cut(facts, keys)
        self._base = facts.get(_BASE)
        self._job = replace(self._job, first_shard=facts.get(_FIRST_SHARD, 0))
        folder.begin(settings, **{name: facts[name] for name in _FACTS if name in facts})
        return None

    def _cut(self, facts: dict[str, Any], keys: Collection[str]) -> None:
        """Cut the inputs into tasks. Tasks of a dataset that is kept current may have changed: see `tokenize`."""
        job = self._job
        if isinstance(job.inputs, RowInputs):
            job = self._job = replace(job, inputs=job.inputs.with_mean(facts.get(_ROW_BYTES)))
        inputs = job.inputs
        if isinstance(self._source, IterableSamples):
            self._tasks = tasks_of_rows(self._source.chunks(job.size_limit))
        elif job.keeps_records and job.size_limit and inputs.sizes and len(inputs) and inputs.digest(0, 1):
            self._tasks = cut_by_content(inputs, job.size_limit)
        else:
            self._tasks = cut(inputs, job.size_limit)
        if not job.keeps_records:
            return
        digest = None
        if not isinstance(self._source, IterableSamples):
            self._tasks = list(self._tasks)
            digest = digest_of([task.digest for task in self._tasks])
        if _FIRST_SHARD not in facts or facts.get(_CUT) != digest:
            facts |= {_CUT: digest, _FIRST_SHARD: next_number(keys)}
        for record in self._folder.records.values():
            if record['digest']:
                self._kept[record['digest']] = TaskRecord.of(record)

    def _is_indexed(self, base: str | None) -> bool:
        """Whether the index is that of the whole dataset: of an append, not the one that it began with."""
        return base is None or self._place.read(INDEX) != self._place.read(base)

    def _check_files(self) -> None:
        """Refuse to add samples whose further files, such as the names of classes, differ from those of the dataset."""
        for name, data in self._job.inputs.files.items():
            if self._place.read_if_there(name) not in (data, None):
                raise ConfigError(
                    f'Samples that are appended share {name} with the dataset, but that of {self._place.shown} differs '
                    f'from that of the source. Give the source the same classes, or choose another `out`.'
                )

    def _run(self, *, workers: int, start_method: str | None, progress_bar: bool) -> None:
        job = self._job
        is_iterable = isinstance(self._source, IterableSamples)
        counts_rows = is_iterable or job.inputs.rows is not None
        with tqdm(
            desc='convert',
            unit='samples' if counts_rows else 'inputs',
            unit_scale=True,
            total=None if is_iterable else job.inputs.rows or len(job.inputs),
            disable=not progress_bar,
        ) as bar:

            def news(inputs: int, rows: int) -> None:
                bar.update(rows if counts_rows else inputs)

            for record in run_tasks(job, self._left(news), news, workers=workers, start_method=start_method):
                self._records[record.task] = record

    def _left(self, news: News) -> Iterator[Task]:
        """The tasks without a record that still holds."""
        for task in self._tasks:
            record = self._kept.get(task.digest or '') or self._record_of(task)
            if record is None or (self._job.on_error == 'stop' and record.errors):
                self._folder.reopen(task.number)
                yield task
                continue
            self._records[task.number] = replace(record, task=task.number, begin=task.begin, end=task.end)
            self._done_before += 1
            news(task.end - task.begin, record.rows)

    def _record_of(self, task: Task) -> TaskRecord | None:
        plain = self._folder.records.get(task.number)
        record = None if plain is None else TaskRecord.of(plain)
        is_same = record and (record.begin, record.end, record.digest) == (task.begin, task.end, task.digest)
        return record if is_same else None

    def _finish(self) -> ConversionReport:
        """Remove shards that are not of the dataset, and write the index. From here on nothing of it is deleted."""
        job, place, base = self._job, self._place, self._base
        records = [self._records[number] for number in sorted(self._records)]
        added = [entry for record in records for entry in record.shards]
        old = b'{"shards": []}' if base is None else place.read(base)
        before = json.loads(old)
        entries = [*before['shards'], *added]
        meanings = {**before.get('meanings', {}), **job.meanings}
        index = dump_entries(entries, {'erased': before.get('erased'), 'meanings': meanings})
        parse_index(index, source=f'{place.shown}/{INDEX}', allow_unsafe_types=True, allow_empty=True)
        if base is not None and place.read_if_there(INDEX) not in (old, index):
            raise ConversionError(
                f'{place.shown}/{INDEX} was replaced while the conversion added to the dataset, so it stays. Bring '
                f'{base} back, or remove {CONVERSION} there and convert again.'
            )
        errors = tuple(error for record in records for error in record.errors)
        for error in errors[:_SHOWN]:
            _log.warning('Left out %s: %s', error.input, error.error)
        if errors:
            _log.warning('Inputs and rows left out of the conversion to %s: %s.', place.shown, len(errors))
        files = dict(job.inputs.files)
        name = 'errors.jsonl' if base is None else f'errors.{job.first_shard:05}.jsonl'
        if job.on_error != 'collect' or not errors:
            self._folder.delete([name] if place.has(name) else [])  # of an earlier call
        else:
            files[name] = ''.join(f'{json.dumps(asdict(error))}\n' for error in errors).encode()
        for name, data in files.items():
            place.write(name, data)
        ledger = job.inputs.ledger
        report = ConversionReport(
            out=place.shown,
            kind=self._source.kind,
            columns=job.columns,
            inputs=sum(record.end - record.begin for record in records),
            rows=sum(record.rows for record in records),
            shards=len(added),
            raw_bytes=sum(record.raw_bytes for record in records),
            stored_bytes=sum(record.stored_bytes for record in records),
            seconds=0,
            tasks_done_before=self._done_before,
            errors=errors if job.on_error == 'collect' else errors[:_SHOWN],
            num_errors=len(errors),
            ledger=replace(
                ledger,
                dropped=ledger.dropped or tuple(dict.fromkeys(name for record in records for name in record.dropped)),
                nulls=dict(sum((Counter(record.nulls) for record in records), Counter[str]())),
            ),
            rows_before=sum(entry['samples'] for entry in entries[: len(entries) - len(added)]),
            tasks=len(records),
            tokens=sum(record.tokens for record in records),
            without_tokens=sum(record.without_tokens for record in records),
        )
        names = {(entry['zip_data'] or entry['raw_data'])['basename'] for entry in entries}
        if job.keeps_records:  # the old dataset is whole until its index is replaced
            write_kept(place, self._settings(), records)
            if place.read_if_there(INDEX) != index:
                place.write(INDEX, index)
            self._remove_leftovers(names, first_shard=0)
        else:
            self._remove_leftovers(names, job.first_shard)
            write_converted(job.inputs, records, place, is_added=base is not None)
            self._folder.finish(asdict(report))
            replace_index(place, index)
        return report

    def _remove_leftovers(self, names: Collection[str], first_shard: int) -> None:
        """Remove shards of killed workers that no later task has replaced."""
        shards = [info.key for info in self._place.list('shard.') if SHARD.fullmatch(info.key)]
        self._folder.delete([key for key in shards if key not in names and int(key.split('.')[1]) >= first_shard])
        self._place.remove_unfinished()


def _check_same(folder: JobFolder, settings: Mapping[str, Any], out: str, *, append: bool) -> None:
    """Refuse an unfinished conversion with other inputs or settings."""
    again = 'pass `exist_ok=True` to begin again'
    if _BASE in folder.plan:
        again = f'remove {CONVERSION} there to give the new samples up'
        if not append:
            raise ConfigError(
                f'A restart continues an unfinished conversion with the same settings, but {out} holds one that adds '
                f'to a finished dataset. Pass `append=True`, choose another `out`, or {again}.'
            )
    differs = difference(folder.plan['settings'], settings)
    if differs:
        raise ConfigError(
            f'A restart continues an unfinished conversion with the same inputs and settings, but {out} holds one with '
            f'{differs}. Repeat the first call, choose another `out`, or {again}.'
        )


def _not_empty(place: StorePlace, keys: Sequence[str], *, can_append: bool) -> str:
    return (
        f'Directory is not empty: {place.shown} holds {keys[0]} and {len(keys) - 1} more. Choose another `out`, or '
        f'pass `exist_ok=True` to have it emptied.{" `append=True` adds to a finished dataset." if can_append else ""}'
    )
