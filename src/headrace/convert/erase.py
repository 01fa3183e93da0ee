"""Legal erasure: the content of samples goes, and every other sample keeps its place.

A shard with such rows is written again, under another name, with empty values in these rows. Indexes list them as
`erased`, so readers leave them out. All indexes that list the shard are replaced: the dataset's, those that a merge or
an append has kept, and those of merged parts. Then the old shards go.

It is a job (`job`) with a task for each such shard. Its plan names the rows and the new shards, so any later call can
do the rest. When all are stored, the plan has their index, which is put into all others, and last into the dataset's.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import warnings
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace.convert.job import CONVERSION, JobFolder
from headrace.convert.stored_dataset import (
    INDEX,
    PATIENT,
    folder_of,
    object_url,
    open_stored,
    raw_files,
    with_stored_values,
)
from headrace.dataset.writing.claim import Claim
from headrace.dataset.writing.place import StorePlace
from headrace.dataset.writing.start import ERASURE, JOURNAL, MARK, Terms, shard_number
from headrace.errors import CacheError, ConfigError, FormatError, HeadraceError, ObjectNotFoundError
from headrace.errors.redaction import logger_of, warn, without_credentials
from headrace.format import (
    FileInfo,
    IndexFile,
    ShardFile,
    ShardInfo,
    ShardTable,
    compress,
    get_compression_extension,
    get_hash,
    is_hash,
    mds_encode,
    open_shard,
    parse_index,
)
from headrace.format.encoder import offset_table
from headrace.format.encodings.arrays import DTYPES
from headrace.format.encodings.registry import get_mds_encoding
from headrace.format.index import after_erasure, dump_entries
from headrace.format.shards import Erasure
from headrace.sources.source_store import SourceStore
from headrace.storage import CacheStats, Retry, Store, StoreOptions, local_path, open_store
from headrace.storage.cache.cached_index import REMOTE_MARKER, CachedIndex, is_from
from headrace.storage.cache.fetch_lock import FetchLock
from headrace.storage.cache.index_fetch import IndexCheck, IndexFetch
from headrace.storage.cache.limit import drop_ledger
from headrace.storage.cache.mapped_file import delete_file

Place = str | os.PathLike[str]
_log = logger_of(__name__)
_INDEX: Final = re.compile(r'(?:(?!\.headrace).*/)?index(\.\d{5,})?\.json')
_UNFINISHED: Final = re.compile(rf'(.*/)?({JOURNAL.pattern}|{re.escape(MARK)}|{re.escape(CONVERSION)}/.*)')
"""Files of writers and conversions, in the dataset's folder or in that of a merged part."""
_TEMPORARY: Final = re.compile('[0-9a-f]{32}')  # Names of cache folders in the system's folder for temporary files.


@dataclass(frozen=True)
class EraseReport:
    """The result of `erase`."""

    dataset: str
    samples: int
    """Samples that are erased, or would be."""
    shards: int
    """Shards that hold them."""
    missing: int
    """Ids that no sample has; those of erased ones are gone, too."""
    caches: tuple[str, ...]
    """Cache folders of this machine that were cleaned."""


def erase(
    dataset: Place,
    ids: Iterable[str | int],
    *,
    column: str = 'id',
    keep: Sequence[str] = (),
    caches: Sequence[Place] = (),
    dry_run: bool = False,
    resume: bool = False,
    jobs: int = 8,
    options: StoreOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EraseReport:
    """Erase samples of an MDS dataset. Their rows stay, with empty values, and checkpoints stay valid.

    The same call after a kill goes on. Costs in the heads of shards stay (`MDSWriter(cost=...)`).

    Args:
        dataset: a folder, or a URL of a store. Data in both need a call for each.
        ids: values of `column`, as numbers or texts; each sample with one of them is erased.
        column: a column of texts or whole numbers.
        keep: columns whose values stay, such as those that a `where` or a `cost` reads.
        caches: folders of this machine, looked through for caches of the dataset, or of its parts, at any depth. Caches
            of streams without `local` are found. Others lose old shards when they are opened next.
        dry_run: write nothing.
        resume: take over from an erasure that was killed on another machine. Nothing else may write to the dataset.
        jobs: shards that are read at one time.
        options: how to reach the store.
        progress: called with the number of shards that were searched, and of all.

    Raises:
        CacheError: a cache could not be cleaned; the dataset and all others are.
        ConfigError: the data are of another format, or a part of a merged dataset, or an argument breaks a rule.
        FileExistsError: a writer or a conversion to the dataset has not finished.
        FileNotFoundError: the dataset does not exist.
        FormatError: a shard is damaged.
        OSError: the store cannot be reached, or refuses.
    """
    wanted = _as_texts(ids)
    absent = [os.fspath(folder) for folder in caches if not Path(folder).is_dir()]
    if absent:
        raise ConfigError(f'`caches` (--cache) are folders of this machine, but {absent[0]} is none.')
    erasure, cleaned = _Erasure(dataset, options, column, keep), list[str]()
    if dry_run:
        hits, erased_ids = erasure.search(wanted, jobs, progress)
    else:
        with _claimed(dataset, erasure.place, erasure.folders, resume) as check:
            if erasure.is_begun():
                _log.warning('Finishing the erasure of %s that was stopped before.', erasure.place.shown)
                erasure.go_on(check, jobs)
            hits, erased_ids = erasure.search(wanted, jobs, progress)
            if hits:
                erasure.begin(hits)
                erasure.go_on(check, jobs)
        cleaned += _clean_caches(erasure.stores(options), caches)
    samples = sum(len(rows) for _, rows in hits)
    place = without_credentials(os.fspath(dataset))
    return EraseReport(place, samples, len(hits), len(wanted - erased_ids), tuple(cleaned))


def _as_texts(ids: Iterable[str | int]) -> set[str]:
    values = list[object]([ids] if isinstance(ids, str | bytes) else ids)
    for value in values:
        if value is ids or isinstance(value, bool) or not isinstance(value, str | int | np.integer):
            raise ConfigError(
                f'`ids` are a list, or another iterable, of texts and whole numbers, but got {value!r:.100}.'
            )
    return {*map(str, values)}


Hits = list[tuple[ShardInfo, list[int]]]  # Shards, named as at the root, and the rows to erase there.


class _Erasure:
    def __init__(self, dataset: Place, options: StoreOptions | None, column: str, keep: Sequence[str]) -> None:
        try:
            stored = open_stored(dataset, options)
        except (ObjectNotFoundError, FormatError):  # litdata's index has the same name
            other = _format_of(dataset, options or StoreOptions())
            if other is None:
                raise
            raise _refusal(dataset, other) from None
        for schema in stored.shards.schemas:
            if schema.format != 'mds':
                raise _refusal(dataset, schema.format)
            missing = {column, *keep}.difference(schema.names)
            if missing or column in keep or get_mds_encoding(schema.columns[column]).kind not in _ID_KINDS:
                columns = ', '.join(f'{name} ({encoding})' for name, encoding in schema.columns.items())
                raise ConfigError(
                    f'`column` (--column) of an erasure names a column of texts or whole numbers, and `keep` (--keep) '
                    f'others, but they are {column!r} and {list(keep)}, and the columns are {columns}.'
                )
        self.place = StorePlace(stored.store, PATIENT)
        self._job = JobFolder(self.place, ERASURE)
        self._column, self._keep = column, sorted(keep)
        self._list()
        if ERASURE in self._keys:
            raise FileExistsError(
                f'An erasure of {self.place.shown} by an older version of headrace was killed. Remove {ERASURE} there, '
                f'and erase the same ids again.'
            )
        for key in self._keys:
            sign = _UNFINISHED.fullmatch(key)
            if sign is not None and key != MARK and (sign[1] or '').rstrip('/') in self.folders:
                raise FileExistsError(
                    f'Samples are erased when the writer has finished, but {self.place.shown} has {key}. Finish it '
                    f'first: with `append=True, resume=True`, or by the same conversion again. Of what `headrace '
                    f'tokenize` keeps up to date, erase the source.'
                )

        self._check_no_part(os.fspath(dataset), options)

    def _check_no_part(self, dataset: str, options: StoreOptions | None) -> None:
        """Refuse a part of a merged dataset: the index above would list shards that are gone."""
        path = local_path(dataset)
        whole = dataset.rstrip('/') if path is None else str(Path(path).resolve())
        above, names = whole.rpartition('/')[0], [*self._shards()]
        while above.count('/') >= (2 if path is None else 1):
            table = ShardTable.empty()
            if path is None or (Path(above) / INDEX).is_file():
                with contextlib.suppress(HeadraceError, OSError, ValueError):
                    table = open_stored(above, options, retry=Retry(attempts=1)).shards
            if any(table.find(f'{whole[len(above) + 1 :]}/{name}') is not None for name in names):
                raise ConfigError(
                    f'An erasure replaces all indexes that list a shard, but {self.place.shown} is a part of '
                    f'{without_credentials(above)}. Erase there: that replaces the index of the part, too.'
                )
            above = above.rpartition('/')[0]

    def _list(self) -> None:
        """List what is there, and read the indexes that list shards of the dataset; its own is the last."""
        self._keys = {info.key for info in self.place.list()}
        self._indexes: dict[str, tuple[bytes, ShardTable]] = {}
        names = set[str]()
        for key in sorted(filter(_INDEX.fullmatch, self._keys), key=lambda key: ('/' in key, key)):
            data = self.place.read(key)
            with contextlib.suppress(FormatError):  # of other data, in a folder below
                table = parse_index(data, source=f'{self.place.shown}/{key}', allow_unsafe_types=True, allow_empty=True)
                of_index = {shard.name for shard in _at_root(table, key)}
                names |= of_index if '/' not in key else set()
                if not names.isdisjoint(of_index):
                    self._indexes[key] = data, table
        self._indexes[INDEX] = self._indexes.pop(INDEX)

    def _shards(self) -> dict[str, ShardInfo]:
        return {shard.name: shard for key, (_, table) in self._indexes.items() for shard in _at_root(table, key)}

    @property
    def folders(self) -> set[str]:
        """Keys of the folders that hold indexes and shards of the dataset; '' is its own."""
        return {key.rpartition('/')[0] for key in (*self._indexes, *self._shards())}

    def stores(self, options: StoreOptions | None) -> list[tuple[Store, bytes]]:
        """Of the dataset, and of the parts that it was merged of, with their indexes."""
        parts = ((key.rpartition('/'), data) for key, (data, _) in self._indexes.items())
        return [
            (open_store(object_url(self.place.store, part), options) if part else self.place.store, data)
            for (part, _, name), data in parts
            if name == INDEX
        ]

    def _warn_of_unlisted(self, shards: Mapping[str, ShardInfo]) -> None:
        files = {name for shard in shards.values() for name in shard.file_names}
        folders = {name.rpartition('/')[0] for name in shards}
        split = ((key, key.rpartition('/')) for key in sorted(self._keys - files))
        unlisted = [key for key, (folder, _, name) in split if folder in folders and shard_number(name) >= 0]
        if unlisted:
            warn(
                f'Shards that no index lists are not searched: {self.place.shown} has {len(unlisted)}, the first is '
                f'{unlisted[0]}. Delete them if they may hold the samples.'
            )

    def search(
        self, wanted: Collection[str], jobs: int, progress: Callable[[int, int], None] | None
    ) -> tuple[Hits, set[str]]:
        """The rows to erase, and the ids that were found."""
        shards, listed = self._shards(), {shard.name for shard in self._indexes[INDEX][1]}
        self._warn_of_unlisted(shards)
        hits, erased_ids = Hits(), set[str]()

        def look(shard: ShardInfo) -> dict[int, str]:
            try:
                buffers = raw_files(self.place.store, shard, PATIENT)
            except ObjectNotFoundError:
                if shard.name in listed:
                    raise
                return {}  # an index that was kept may outlive its shards
            rows, batch = np.arange(shard.samples), shard.schema.allocate(shard.samples, [self._column])
            open_shard(shard, buffers, source=shard.name, columns=[self._column]).gather(rows, rows, batch)
            ids, erased = map(str, batch.columns[self._column]), set(shard.erasure.rows)
            return {row: value for row, value in enumerate(ids) if value in wanted and row not in erased}

        with ThreadPoolExecutor(jobs, thread_name_prefix='headrace-erase') as pool:
            for number, (shard, rows) in enumerate(
                zip(shards.values(), pool.map(look, shards.values()), strict=True), 1
            ):
                hits += [(shard, [*rows])] if rows else []
                erased_ids.update(rows.values())
                if progress is not None:
                    progress(number, len(shards))
        return hits, erased_ids

    def is_begun(self) -> bool:
        """Whether an erasure that was killed is left to finish. Lists again: from now on nobody else writes."""
        self._list()
        return self._job.read()

    def begin(self, hits: Hits) -> None:
        last: dict[str, int] = {}
        for folder, _, name in (key.rpartition('/') for key in self._keys):
            last[folder] = max(last.get(folder, -1), shard_number(name))
        tasks: list[dict[str, Any]] = []
        for shard, rows in hits:
            folder = shard.name.rpartition('/')[0]
            last[folder] += 1
            name = f'{folder}/shard.{last[folder]:05}.mds'.lstrip('/')
            tasks.append({'shard': shard.name, 'rows': rows, 'new': [name + ending for ending in _endings(shard)]})
        self._job.begin({}, keep=self._keep, tasks=tasks)

    def _do_tasks(self, jobs: int) -> dict[str, Any]:
        job, shards, tasks = self._job, self._shards(), self._job.plan['tasks']

        def do(number: int) -> None:
            shard = self._write_again(shards[tasks[number]['shard']], tasks[number]['rows'], tasks[number]['new'])
            job.add(number, {'shard': shard.entry(), 'erased': shard.erasure._asdict()})

        with ThreadPoolExecutor(jobs, thread_name_prefix='headrace-erase') as pool:
            list(pool.map(do, [number for number in range(len(tasks)) if number not in job.records]))
        records = [job.records[number] for number in range(len(tasks))]
        erased = {record['shard']['raw_data']['basename']: record['erased'] for record in records}
        index = dump_entries((record['shard'] for record in records), {'erased': erased})
        result = {'index': index.decode(), 'old': [shards[task['shard']].file_names for task in tasks]}
        job.finish(result)
        return result

    def _write_again(self, shard: ShardInfo, rows: list[int], files: list[str]) -> ShardInfo:
        (data,) = buffers = raw_files(self.place.store, shard, PATIENT)
        reader = open_shard(with_stored_values(shard), buffers, source=shard.name)  # checks the offsets
        offsets = np.frombuffer(data, '<u4', shard.samples + 1, 4).astype(np.int64)
        sizes = np.diff(offsets)
        pieces: list[Any] = [data[8 + 4 * shard.samples : offsets[0]]]  # the configuration, and the costs
        at = offsets[0]
        for row in rows:
            emptied = self._emptied(shard, reader.sample(row))
            sizes[row] = len(emptied)
            pieces += [data[at : offsets[row]], emptied]
            at = offsets[row + 1]
        table = offset_table(array('Q', sizes.astype(np.uint64).tobytes()), int(offsets[0]))
        new = b''.join([table, *pieces, data[at:]])
        (file,) = shard.files
        made = ShardFile(_described(files[0], new, file.raw), None)
        if file.zip is not None:
            new = compress(shard.compression or '', new)
            made = ShardFile(made.raw, _described(files[1], new, file.zip))
        self.place.upload((made.zip or made.raw).basename, io.BytesIO(new), len(new))
        return replace(shard, files=(made,), erasure=Erasure(tuple(sorted({*shard.erasure.rows, *rows}))))

    def _emptied(self, shard: ShardInfo, sample: Mapping[str, Any]) -> bytes:
        """An erased row: the values of `keep`, and empty ones of all other columns."""
        sizes, values = list[bytes](), list[bytes]()
        for name, encoding, size in zip(shard.schema.names, shard.schema.encodings, shard.schema.sizes, strict=True):
            if name not in self._job.plan['keep']:
                value = bytes(size) if size is not None else empty_value(encoding)
            elif isinstance(sample[name], np.ndarray | np.generic):
                value = sample[name].tobytes()
            else:
                value = mds_encode(encoding, sample[name])
            if size is None:
                sizes.append(len(value).to_bytes(4, 'little'))
            values.append(value)
        return b''.join([*sizes, *values])

    def go_on(self, check: Callable[[], None], jobs: int) -> None:
        """Do what is left of the job: shards, indexes, the old shards."""
        result: dict[str, Any] = self._job.result or self._do_tasks(jobs)
        index, old = result['index'], result['old']
        made = parse_index(index.encode(), source=f'{self.place.shown}/{ERASURE}', allow_unsafe_types=True)
        instead = {files[0]: shard for files, shard in zip(old, made, strict=True)}
        for key, (data, table) in self._indexes.items():
            folder, shards = key.rpartition('/')[0], zip(table, _at_root(table, key), strict=True)
            new = {shard.name: _below(instead[there.name], folder) for shard, there in shards if there.name in instead}
            if new:
                check()
                self.place.write(key, after_erasure(data, new))
        for files in old:
            with self._not_unpacked(files):
                for name in files:
                    self.place.delete(name)
        self._job.remove()
        self._list()

    @contextlib.contextmanager
    def _not_unpacked(self, files: Sequence[str]) -> Generator[None]:
        """Wait for a run that unpacks a shard in the dataset's folder, and remove what a killed one has left of it."""
        root = folder_of(self.place.store)
        with contextlib.ExitStack() as locks:
            if root is not None and len(files) > 1:
                for part in sorted({key.rpartition('/')[0] for key in self._indexes}):
                    if not part or files[0].startswith(f'{part}/'):
                        lock = FetchLock(root / part, files[0].removeprefix(f'{part}/'))
                        with contextlib.suppress(HeadraceError):  # of the run that it waited for
                            lock.acquire()
                        locks.enter_context(lock)
            yield


_ID_KINDS: Final = {'str', 'int', *(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64))}


def _format_of(dataset: Place, options: StoreOptions) -> str | None:
    """The format of data other than shards."""
    none: dict[str, Any] = dict.fromkeys(('split', 'format_name', 'format_options', 'columns'))
    source, _ = SourceStore(os.fspath(dataset), options, **none, allow_unsafe_types=False).find()
    return None if source is None else source.NAME


def _refusal(dataset: Place, name: str) -> ConfigError:
    return ConfigError(
        f'An erasure rewrites shards of MDS, but {without_credentials(os.fspath(dataset))} is of the format {name}. '
        f'Delete the rows with the program that wrote the data, or convert the data first (`headrace convert`).'
    )


def empty_value(name: str) -> bytes:
    """The bytes of a value of a variable-size encoding that holds as little as can be; ConfigError: none is known."""
    encoding = get_mds_encoding(name)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # a picture without a file is encoded
        for value in _smallest_values():
            with contextlib.suppress(Exception):  # encodings raise errors of many classes
                data = value if isinstance(value, bytes) else encoding.encode(value)
                encoding.decode(data)
                return data
    raise ConfigError(
        f'An erased row has an empty value in each column, but the encoding {name!r} reads none that is known. Name '
        f'the column in `keep` (--keep) if its values may stay.'
    )


def _smallest_values() -> Generator[Any]:
    yield from (b'', b'0', '', [], *(np.zeros(1, dtype) for dtype in DTYPES))
    from PIL import Image  # only columns of pictures get here

    yield Image.new('RGB', (1, 1))


def _endings(shard: ShardInfo) -> list[str]:
    return ['', *(f'.{get_compression_extension(shard.compression or "")}' for file in shard.files if file.zip)]


def _at_root(table: ShardTable, key: str) -> Iterable[ShardInfo]:
    folder = key.rpartition('/')[0]
    return (shard.moved(folder) for shard in table) if folder else table


def _below(shard: ShardInfo, folder: str) -> ShardInfo:
    (file,) = shard.files
    raw, packed = (
        info and replace(info, basename=info.basename.removeprefix(f'{folder}/')) for info in (file.raw, file.zip)
    )
    assert raw is not None
    return replace(shard, files=(ShardFile(raw, packed),))


def _described(name: str, data: bytes, old: FileInfo) -> FileInfo:
    return FileInfo(
        name, len(data), {algorithm: get_hash(algorithm, data) for algorithm in filter(is_hash, old.hashes)}
    )


@contextlib.contextmanager
def _claimed(
    dataset: Place, place: StorePlace, folders: Collection[str], resume: bool
) -> Generator[Callable[[], None]]:
    """Keep other writers away, and remove the files that killed ones were putting into the folders of shards.

    Gives a function that raises if another writer has taken the place over.
    """
    path = local_path(dataset)
    store, folder = (place, None) if path is None else (None, Path(path))
    claim = Claim(folder, store, Terms(append=True, resume=resume), keep_local=True)
    is_done = False
    try:
        if claim.start.is_finished:
            raise FileExistsError(
                f'A writer to {place.shown} was killed after it had stored the index. Finish it first: open one with '
                f'`append=True, resume=True`, and close it.'
            )
        place.remove_unfinished(folders)
        yield claim.check
        is_done = True
    finally:
        claim.release(is_done=is_done)


def _clean_caches(stores: Sequence[tuple[Store, bytes]], caches: Sequence[Place]) -> Generator[str]:
    """Clean all caches of this machine, and give their folders; at the end a CacheError if one could not be."""
    temporary, left = Path(tempfile.gettempdir()), dict[Path, Exception]()
    folders = [path for path in temporary.iterdir() if _TEMPORARY.fullmatch(path.name) and os.access(path, os.R_OK)]
    for marker in sorted({marker for root in [*map(Path, caches), *folders] for marker in root.rglob(REMOTE_MARKER)}):
        folder = marker.parent
        for store, data in ((store, data) for store, data in stores if is_from(folder, store.url)):
            try:
                _clean(folder, store, data)
            except (HeadraceError, OSError) as error:  # noqa: PERF203 - the others are cleaned
                left[folder] = error
            else:
                yield str(folder)
    for folder, error in left.items():
        raise CacheError(
            f'The samples are gone from the dataset, but may be in {len(left)} of its caches, the first is {folder}: '
            f'{error} Erase them again when that is mended.'
        ) from error


def _clean(folder: Path, store: Store, data: bytes) -> None:
    """Bring the index of a cache up to date, and remove all other shards."""
    index = IndexFile(store.url, allow_unsafe_types=True)
    IndexFetch(
        index=CachedIndex(folder, INDEX),
        store=store,
        reader=index,
        check=IndexCheck(),
        retry=PATIENT,
        stats=CacheStats(),
    ).run()
    if (folder / INDEX).read_bytes() != data:  # a fetch that fails keeps the old one
        raise CacheError('The index could not be brought up to date.')
    for below in {shard.name.rpartition('/')[0] for shard in index.shards}:
        for path in (folder / below).glob('shard.*'):  # of an index that was damaged or gone
            if shard_number(path.name) >= 0 and index.shards.find(str(path.relative_to(folder))) is None:
                delete_file(folder, str(path.relative_to(folder)))
                drop_ledger(folder)
