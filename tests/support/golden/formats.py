"""Recorded datasets, values and damaged datasets: read, and written again.

A dataset is copied first and read through `StreamingDataset`, as a user would. Some vectors record behaviour of
MosaicML Streaming that is a defect of it. The checks say where ours differs, and that is no failure:

- It stores big-endian arrays without swapping their bytes.
- It writes an empty shard before a sample above the size limit.
- It takes bools for `str_int`, bytes after the end of a value, and counts that contradict a value.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from headrace import CSVWriter, JSONWriter, MDSWriter, StreamingDataset, TSVWriter, XSVWriter
from headrace.errors import HeadraceError
from headrace.format import (
    JSONEncoder,
    MDSEncoder,
    ShardEncoder,
    ShardInfo,
    XSVEncoder,
    decompress,
    dump_index,
    is_mds_encoding,
    mds_decode,
    mds_encode,
    parse_index,
)
from headrace.format.encodings.registry import get_mds_encoded_size
from tests.support.golden.case import Case, Outcome, read_json
from tests.support.golden.values import NoValueError, covers, neutral, value

__all__ = ['run']

_REFUSALS = (HeadraceError, ValueError, TypeError, AttributeError, KeyError, OverflowError, OSError)
"""Errors of writers and encodings, which keep the classes that MosaicML Streaming raises."""


def run(folder: Path) -> Iterator[Outcome]:
    """Run ``formats/`` and ``corrupt/``: one outcome for each vector."""
    formats = folder / 'formats'
    if (formats / 'manifest.json').exists():
        for case in read_json(formats / 'manifest.json')['cases']:
            yield from _fixture(formats, case)
    if (formats / 'encodings.json').exists():
        yield from _encodings(read_json(formats / 'encodings.json'))
    if (formats / 'keep_zip.json').exists():
        for case in read_json(formats / 'keep_zip.json'):
            yield from _keep_zip(formats, case)
    if (folder / 'corrupt' / 'manifest.json').exists():
        yield from _corrupt(folder / 'corrupt')


# -- datasets -------------------------------------------------------------------------------------------------------


def _fixture(formats: Path, case: Case) -> Iterator[Outcome]:
    name, expected = case['id'], read_json(formats / f'{case["id"]}.expected.json')
    reads = expected.get('reads') or {'': {**expected, 'split': case['split'], 'root': ''}}
    for read, wanted in reads.items():
        yield f'read {name} {read}'.rstrip(), _named(lambda wanted=wanted: _read_problem(formats / name, case, wanted))
    yield f'index {name}', _named(lambda: _index_problem(formats / name))
    with contextlib.suppress(_NotComparableError):
        yield f'write {name}', _named(lambda: _write_problem(case, expected))


class _NotComparableError(Exception):
    """A vector that our right result cannot equal."""


def _named(check: Any) -> str:
    try:
        return check()
    except _NotComparableError:
        raise
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def _read_problem(source: Path, case: Case, wanted: dict[str, Any]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(source, Path(scratch) / 'data')
        root = copy / wanted['root']

        def opened() -> StreamingDataset:
            return StreamingDataset(
                local=str(root), split=wanted['split'] or None, batch_size=1, shuffle=False, **case['reader_args']
            )

        if 'raises' in wanted:
            try:
                opened()
            except HeadraceError:
                return ''
            return f'no error, instead of {wanted["raises"]}'
        dataset = opened()
        sizes = dataset.streams[0].shard_sizes().tolist()
        if sizes != wanted['shard_samples']:
            return f'shards of {sizes} samples instead of {wanted["shard_samples"]}'
        if not _is_complete(dataset):
            return ''  # an index whose files are elsewhere
        problems = [_sample_problem(dataset, number, sample) for number, sample in enumerate(wanted['samples'])]
        return next(filter(None, problems), '')


def _is_complete(dataset: StreamingDataset) -> bool:
    stream = dataset.streams[0]
    return all(
        (stream.folder / file.raw.basename).exists()
        or (file.zip is not None and (stream.folder / file.zip.basename).exists())
        for info in stream.shards
        for file in info.files
    )


def _sample_problem(dataset: StreamingDataset, number: int, wanted: dict[str, Any]) -> str:
    is_error = isinstance(wanted.get('raises'), str)
    try:
        sample = dataset[number]
    except HeadraceError as error:
        return '' if is_error else f'sample {number}: {error}'
    if is_error:
        return f'sample {number} is read, instead of {wanted["raises"]}'
    if list(sample) != list(wanted):
        return f'sample {number} has the columns {list(sample)} instead of {list(wanted)}'
    wrong = [name for name, got in sample.items() if not covers(wanted[name], neutral(got))]
    return f'sample {number} differs in {wrong}' if wrong else ''


def _index_problem(source: Path) -> str:
    for path in source.rglob('index.json'):
        data = path.read_bytes()
        shards = parse_index(data, source=str(path), allow_unsafe_types=True, allow_empty=True)
        if dump_index(shards, version_first=data.startswith(b'{"version"')) != data:
            return f'{path.name} of {path.parent.name} is dumped differently'
    return ''


def _write_problem(case: Case, expected: dict[str, Any]) -> str:
    inputs = _inputs(case, expected)
    encoder = _encoder(case['writers'])
    try:
        shards = [shard for sample in inputs for shard in encoder.add(sample)] + encoder.finish()
    except OverflowError:
        raise _NotComparableError from None  # MosaicML Streaming stores large floats as infinity
    written = dict(file for shard in shards for file in shard.files)
    written['index.json'] = dump_index([shard.info for shard in shards])
    recorded = {file['path']: file for file in case['files']}
    if set(written) != set(recorded):
        return f'the files {sorted(written)} instead of {sorted(recorded)}'
    compression = case['writers'].get('compression')
    for name, data in written.items():
        if hashlib.sha256(data).hexdigest() == recorded[name]['sha256']:
            continue
        if not compression:
            return f'{name} differs'
        # Another version of a compressor writes other bytes, whose sizes are in the index.
        raw = recorded[name].get('raw_sha256')
        if raw is not None and hashlib.sha256(decompress(compression, data)).hexdigest() != raw:
            return f'{name} differs once it is unpacked'
    return ''


def _inputs(case: Case, expected: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples that the recorded writer wrote."""
    if not isinstance(case['writers'], dict) or 'columns' not in case['writers']:
        raise _NotComparableError  # several writers
    recorded = expected.get('inputs') or expected.get('samples')
    if recorded is None:
        if expected.get('num_samples', 1) or len(case['files']) > 1:
            raise _NotComparableError
        recorded = []
    text = json.dumps(recorded)
    if '"byteorder": "big"' in text or '"raises": "' in text or 0 in expected.get('shard_samples', []):
        raise _NotComparableError
    try:
        samples = [{name: value(form) for name, form in sample.items()} for sample in recorded]
    except NoValueError:
        raise _NotComparableError from None
    counts = [name for name, encoding in case['writers']['columns'].items() if encoding == 'str_int']
    if any(isinstance(sample[name], bool) for sample in samples for name in counts):
        raise _NotComparableError
    return samples


def _encoder(args: dict[str, Any]) -> ShardEncoder:
    options = {key: args[key] for key in ('compression', 'hashes', 'size_limit', 'newline') if key in args}
    kind = args['writer']
    if kind == 'mds':
        return MDSEncoder(args['columns'], **options)
    if kind == 'json':
        return JSONEncoder(args['columns'], **options)
    return XSVEncoder(args['columns'], shard_format=kind, separator=args.get('separator'), **options)


# -- single values --------------------------------------------------------------------------------------------------


def _encodings(vectors: dict[str, list[Case]]) -> Iterator[Outcome]:
    for kind, check in (
        ('encode', _encode_problem),
        ('decode', _decode_problem),
        ('sizes', _size_problem),
        ('writer_errors', _writer_problem),
    ):
        for number, vector in enumerate(vectors.get(kind, [])):
            with contextlib.suppress(_NotComparableError, NoValueError):
                subject = vector.get('encoding') or vector.get('writer')
                yield f'{kind} {number} {subject}', _value_problem(check, vector)


def _value_problem(check: Any, vector: Case) -> str:
    try:
        return check(vector)
    except (_NotComparableError, NoValueError):
        raise
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def _encode_problem(vector: Case) -> str:
    encoding, given = vector['encoding'], value(vector['input'])
    if vector['input'].get('byteorder') == 'big' or (encoding == 'str_int' and isinstance(given, bool)):
        raise _NotComparableError
    try:
        data = mds_encode(encoding, given)
    except _REFUSALS as error:
        if encoding.startswith('float') and isinstance(error, OverflowError):
            raise _NotComparableError from None  # MosaicML Streaming stores it as infinity
        return '' if 'raises' in vector else f'{type(error).__name__}: {error}'
    if 'raises' in vector:
        return f'it is encoded, instead of {vector["raises"]}'
    if hashlib.sha256(data).hexdigest() != vector['sha256']:
        return 'the bytes differ'
    if 'decoded' in vector and not covers(vector['decoded'], neutral(mds_decode(encoding, data))):
        return 'the decoded value differs'
    return ''


def _decode_problem(vector: Case) -> str:
    encoding, data = vector['encoding'], bytes.fromhex(vector['hex'])
    try:
        got = mds_decode(encoding, data)
    except HeadraceError:
        # Bytes that no writer writes may be refused.
        return '' if 'raises' in vector or not _is_canonical(encoding, vector) else 'it is refused'
    except Exception as error:
        return f'{type(error).__name__}, which is no error of ours: {error}'
    if 'raises' in vector:
        return '' if _is_canonical(encoding, {'decoded': neutral(got), **vector}) else 'it is decoded'
    return '' if covers(vector['decoded'], neutral(got)) else 'the decoded value differs'


def _is_canonical(encoding: str, vector: Case) -> bool:
    """Whether a writer could have written these bytes."""
    try:
        return mds_encode(encoding, value(vector['decoded'])).hex() == vector['hex']
    except (*_REFUSALS, NoValueError):
        return False


def _size_problem(vector: Case) -> str:
    encoding = vector['encoding']
    if is_mds_encoding(encoding) != vector.get('supported', False):
        return f'supported: {is_mds_encoding(encoding)}'
    try:
        size = get_mds_encoded_size(encoding)
    except HeadraceError:
        return 'an error' if 'fixed_size' in vector else ''
    return '' if 'fixed_size' in vector and size == vector['fixed_size'] else f'size {size}'


_WRITERS = {'mds': MDSWriter, 'json': JSONWriter, 'csv': CSVWriter, 'tsv': TSVWriter, 'xsv': XSVWriter}


def _writer_problem(vector: Case) -> str:
    samples = [{name: value(form) for name, form in sample.items()} for sample in vector['samples']]
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _WRITERS[vector['writer']](out=f'{folder}/out', **vector['args']) as writer:
                for sample in samples:
                    writer.write(sample)
        except _REFUSALS as error:
            return '' if vector.get('raises') else f'{type(error).__name__}: {error}'
    return f'no error, instead of {vector["raises"]}' if vector.get('raises') else ''


# -- files of a cache -----------------------------------------------------------------------------------------------


def _keep_zip(formats: Path, case: Case) -> Iterator[Outcome]:
    """Files after all samples were read; those before depend on when headrace unpacks, which is later."""
    if case['reading_raises'] is not None or 'remote_files' not in case or not case['remote'].startswith('another'):
        return
    source = _dataset_with(formats, case['remote_files'])
    if source is not None:
        yield f'keep_zip {case["name"]}', _named(lambda: _keep_zip_problem(source, case))


def _dataset_with(formats: Path, files: dict[str, int]) -> Path | None:
    """A recorded dataset with exactly these files, by name and size."""
    for index in formats.glob('*/index.json'):
        found = {path.name: path.stat().st_size for path in index.parent.iterdir() if path.is_file()}
        if found == files:
            return index.parent
    return None


def _keep_zip_problem(source: Path, case: Case) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) / 'local'
        dataset = StreamingDataset(remote=str(source), local=str(local), keep_zip=case['keep_zip'], batch_size=1)
        for number in range(len(dataset)):
            dataset[number]
        found = sorted(path.name for path in local.iterdir() if not path.name.startswith('.headrace'))
    return '' if found == case['local_after_reading_all'] else f'the files {found}'


# -- damaged datasets -----------------------------------------------------------------------------------------------


def _corrupt(folder: Path) -> Iterator[Outcome]:
    cases = read_json(folder / 'manifest.json')['cases']
    written = _Written(folder, cases)
    for case in cases:
        yield f'corrupt {case["id"]}', _named(lambda case=case: _corrupt_problem(folder, case, written))


class _Written:
    """The right samples, of datasets whose upstream reads are recorded as right."""

    def __init__(self, folder: Path, cases: list[Case]) -> None:
        self._samples: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for case in cases:
            right = [int(at) for at, what in case['upstream'].get('reads', {}).items() if what == 'as written']
            if right and case['upstream']['construct'] == 'ok':
                with contextlib.suppress(HeadraceError, OSError), _opened(folder, case) as dataset:
                    for at in right:
                        with contextlib.suppress(HeadraceError, IndexError):
                            self._samples[_schema_of(dataset)].append(_form(dataset[at]))

    def knows(self, dataset: StreamingDataset, form: dict[str, Any]) -> bool:
        """Whether a sample was written."""
        return form in self._samples[_schema_of(dataset)]


def _schema_of(dataset: StreamingDataset) -> tuple[Any, ...]:
    info: ShardInfo = dataset.streams[0].shards[0]
    return info.format, tuple(sorted(info.schema.names))


def _form(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: neutral(got) for name, got in sample.items()}


@contextlib.contextmanager
def _opened(folder: Path, case: Case) -> Generator[StreamingDataset]:
    """The dataset of a case, of a copy of its files."""
    how = dict(case['open_as'])
    place, where = how.pop('folder', ''), how.pop('where')
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(folder / case['id'], Path(scratch) / 'data', symlinks=True) / place
        if where == 'remote':
            yield StreamingDataset(remote=str(copy), local=f'{scratch}/local', batch_size=1, download_retry=0, **how)
        else:
            yield StreamingDataset(local=str(copy), batch_size=1, **how)


def _corrupt_problem(folder: Path, case: Case, written: _Written) -> str:
    """Each sample is right, or an error of ours."""
    try:
        with _opened(folder, case) as dataset:
            if case['upstream']['construct'] != 'ok':
                return f'it is opened, instead of {case["upstream"]["construct"]}'
            reads = case['upstream'].get('reads', {})
            for at in range(len(dataset)):
                try:
                    form = _form(dataset[at])
                except HeadraceError:
                    continue
                # A flipped bit shows only where a hash is asked for. A wrong count shifts the samples after it.
                is_unseen = reads.get(str(at)) == 'WRONG VALUE' and 'validate_hash' not in case['open_as']
                if not is_unseen and not written.knows(dataset, form):
                    return f'sample {at} is none that was written'
    except HeadraceError:
        return ''
    return ''
