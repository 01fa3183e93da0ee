"""Delta tables: which Parquet files a version of the table has, with their partitions and deleted rows.

`index` fetches the log of the version into a temporary folder. `deltalake` reads it there, in a process of its own: its
threads would be in the way of workers that are forked. So the network is that of our stores only.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import numpy as np

from headrace.errors import ConfigError, FormatError, MissingDependencyError, StreamError
from headrace.sources import parquet
from headrace.sources.arrow_types import import_pyarrow
from headrace.sources.parquet import ParquetSource, index_files
from headrace.sources.ranges import ByteRange, read_range, read_ranges
from headrace.sources.table_files import BY_ID, TableFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.table_files import IntArray
    from headrace.storage import ObjectInfo, Store

load = parquet.load

NAME: Final = 'delta'
_LOG: Final = '_delta_log/'
_COMMIT: Final = re.compile(r'(\d{20})\.json')
_CHECKPOINT: Final = re.compile(
    r'_delta_log/(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)'
)
_BESIDE: Final = re.compile(r'_delta_log/_sidecars/[\w.-]+\.parquet|(?:\w+/)?deletion_vector_[0-9a-f-]{36}\.bin')
"""Parts of checkpoints, and deleted rows."""
_CHECKSUM: Final = '_delta_log/{:020}.crc'  # The counts of a version, of some writers.
_ACTION: Final = re.compile(rb'\s*\{\s*"(\w+)"')
_COUNTS: Final = {
    ('add', 'cdc'): re.compile('num_?(target)?_?((files)?_?added_?(files)?|files|convertedfiles)', re.IGNORECASE),
    ('remove',): re.compile('num_?(target)?_?(files)?_?removed_?(files)?', re.IGNORECASE),
}
"""How writers name the number of files in a commit's `operationMetrics`, by the actions that tell of these files."""
_READER: Final = 3  # The newest version of the protocol.
_FEATURES: Final = frozenset(
    {
        'columnMapping',
        'deletionVectors',
        'timestampNtz',
        'typeWidening',
        'typeWidening-preview',
        'v2Checkpoint',
        'vacuumProtocolCheck',
    }
)
"""The features of a table that this reader knows."""


def find(objects: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """See `SourceFormat.find`: all objects of the table; FormatError: there are several tables."""
    keys = (info.key for info in objects if _LOG in info.key)
    roots = dict.fromkeys(
        key[: key.index(_LOG)] for key in keys if _COMMIT.fullmatch(key[key.index(_LOG) + len(_LOG) :])
    )
    if len(roots) > 1:
        names = ', '.join(root or 'the folder itself' for root in [*roots][:5])
        raise FormatError(f'A stream reads one Delta table, but here are several: {names}. Name one in `remote`.')
    return [info for root in roots for info in objects if info.key.startswith(root)]


def _log_of(objects: Sequence[ObjectInfo]) -> tuple[str, dict[int, ObjectInfo]]:
    """The table's folder, and its commits by version."""
    root = next((info.key[: info.key.index(_LOG)] for info in objects if _LOG in info.key), '')
    begin = len(root) + len(_LOG)
    named = ((_COMMIT.fullmatch(info.key[begin:]), info) for info in objects if info.key.startswith(root + _LOG))
    return root, {int(match[1]): info for match, info in named if match}


def decisive(objects: Sequence[ObjectInfo], version: int | str | None = None) -> list[ObjectInfo]:
    """The objects that tell whether a cached index is right: the last commit that is read; all, of a time."""
    commits, chosen = _log_of(objects)[1], _version(version)
    if isinstance(chosen, float):
        return list(commits.values())
    wanted = max(commits, default=0) if chosen is None else chosen
    return [commits[wanted]] if wanted in commits else []


def _version(version: int | str | None) -> int | float | None:
    """The option, checked: a number, or seconds since 1970."""
    if version is None or (isinstance(version, int) and not isinstance(version, bool) and version >= 0):
        return version
    try:
        time = dt.datetime.fromisoformat(cast('str', version))
    except (TypeError, ValueError):
        raise ConfigError(
            f'`version` of a Delta table is a number from 0 on, or a time such as "2026-05-31T12:00:00+00:00", but is '
            f'{version!r:.80}. Correct it.'
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)).timestamp()


def index(
    store: Store,
    objects: Sequence[ObjectInfo],
    *,
    columns: Collection[str] | None,
    allow_unsafe_types: bool,
    version: int | str | None = None,
) -> ParquetSource:
    """See `SourceFormat.index`. The order of rows is that of the files' names.

    `version`: the number of a version, or a time in ISO 8601, which stands for the last version until then. A time
    without zone is in UTC. By default it is the newest version.
    """
    del allow_unsafe_types  # no type of Parquet runs code
    pa = import_pyarrow('Delta tables')
    if importlib.util.find_spec('deltalake') is None:
        raise MissingDependencyError(
            "Delta tables need deltalake, which is not installed: pip install 'headrace[delta]'"
        )
    root, commits = _log_of(objects)
    place = f'{store.url.rstrip("/")}/{root}'.rstrip('/')
    if not commits:
        raise StreamError(
            f'A Delta table is read as a whole, but `split` names some of the files at {place}. Leave `split` out, and '
            f'choose rows with `where`.'
        )
    number = _number(store, commits, _version(version), place)
    try:
        with tempfile.TemporaryDirectory(prefix='headrace-delta-') as name:
            folder = Path(name).resolve()
            _fetch(store, _needed(objects, root, commits, number), len(root), folder)
            _check_commits(folder)
            paths, gone, keys, schema, about = _read(folder)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f'Version {number} of the Delta table {place} cannot be read: {error!s:.600}. Restore its log, or choose '
            f'another `version`.'
        ) from error
    unknown = [*{*about['features']}.difference(_FEATURES)] or ['a newer version'] * (about['reader'] > _READER)
    if unknown:
        raise FormatError(
            f'The Delta table {place} needs readers that know {", ".join(sorted(unknown))}, which headrace does not. '
            f'Write it without, or export it as plain Parquet.'
        )
    by_key = {info.key: info for info in objects}
    files = [root + unquote(path) for path in paths]
    if missing := next((key for key in files if key not in by_key), None):
        raise FormatError(
            f'Version {number} of the Delta table {place} has the file {missing}, which is not there. Files of an old '
            f'version may have been vacuumed: choose a newer `version`. Or copy the file into the table.'
        )
    for key, size in zip(files, about['sizes'], strict=True):
        if size != by_key[key].size:
            raise FormatError(
                f'Version {number} of the Delta table {place} counts {size} bytes in {key}, but there are '
                f'{by_key[key].size}. The copy may be incomplete: restore the file, or choose another `version`.'
            )
    counted = by_key.get(root + _CHECKSUM.format(number))
    if counted is not None:
        _check_files(read_range(store, ByteRange(counted.key, 0, counted.size, counted.etag)), about['sizes'], place)
    order = sorted(range(len(files)), key=files.__getitem__)
    deleted = [gone.get(unquote(paths[file])) for file in order]
    table = TableFiles(
        constants=keys.take(pa.array(order, pa.int64())),
        schema=schema,
        deleted={file: rows for file, rows in enumerate(deleted) if rows is not None},
        rows_of=[about['rows'][file] for file in order],
        snapshot=f'version {number}',
    )
    return index_files(store, [by_key[files[file]] for file in order], columns=columns, table=table, format_name=NAME)


def _number(store: Store, commits: dict[int, ObjectInfo], chosen: int | float | None, place: str) -> int:
    """The number of the version to read."""
    if chosen is None:
        return max(commits)
    if isinstance(chosen, int):
        if chosen in commits:
            return chosen
        raise FormatError(
            f'The Delta table {place} has the versions {min(commits)} to {max(commits)}, but `version` is {chosen}. '
            f'Choose one of these.'
        )
    latest, first = -1, None
    ranges = [ByteRange(info.key, 0, info.size, info.etag) for info in commits.values()]
    for number, commit in sorted(zip(commits, read_ranges(store, ranges), strict=True)):
        try:
            lines = [json.loads(line) for line in commit.splitlines() if b'"commitInfo"' in line]
            info = next(line['commitInfo'] for line in lines if 'commitInfo' in line)
            time = (info.get('inCommitTimestamp') or info['timestamp']) / 1000
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
            raise FormatError(
                f'Version {number} of the Delta table {place} does not say its time. Give the number as `version`.'
            ) from error
        first = time if first is None else first
        latest = number if time <= chosen else latest
    if latest < 0:
        begin = dt.datetime.fromtimestamp(first or 0, dt.timezone.utc).isoformat()
        raise FormatError(f'The first version of the Delta table {place} is of {begin}, after `version`. Correct it.')
    return latest


def _needed(
    objects: Sequence[ObjectInfo], root: str, commits: dict[int, ObjectInfo], number: int
) -> Iterator[ObjectInfo]:
    """The objects that a version is read from: a checkpoint, the commits since, and the vectors of deleted rows."""
    checkpoints: dict[int, dict[str, list[ObjectInfo]]] = {}
    for info in objects:
        name = info.key[len(root) :]
        if match := _CHECKPOINT.fullmatch(name):
            if int(match[1]) <= number:
                parts = checkpoints.setdefault(int(match[1]), {}).setdefault(match[2] or name, [])
                parts.append(info)
        elif _BESIDE.fullmatch(name):
            yield info
    whole = {
        version: parts
        for version, kinds in checkpoints.items()
        for count, parts in kinds.items()
        if not count.isdigit() or int(count) == len(parts)
    }
    begin = max(whole, default=-1)
    yield from whole.get(begin, [])
    yield from (info for version, info in commits.items() if begin <= version <= number)


def _fetch(store: Store, wanted: Iterable[ObjectInfo], cut: int, folder: Path) -> None:
    infos = list(wanted)
    ranges = (ByteRange(info.key, 0, info.size, info.etag) for info in infos)
    for info, content in zip(infos, read_ranges(store, ranges), strict=True):
        path = folder / info.key[cut:]
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)


def _check_commits(folder: Path) -> None:
    """Refuse commits with fewer actions than they count: cut between two lines, a commit looks whole."""
    for path in sorted(folder.glob('_delta_log/*.json')):
        if not _COMMIT.fullmatch(path.name):
            continue
        lines = path.read_bytes().splitlines()
        actions = Counter(match[1].decode() for line in lines if (match := _ACTION.match(line)))
        if not actions:
            raise ValueError(f'{path.name} is empty')
        infos = (json.loads(line) for line in lines if line.lstrip().startswith(b'{"commitInfo"'))
        metrics = (next(infos, {}).get('commitInfo') or {}).get('operationMetrics') or {}
        for name, value in metrics.items():
            for kinds, names in _COUNTS.items():
                count = sum(actions[kind] for kind in kinds)
                if names.fullmatch(name) and count < int(value) and not _has_all_rows(name, metrics, lines):
                    raise ValueError(f'{path.name} counts {value} files ({name}), but has {count}: it may be cut')


def _has_all_rows(name: str, metrics: Mapping[str, Any], lines: Iterable[bytes]) -> bool:
    """Whether the files of a commit have the rows that it counts.

    Spark's `numFiles` counts files without rows, too, which it leaves out of the log.
    """
    if name != 'numFiles' or 'numOutputRows' not in metrics:
        return False
    actions = [json.loads(line) for line in lines if line.strip()]
    if any('cdc' in action for action in actions):  # their rows count, but are in no statistics
        return True
    texts = (action['add'].get('stats') for action in actions if 'add' in action)
    return sum(json.loads(text or '{}').get('numRecords', 0) for text in texts) >= int(metrics['numOutputRows'])


def _check_files(checksum: bytes, sizes: Sequence[int], place: str) -> None:
    """Refuse other files than a version counts in its ``.crc``."""
    try:
        about = cast('dict[str, Any]', json.loads(checksum))
        expected = int(about['numFiles']), int(about['tableSizeBytes'])
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(
            f'The .crc of the Delta table {place} cannot be read: {error!r:.200}. Restore or delete it.'
        ) from None
    if expected != (len(sizes), sum(sizes)):
        raise FormatError(
            f'The Delta table {place} counts {expected[0]} files of {expected[1]} bytes in its .crc, but its log has '
            f'{len(sizes)} of {sum(sizes)}. The log may be cut: restore it, or choose another `version`.'
        )


def _read(folder: Path) -> tuple[list[str], dict[str, IntArray], pa.RecordBatch, pa.Schema, dict[str, Any]]:
    """Read a log in a process of its own; ValueError: it cannot be read.

    Returns the paths of the files as URLs, the deleted rows by path, the keys of partitions with a row for each file,
    the columns, and what readers must know.
    """
    import pyarrow as pa

    out = folder / 'read'
    out.mkdir()
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, '-m', __name__, str(folder), str(out)],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(os.path.abspath(part) for part in sys.path if part)},  # noqa: PTH100
        cwd=out,  # empty: `-m` looks for modules in the current folder first
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors='replace').strip().splitlines()
        raise ValueError(said[-1] if said else f'its reader ended with the code {done.returncode}')
    about = json.loads((out / 'about.json').read_bytes())
    (keys,) = pa.ipc.open_stream((out / 'keys').read_bytes())
    vectors = pa.ipc.open_stream((out / 'vectors').read_bytes()).read_all().to_pydict()
    base = f'{folder.as_uri()}/'
    gone = {
        unquote(path.removeprefix(base)): np.flatnonzero(~np.array(kept, bool))
        for path, kept in zip(vectors['filepath'], vectors['selection_vector'], strict=True)
    }
    return about['paths'], gone, keys, pa.ipc.read_schema(pa.py_buffer((out / 'schema').read_bytes())), about


def _write(folder: str, out: Path) -> None:
    """Write what `_read` reads."""
    import pyarrow as pa
    from deltalake import DeltaTable

    table = DeltaTable(folder)
    actions, schema = pa.table(table.get_add_actions(flatten=True)), pa.schema(table.schema().to_arrow())
    protocol, metadata = table.protocol(), table.metadata()
    if metadata.configuration.get('delta.columnMapping.mode') == 'id':
        schema = schema.with_metadata(BY_ID)
    names = metadata.partition_columns
    kinds = [schema.field(name).type for name in names]
    arrays = [
        pa.concat_arrays(actions[f'partition.{name}'].cast(kind).chunks)
        for name, kind in zip(names, kinds, strict=True)
    ]
    arrays.append(pa.array(range(len(actions))))  # the table may have no keys
    keys = pa.RecordBatch.from_arrays(arrays, [*names, ''])
    about = {
        'paths': actions['path'].to_pylist(),
        'sizes': actions['size_bytes'].to_pylist(),
        'rows': actions['num_records'].to_pylist(),
        'reader': protocol.min_reader_version,
        'features': protocol.reader_features or [],
    }
    (out / 'about.json').write_text(json.dumps(about))
    (out / 'schema').write_bytes(schema.serialize())
    vectors = pa.table(table.deletion_vectors())
    with pa.ipc.new_stream(str(out / 'vectors'), vectors.schema) as writer:
        writer.write_table(vectors)
    with pa.ipc.new_stream(str(out / 'keys'), keys.schema) as writer:
        writer.write_batch(keys)


if __name__ == '__main__':
    _write(sys.argv[1], Path(sys.argv[2]))
