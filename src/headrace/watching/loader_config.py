"""The configuration that a loader could have been made from, so that a reader of the record can make it again."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.mixing import load_config, to_mapping
from headrace.order import with_more
from headrace.redaction import without_credentials

if TYPE_CHECKING:
    from headrace.dataset import Stream, StreamingDataLoader
    from headrace.order import StreamSize

__all__ = ['loader_config']

_OF_STREAM = ('split', 'endpoint_url', 'region', 'anonymous', 'requester_pays', 'fraction_seed', 'format')
_OF_ORDER = {
    'shuffle': 'shuffle',
    'shuffle_algo': 'algorithm',
    'num_canonical_nodes': 'num_canonical_nodes',
    'shuffle_block_size': 'block_size',
    'batching_method': 'batching',
    'partition_algo': 'partition',
    'sampling_method': 'sampling',
    'sampling_granularity': 'sampling_granularity',
}


def loader_config(loader: StreamingDataLoader) -> dict[str, Any] | None:
    """A training loader's configuration as YAML would have it, without credentials and store options.

    Returns:
        None if YAML cannot describe the loader: it packs documents, or selects samples by a function.
    """
    dataset = loader.dataset
    if dataset.is_packed:
        return None
    asked = dataset.run.asked
    order = asked.order
    values: dict[str, Any] = {
        'streams': [
            {**_stream(stream), **_weight(size)}
            for stream, size in zip(dataset.streams, dataset.mixture.streams, strict=True)
        ],
        'global_batch_size': loader.global_batch_size,
        'remainder': loader.remainder,
        'epoch_size': asked.epoch_size,
        'when_exhausted': asked.when_exhausted,
        'skip': with_more(dataset.skip, ()),
        **{key: getattr(order, name) for key, name in _OF_ORDER.items()},
    }
    if type(order.seed) is int:  # a default that nobody gave is of another type
        values['shuffle_seed'] = order.seed
    if asked.schedule is not None:
        values['schedule'] = [dataclasses.asdict(point) for point in asked.schedule.points]
    given = {key: value for key, value in values.items() if value is not None}
    try:
        config = load_config({'train': given}).train
        assert config is not None
        return json.loads(json.dumps(to_mapping(config)))
    except (HeadraceError, TypeError, ValueError):  # a selection by a Python function, for example
        return None


def _stream(stream: Stream) -> dict[str, Any]:
    found = {'name': stream.name, 'local': os.path.abspath(stream.local)}  # noqa: PTH100 - keeps links
    if stream.remote is not None:
        remote = without_credentials(stream.remote)
        found['remote'] = remote if '://' in remote else os.path.abspath(remote)  # noqa: PTH100
    found |= {name: getattr(stream, name) for name in _OF_STREAM}
    if stream.endpoint_url is not None:
        found['endpoint_url'] = without_credentials(stream.endpoint_url)
    for name in ('subset', 'fraction', 'where'):  # as users write them, or read already
        value = getattr(stream, name)
        found[name] = getattr(value, 'plain', value)
    return {key: value for key, value in found.items() if value is not None and value != ''}


def _weight(size: StreamSize) -> dict[str, Any]:
    weights = {'proportion': size.proportion, 'repeat': size.repeat, 'choose': size.choose}
    return {key: value for key, value in weights.items() if value is not None}
