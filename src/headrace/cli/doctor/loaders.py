"""Checks of loaders against the indexes of their data, for the errors and warnings of a run before its first batch."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from headrace.cli.doctor.machine import Finding
from headrace.config.build import build_loader, build_streams
from headrace.dataset.prefetch.limits import room_shortage
from headrace.errors import HeadraceError
from headrace.mixing import LoaderConfig
from headrace.order import Topology
from headrace.selection.costs import check_cost
from headrace.selection.predicate import check_columns


def cached_in(config: LoaderConfig, folder: str) -> LoaderConfig:
    """The loader with caches in another folder; data that are read in place stay where they are."""
    streams = tuple(
        stream if stream.remote is None else dataclasses.replace(stream, local=str(Path(folder, str(number))))
        for number, stream in enumerate(config.streams)
    )
    local = str(Path(folder, 'data')) if config.remote is not None else config.local
    return dataclasses.replace(config, streams=streams, local=local)


def check_loader(name: str, config: LoaderConfig, *, ranks: int = 1, nodes: int = 1) -> Iterator[Finding]:
    """Findings of one loader, made for rank 0 with caches in a temporary folder. No shard is read.

    Args:
        name: of the loader, such as `train`.
        config: the loader, whose indexes can be read.
        ranks: ranks of each node.
        nodes: nodes of the run.
    """
    replication = config.replication or 1
    topology = Topology(world_size=math.lcm(ranks * nodes, replication), num_nodes=nodes, replication=replication)
    with tempfile.TemporaryDirectory(prefix='headrace-doctor-') as folder:
        plain = _without_values(cached_in(config, folder))
        try:
            loader = build_loader(plain, topology=topology)
        except (HeadraceError, OSError) as error:
            yield Finding(_level_of(plain, topology), name, str(error))
            return
        try:
            dataset = loader.dataset
            for stream, given in zip(dataset.pool.streams, build_streams(config), strict=True):
                selection = given.selection()
                if selection is not None and selection.where is not None:
                    check_columns(selection.where, stream.shards, stream.title)
                if given.cost is not None:
                    check_cost(given.cost, stream.shards, stream.title)
            loader.plan()
        except HeadraceError as error:
            yield Finding('problem', name, str(error))
            return
        shortage = None
        if config.cache_bytes is not None:
            shortage = room_shortage(config.cache_bytes, dataset.pool.streams, *dataset.read_order(), nodes)
        if shortage is None:
            yield Finding('ok', name, 'its settings and columns suit the data')
        else:
            yield Finding('problem', name, shortage.text, shortage.fix)


def _without_values(config: LoaderConfig) -> LoaderConfig:
    """The loader without what needs values of samples, such as the rows that `where` selects."""
    parts: dict[str, Any] = {'where': None, 'cost': None}
    has_where = any(settings.where is not None for settings in (config, *config.streams))
    packing = config.packing
    if packing is not None and packing.sequences_per_epoch == 'all':  # counts the tokens of all documents
        packing = dataclasses.replace(packing, sequences_per_epoch=None)
    return dataclasses.replace(
        config,
        **parts,
        streams=tuple(dataclasses.replace(stream, **parts) for stream in config.streams),
        packing=packing,
        bucket=None,
        batch_cost=None,
        balance=None,
        loss_weight=None if config.loss_weight == 'cost' else config.loss_weight,
        peers=None,
        decisions=() if has_where else config.decisions,  # they belong to the selected samples
    )


def _level_of(config: LoaderConfig, topology: Topology) -> Literal['note', 'problem']:
    """Whether a program may still read the data, with a `collate_fn` or a dataset class of its own."""
    try:
        build_loader(config, topology=topology, collate_fn=list)
    except (HeadraceError, OSError):
        return 'problem'
    return 'note'
