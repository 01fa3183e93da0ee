"""A simulated run: ranks on nodes that step together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.config.build import build_dataset
from headrace.dataset.dataset import StreamingDataset
from headrace.dataset.prefetch.limits import downloads_of_nodes, fixed_bytes, max_bytes_ahead
from headrace.errors import ConfigError
from headrace.mixing import LoaderConfig
from headrace.order import BatchPlan
from headrace.simulate.node import Node, Owners, Rank
from headrace.simulate.result import Conditions, SharedCaches, SimulatedRun, SimulatedStep
from headrace.simulate.world import Event, Process, World

_LEAST_BATCHES, _ROWS_PER_SHARD, _ROWS_AT_ONCE = 64, 30, 1 << 16
_MOST_WORKERS = 256  # of a rank; each is a process with its own prefetch
_NODES = 4  # simulated at most; others do the same with other shards


def simulate(
    config: LoaderConfig,
    conditions: Conditions,
    *,
    check: Callable[[], None] = lambda: None,
    without_peers: bool = True,
) -> SimulatedRun:
    """Simulate the first epochs of a run.

    It reads the indexes of the streams, and shards only for a new filter `where` or `cost`. The order, the batches, the
    shards of each batch, and the prefetch are the true ones. Nodes above the fourth are taken for like the first four.
    Caches are empty at the start.

    Args:
        config: the training loader.
        conditions: machines, network and model.
        check: called now and then; what it raises ends the simulation.
        without_peers: of a loader with `peers`, also simulate one without them, as `SimulatedRun.alone`.

    Raises:
        ConfigError: the loader packs documents, whose number of tokens is not known before they are read; an epoch has
            no batch; or the workers are too many.
        TopologyError: the ranks do not divide the global batch.
        StreamError, OSError: the index of a stream cannot be read.
    """
    if config.packing is not None:
        raise ConfigError(
            'a simulation needs a loader without `packing`, since the documents of a batch are known when they are '
            'read. Say how many a global batch has, about: by --documents N on the command line, or by '
            '`headrace.config.build.unpacked(config, N)` in Python.'
        )
    workers = config.loader.num_workers
    if not 0 <= workers <= _MOST_WORKERS:
        raise ConfigError(f'a simulation needs `num_workers` from 0 to {_MOST_WORKERS:,}, got {workers}.')
    topology = conditions.topology(config)
    dataset = build_dataset(config, topology=topology)
    world = World(check)
    shards = [stream.shards for stream in dataset.streams]
    stored = np.concatenate([each.stored_bytes() for each in shards])
    raw = np.concatenate([each.raw_bytes() for each in shards])
    sizes = [len(each) for each in shards]
    in_place = np.repeat([stream.is_local for stream in dataset.streams], sizes)
    keeps_zip = np.repeat([bool(stream.keep_zip) for stream in dataset.streams], sizes)
    kept = raw + np.where(keeps_zip & (stored != raw), stored, 0)
    fixed, max_bytes = fixed_bytes(dataset.pool.streams), math.inf
    limit = None if dataset.cache_limit is None else dataset.cache_limit - fixed
    owners = None
    if dataset.peers is not None:
        owners = Owners(np.where(in_place, 0, raw), conditions.nodes, limit)
    if limit is not None:
        room = math.floor(limit if owners is None else owners.room)
        max_bytes = max_bytes_ahead(room + fixed, dataset.pool.streams)
    nodes = [
        Node(world, conditions, stored, raw, kept, in_place, limit, owners, number)
        for number in range(min(conditions.nodes, _NODES))
    ]
    steps: list[SimulatedStep] = []
    total = 0
    before: list[Rank] = []
    for epoch in range(conditions.epochs):
        plan = dataset.plan(epoch=epoch, topology=topology)
        total = plan.num_batches
        if owners is not None:
            owners.count_anew()
        ranks = [
            Rank(
                world,
                node,
                dataset,
                plan.of_rank(number * conditions.ranks_per_node + local),
                config,
                conditions,
                max_bytes=max_bytes,
            )
            for number, node in enumerate(nodes)
            for local in range(conditions.ranks_per_node)
        ]
        for rank, its_before in zip(ranks, before, strict=False):
            rank.follow(its_before)
        before = ranks
        count = min(total, conditions.batches)
        over = Event()
        for rank in ranks:
            rank.made = {number: Event() for number in range(count)}
            check()
            rank.begin()
        world.start(_train(world, nodes, ranks, count, epoch, conditions, steps, over))
        world.run(lambda over=over: over.has_happened)
        for rank in ranks:
            rank.end()
    plan = dataset.plan(topology=topology)
    global_batch_size = plan.global_batch_size
    if plan.epochs_differ and total:  # that was the most rows
        global_batch_size = round(plan.epoch_samples / total)
    if not steps:
        raise ConfigError(
            f'a simulation needs a batch, and {len(dataset)} samples fill no global batch of {global_batch_size}. '
            'Lower the batch size, or set `remainder` to repeat or exact.'
        )
    arriving = stored if owners is None else np.where(owners.owner == 0, stored, raw)
    run = SimulatedRun(
        conditions=conditions,
        steps=tuple(steps),
        epoch_batches=total,
        global_batch_size=global_batch_size,
        dataset_bytes=int(stored.sum()),
        dataset_shards=len(stored),
        planned_bytes=int(arriving[_used(dataset, plan) & ~in_place].sum()),
        has_limit=dataset.cache_limit is not None,
        evicts=any(node.evicts for node in nodes),
        fetched_bytes=sum(node.link.bytes for node in nodes) // len(nodes),
        fetched_shards=sum(node.fetched for node in nodes) // len(nodes),
        cache_bytes=max(node.most_cached for node in nodes),
        shared_shards=downloads_of_nodes(dataset.pool.streams, *dataset.read_order(), conditions.nodes),
        lengths=dataset.run.length_waste(plan),
        hit_share=sum(node.hits for node in nodes) / max(1, sum(node.reads for node in nodes)),
    )
    if owners is None:
        return run
    used, *earlier = (
        _used(dataset, dataset.plan(epoch=epoch, topology=topology), of_all=True)
        for epoch in reversed(range(conditions.epochs))
    )
    remote = np.where(in_place, 0, stored)
    new = used & owners.is_kept & ~np.any([np.zeros_like(used), *earlier], axis=0)
    again = int(remote[used & ~owners.is_kept].sum())
    shared = SharedCaches(
        used_bytes=int(remote[used].sum()),
        store_bytes=int(remote[new].sum() + again * owners.requests),
        peer_share=sum(node.bytes_from_peers for node in nodes) / max(1, sum(node.link.bytes for node in nodes)),
        gone_share=again / max(1, int(remote[used].sum())),
        limit_for_all=owners.limit_for_all + fixed,
    )
    alone = simulate(replace(config, peers=None), conditions, check=check) if without_peers else None
    return replace(run, shared=shared, alone=alone)


def _used(dataset: StreamingDataset, plan: BatchPlan, *, of_all: bool = False) -> npt.NDArray[np.bool_]:
    """The shards of an epoch, of the first node or of all, bool[shards]; of many rows, some of many batches tell."""
    used = np.zeros(sum(len(stream.shards) for stream in dataset.streams), bool)
    rows = max(1, plan.batch_size * plan.topology.replicas_per_node)
    wanted = max(_LEAST_BATCHES * rows, _ROWS_PER_SHARD * len(used))
    rng = np.random.default_rng(0)
    if of_all:
        spans = plan.spans(0, plan.num_batches)
        step = max(1, sum(end - begin for begin, end in spans) // wanted)
        chosen = [np.arange(begin, end, step) for begin, end in spans]
        ends = np.repeat([end for _, end in spans], [len(each) for each in chosen])
        positions = np.concatenate(chosen)
        positions = np.minimum(positions + rng.integers(step, size=len(positions)), ends - 1)
    else:
        # Batches of a few rows each: one of an order without shuffle meets a single shard, however many rows it has.
        looked_at = min(plan.num_batches, max(_LEAST_BATCHES, 2 * len(used), wanted // rows))
        some = -(-wanted // max(1, looked_at))
        numbers = np.linspace(0, plan.num_batches - 1, looked_at).astype(int).tolist()
        batches = map(plan.node_positions, numbers)
        positions = np.concatenate(
            [each if len(each) <= some else each[rng.integers(len(each), size=some)] for each in batches]
        )
    for first in range(0, len(positions), _ROWS_AT_ONCE):
        used[dataset.locate(plan.order.at(positions[first : first + _ROWS_AT_ONCE]))[0]] = True
    return used


def _train(
    world: World,
    nodes: list[Node],
    ranks: list[Rank],
    count: int,
    epoch: int,
    conditions: Conditions,
    steps: list[SimulatedStep],
    over: Event,
) -> Process:
    """The training loop: each step begins when every rank has its batch."""
    for number in range(count):
        begin = world.now
        ends = [Event() for _ in ranks]
        for rank, end in zip(ranks, ends, strict=True):
            world.start(_fetch_batch(world, rank, number, end))
        for end in ends:
            if not end.has_happened:
                yield end
        wait = world.now - begin
        yield conditions.step_seconds
        fetched = sum(node.link.bytes for node in nodes) / len(nodes)
        steps.append(SimulatedStep(epoch, number, world.now, wait, fetched, max(node.cached for node in nodes)))
    world.happens(over)


def _fetch_batch(world: World, rank: Rank, number: int, end: Event) -> Process:
    yield from rank.batch(number)
    world.happens(end)
