"""A configuration of one of MosaicML Streaming's orders as one of the native order, with the meaning of each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from headrace.config.schema import Config, LoaderConfig
from headrace.order.shuffle import PERMUTATIONS

__all__ = ['as_native']

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(LoaderConfig)}
_ORDER = (
    'shuffle_algo: native, in place of {}. Each global batch holds the same samples on any number of ranks, nodes and '
    'workers. A checkpoint of the order of before continues with the file of before only.'
)
_MEANINGS = {
    'num_canonical_nodes': 'which tied the order to a number of nodes. The native order has its own default, for any',
    'partition_algo': 'which dealt shards to nodes. The native order deals them in one way, to any number',
    'shuffle_block_size': 'which bounded the samples that are shuffled together. The native order chooses its own by '
    'the sizes of shards',
    'sampling_granularity': 'which took neighbours of a shard together. The native order has it with '
    '`sampling_method: fixed` only',
}


def as_native(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the native order in each loader, and a line for each change, with its meaning.

    Args:
        config: such as `config_of_foundry` returns. Loaders of the native order stay as they are.
    """
    notes: list[str] = []
    changes: dict[str, object] = {}
    for section in ('train', 'eval', 'test', 'predict'):
        value: LoaderConfig | tuple[LoaderConfig, ...] | None = getattr(config, section)
        if isinstance(value, LoaderConfig):
            changes[section] = _loader_as_native(value, section, notes)
        elif value:
            changes[section] = tuple(_loader_as_native(each, f'{section}.{each.name}', notes) for each in value)
    return dataclasses.replace(config, **changes), notes  # pyright: ignore[reportArgumentType]


def _loader_as_native(loader: LoaderConfig, name: str, notes: list[str]) -> LoaderConfig:
    if loader.shuffle_algo not in PERMUTATIONS:
        return loader
    notes.append(f'{name}: {_ORDER.format(loader.shuffle_algo)}')
    removed = list(_removed(loader))
    notes += [f'{name}: without {key}: {getattr(loader, key)}, {_MEANINGS[key]}.' for key in removed]
    return dataclasses.replace(loader, shuffle_algo='native', **{key: _DEFAULTS[key] for key in removed})


def _removed(loader: LoaderConfig) -> Iterator[str]:
    for key in _MEANINGS:
        is_kept = key == 'sampling_granularity' and loader.sampling_method == 'fixed'
        if getattr(loader, key) != _DEFAULTS[key] and not is_kept:
            yield key
