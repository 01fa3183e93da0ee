"""The settings of a loader that decide how it waits, beside its data: read, and replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np

from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.prefetch.limits import prefetch_limits
from headrace.mixing import LoaderConfig

__all__ = ['OF_THE_ORDER', 'SETTINGS', 'replace_settings', 'settings_in_use', 'yaml_lines']

SETTINGS: Final = ('predownload', 'num_workers', 'cache_limit', 'shuffle_block_size', 'num_canonical_nodes')
"""Keys of `LoaderConfig`, and `num_workers` of its `loader`, in the order in which they are tuned."""

OF_THE_ORDER: Final = frozenset({'num_canonical_nodes', 'shuffle_block_size'})
"""Those that change the order, so that a checkpoint taken with another value refuses to continue."""


def replace_settings(config: LoaderConfig, values: Mapping[str, int | None]) -> LoaderConfig:
    """The configuration with other settings; those without a value here stay."""
    of_dataset = {name: value for name, value in values.items() if name != 'num_workers'}
    workers = values.get('num_workers')
    loader = config.loader if workers is None else dataclasses.replace(config.loader, num_workers=workers)
    return dataclasses.replace(config, loader=loader, **of_dataset)  # pyright: ignore[reportArgumentType]


def settings_in_use(config: LoaderConfig, dataset: StreamingDataset) -> dict[str, int | None]:
    """The settings of a loader, with their defaults filled in.

    Args:
        config: of the loader.
        dataset: built from it.

    Returns:
        The value of each of `SETTINGS`. None: the loader has no `cache_limit`, or no blocks.
    """
    order = dataset.order_config
    return {
        'num_workers': config.loader.num_workers,
        'predownload': config.predownload if config.predownload is not None else _default_predownload(dataset),
        'cache_limit': dataset.cache_limit,
        'num_canonical_nodes': order.num_canonical_nodes,
        'shuffle_block_size': order.block_size if order.has_blocks else None,
    }


def _default_predownload(dataset: StreamingDataset) -> int:
    """Samples that a default prefetch is ahead of its reader, about: it ends at a number of bytes, too."""
    batch_size = dataset.batch_size or 1
    limits = prefetch_limits(None, batch_size)
    stored = sum(int(np.sum(stream.shards.raw_bytes())) for stream in dataset.streams)
    samples = int(limits.bytes * dataset.num_samples / max(1, stored))
    return max(batch_size, min(limits.batches * batch_size, samples))


def yaml_lines(values: Mapping[str, int]) -> list[str]:
    """The lines of a configuration that give these settings to the training loader."""
    lines = ['train:', *(f'  {name}: {value}' for name, value in values.items() if name != 'num_workers')]
    if 'num_workers' in values:
        lines += ['  loader:', f'    num_workers: {values["num_workers"]}']
    return lines
