"""From a loader's configuration to the dataset and the loader that it describes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from headrace.config.packing import packing_of, stream_packing_of
from headrace.config.problems import refuse
from headrace.config.schema import DatasetConfig, LoaderConfig, StreamConfig
from headrace.errors import TopologyError
from headrace.options.constraints import field_types
from headrace.options.streams import SelectionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from headrace.dataset.dataset import StreamingDataset
    from headrace.dataset.loader import StreamingDataLoader
    from headrace.dataset.streams.stream import Stream
    from headrace.order.topology import Topology

_SOURCE = ('streams', 'remote', 'local', 'split')
_OF_WORKERS = ('prefetch_factor', 'persistent_workers', 'timeout', 'multiprocessing_context')


def build_dataset(
    config: LoaderConfig,
    *,
    topology: Topology | None = None,
    dataset_class: Callable[..., StreamingDataset] | None = None,
) -> StreamingDataset:
    """The dataset of one loader's configuration.

    Args:
        config: The configuration of the loader, such as ``load_config(path).train``.
        topology: This rank's place among all. None: a ``device_batch_size`` leaves it to the dataset's first use; a
            ``global_batch_size`` needs it at once, from torch.distributed or the launcher's environment.
        dataset_class: Class to use instead of `StreamingDataset`, or of `PackedDataset` with `packing`; it takes the
            same keywords.

    Raises:
        ConfigError: The configuration, made in Python rather than by `load_config`, breaks a rule; or its tokenizer
            cannot be loaded.
        MissingDependencyError: The tokenizer's library is not installed.
        TopologyError: The ranks do not divide the global batch size, or replication is given twice.
    """
    from headrace.dataset.dataset import StreamingDataset
    from headrace.dataset.topology import detect_topology
    from headrace.order.topology import check_batch_size
    from headrace.packing import PackedDataset

    refuse([f'{config.name or "loader"}: {rule}' for rule in _broken_rules(config)])
    make = dataset_class or (StreamingDataset if config.packing is None else PackedDataset)
    topology = _with_replication(config, topology)
    if config.global_batch_size is not None:
        ranks = topology or detect_topology(replication=config.replication or 1)
        check_batch_size(config.global_batch_size, ranks, config.uneven, config.name)
    arguments = {
        name: getattr(config, name)
        for name in field_types(DatasetConfig)
        if name not in field_types(SelectionConfig) and name not in _SOURCE
    }
    if config.loader.drop_last:
        arguments['remainder'] = 'drop'
    arguments['schedule'] = [dataclasses.asdict(point) for point in config.schedule]
    if config.shuffle_seed is None:
        del arguments['shuffle_seed']  # the dataset's default is a number
    if config.packing is not None:
        arguments['packing'] = packing_of(config.packing)
    return make(
        streams=build_streams(config, with_packing=True),
        batch_size=config.device_batch_size,
        global_batch_size=config.global_batch_size,
        topology=topology,
        **arguments,
    )


def build_loader(
    config: LoaderConfig,
    *,
    topology: Topology | None = None,
    dataset_class: Callable[..., StreamingDataset] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    generator: torch.Generator | None = None,
) -> StreamingDataLoader:
    """The loader of one loader's configuration, over the dataset that `build_dataset` makes.

    Args:
        config: As in `build_dataset`.
        topology: As in `build_dataset`.
        dataset_class: As in `build_dataset`.
        collate_fn: As in ``torch.utils.data.DataLoader``.
        worker_init_fn: As in ``torch.utils.data.DataLoader``.
        generator: As in ``torch.utils.data.DataLoader``.

    Raises:
        ConfigError: As in `build_dataset`.
        TopologyError: As in `build_dataset`.
    """
    from headrace.dataset.loader import StreamingDataLoader

    dataset = build_dataset(config, topology=topology, dataset_class=dataset_class)
    workers = config.loader
    options = loader_options({field.name: getattr(workers, field.name) for field in dataclasses.fields(workers)})
    return StreamingDataLoader(
        dataset, collate_fn=collate_fn, worker_init_fn=worker_init_fn, generator=generator, **options
    )


def loader_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a loader, without those that concern only workers if it has none."""
    return {name: value for name, value in options.items() if options['num_workers'] or name not in _OF_WORKERS}


def _broken_rules(config: LoaderConfig) -> Iterator[str]:
    if config.global_batch_size is None and config.device_batch_size is None:
        yield 'has no batch size; give `global_batch_size` or `device_batch_size`'
    yield from (broken.rule for broken in config.cross_field_errors())
    if config.packing is not None:
        yield from (f'packing: {broken.rule}' for broken in config.packing.cross_field_errors())
    for stream in config.streams:
        rules = [*stream.cross_field_errors(), *(stream.packing.cross_field_errors() if stream.packing else ())]
        yield from (f'stream {stream.name}: {broken.rule}' for broken in rules)


def build_streams(config: LoaderConfig, *, with_packing: bool = False) -> list[Stream]:
    """The streams of a loader, with its defaults, unopened."""
    from headrace.dataset.streams.stream import Stream

    single = StreamConfig(remote=config.remote, local=config.local, split=config.split)
    streams: list[Stream] = []
    for stream in config.streams or (single,):
        arguments: dict[str, Any] = {field.name: getattr(stream, field.name) for field in dataclasses.fields(stream)}
        for name in field_types(SelectionConfig):
            if arguments[name] is None:
                arguments[name] = getattr(config, name)
        arguments['packing'] = stream_packing_of(stream.packing) if with_packing and stream.packing else None
        arguments['name'] = stream.name or None  # the dataset names a single stream
        streams.append(Stream(**arguments))
    return streams


def unpacked(config: LoaderConfig, documents: int | None = None) -> LoaderConfig:
    """The loader of a packed loader's documents, in the same order; its `skip`, which counts sequences, is left out.

    Args:
        config: the loader, with or without packing.
        documents: documents of a global batch. None: as many as `config` has sequences.
    """
    streams = tuple(dataclasses.replace(stream, packing=None) for stream in config.streams)
    config = dataclasses.replace(config, packing=None, streams=streams, skip=())
    sizes = {} if documents is None else {'global_batch_size': documents, 'device_batch_size': None}
    return dataclasses.replace(config, **sizes)


def _with_replication(config: LoaderConfig, topology: Topology | None) -> Topology | None:
    if topology is None or config.replication is None or topology.replication == config.replication:
        return topology
    if topology.replication > 1:
        raise TopologyError(
            f'The topology has replication={topology.replication}, but {config.name or "the loader"} says '
            f'replication: {config.replication}. Remove the key: the trainer knows it.'
        )
    return dataclasses.replace(topology, replication=config.replication)
