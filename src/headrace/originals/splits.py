"""The conversion of a known dataset's splits. A split that an earlier call has finished is kept.

``original.json`` beside the index of a split says what it was made of: dataset, split, options, and a digest of its
records. It lies there before the index does. So a split with an index and the same ``original.json`` is finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from headrace.convert.apart import check_apart
from headrace.convert.conversion import convert
from headrace.convert.inputs.records import RecordInputs
from headrace.convert.job import CONVERSION, JobFolder
from headrace.convert.report import ConversionReport, InputError
from headrace.dataset.writing.place import StorePlace
from headrace.errors import ConfigError, ObjectNotFoundError
from headrace.errors.redaction import logger_of
from headrace.format import bytes_to_int, parse_index
from headrace.storage import Retry, StoreOptions, local_path, open_store

_ORIGINAL: Final = 'original.json'
_log = logger_of(__name__)


def convert_splits(
    name: str,
    records_function: str,
    known: Sequence[str],
    source: str,
    out: str,
    *,
    splits: Sequence[str] | None,
    limit: int | None,
    options: Mapping[str, Any],
    **settings: Any,
) -> dict[str, ConversionReport]:
    records, path = resolve_name(records_function), local_path(source)
    if path is None:
        raise ConfigError(
            f'The source of a known dataset is a folder or file of this machine, but is {source!r}. Copy it there '
            f'first, as its owners distribute it.'
        )
    if wrong := [split for split in splits or () if split not in known]:
        has = f'has the splits {", ".join(known)}' if known else 'has no splits'
        raise ConfigError(f'The dataset {name} {has}, but got {wrong[0]!r}.')
    if not Path(path).exists():
        raise ObjectNotFoundError(f'{name} is read from a folder or file, but {source} does not exist. Check the path.')
    check_apart(path, out)
    listed: dict[str, RecordInputs[Any]] = {}
    missing: list[ObjectNotFoundError] = []
    for split in splits or known or (None,):
        try:
            listed[split or ''] = records(Path(path), split, **options)
        except ObjectNotFoundError as error:  # noqa: PERF203 - a few splits
            if splits or not known:
                raise
            missing.append(error)
    if not listed:
        raise missing[0]
    for error in missing:
        _log.warning('Left out a split that is not there. %s', error)
    reports: dict[str, ConversionReport] = {}
    for split, all_inputs in listed.items():
        inputs = all_inputs.first(limit)
        place = f'{out.rstrip("/")}/{split}' if split else out
        made_of = {
            'original': name,
            'split': split,
            'options': dict(options),
            'records': len(inputs),
            'digest': inputs.digest(0, len(inputs)),
            'columns': dict(inputs.columns or {}),
            'compression': settings['compression'],
            'hashes': settings['hashes'],
            'size_limit': bytes_to_int(settings['size_limit']),
            'on_error': settings['on_error'],
        }
        done = None if settings['exist_ok'] else _finished(place, made_of, settings['out_options'])
        inputs = inputs.with_files({_ORIGINAL: json.dumps(made_of, indent=1).encode()})
        reports[split] = done or convert(inputs, place, **settings)
    return reports


def _finished(out: str, made_of: Mapping[str, Any], options: StoreOptions | None) -> ConversionReport | None:
    """The report of a split that is converted already, from the same records with the same settings."""
    place = StorePlace(open_store(out, options or StoreOptions()), Retry())
    try:
        index = place.read('index.json')
        if JobFolder(place).read():
            return None  # killed just before its end: `convert` does the rest
        if json.loads(place.read(_ORIGINAL)) != made_of:
            return None
    except (ObjectNotFoundError, ValueError):
        return None
    if place.list(f'{CONVERSION}/'):
        with JobFolder(place).claimed():
            pass  # removes what a killed call has left
    lines = (place.read_if_there('errors.jsonl') or b'').splitlines()
    errors = tuple(InputError(**json.loads(line)) for line in lines)
    parse_index(index, source=f'{place.shown}/index.json', allow_empty=True)
    shards: list[dict[str, Any]] = json.loads(index)['shards']
    return ConversionReport(
        out=place.shown,
        kind=made_of['original'],
        columns=made_of['columns'],
        inputs=made_of['records'],
        rows=sum(shard['samples'] for shard in shards),
        shards=len(shards),
        raw_bytes=sum(shard['raw_data']['bytes'] for shard in shards),
        stored_bytes=sum((shard['zip_data'] or shard['raw_data'])['bytes'] for shard in shards),
        seconds=0.0,
        tasks_done_before=1,  # all that there is
        errors=errors,
        num_errors=len(errors),
    )
