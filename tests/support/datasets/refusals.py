"""A good configuration, changes of it, and the lines of a refusal."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.mixing import Config, LoaderConfig, StreamConfig, WorkerConfig, load_config
from headrace.options.constraints import field_types
from headrace.order import families

TWO_STREAMS: dict[str, Any] = {
    'global_batch_size': 512,
    'train': {'streams': {'code': {'remote': 's3://b/code'}, 'prose': {'remote': 's3://b/prose'}}},
}


def errors(source: Any, overrides: Any = ()) -> list[str]:
    """The lines of the refusal, without the head and without the place of a mapping."""
    with pytest.raises(ConfigError) as raised:
        load_config(source, overrides=overrides)
    head, *lines = str(raised.value).split('\n')
    count = 'one error' if len(lines) == 1 else f'{len(lines)} errors'
    assert head == f'{count} in the configuration:'
    assert all(line.startswith('  ') for line in lines)
    return [line.removeprefix('  ').removeprefix('the given mapping: ') for line in lines]


def changed(**changes: Any) -> dict[str, Any]:
    """GOOD with values put in at keys written `a__b__c`."""
    result = copy.deepcopy(TWO_STREAMS)
    for key, value in changes.items():
        *outer, last = key.split('__')
        container = result
        for part in outer:
            container = container.setdefault(part, {})
        container[last] = value
    return result


SIZE = "or text like '100kb', '64mb', '10gb'"
ALGORITHMS = ', '.join(families.ALGORITHMS)


PLACES: list[tuple[type, tuple[str, ...]]] = [
    (Config, ()),
    (LoaderConfig, ('train',)),
    (StreamConfig, ('train', 'streams', 'code')),
    (WorkerConfig, ('train', 'loader')),
]


ALL_KEYS = {key for cls, _ in PLACES for key in field_types(cls)} | {'defaults', 'variables'}
MINIMAL: dict[str, Any] = {'device_batch_size': 4, 'train': {'local': '/data'}}


def write(folder: Path, **files: str) -> Path:
    """Write `name.yaml` for each keyword; returns the last one's path."""
    path = folder
    for name, text in files.items():
        path = folder / f'{name}.yaml'
        path.write_text(text)
    return path


def train(source: Any, *overrides: str) -> LoaderConfig:
    config = load_config(source, overrides=overrides).train
    assert config is not None
    return config
