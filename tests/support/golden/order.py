"""Reference vectors of whole orders, of the calls inside them, and of the samples of real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.format import number_abbrev_to_int
from headrace.order import BatchPlan, Mixture, OrderConfig, StreamSize, Topology, make_order, make_plan
from headrace.order.mosaicml.batching import Devices
from headrace.order.mosaicml.epoch_arrays import get_partitions, get_shuffle, work_array
from headrace.order.mosaicml.epoch_permutation import Draws
from headrace.order.mosaicml.order import MosaicMLOrder
from tests.support.golden.case import Case, Outcome, array_problem, expect_error, read_arrays, read_json

__all__ = ['call_partitions', 'call_shuffle', 'mixture_of', 'resampled', 'run']

# Right arguments for which MosaicML Streaming fails: any order with equal ranks passes.
_CRASHES = ('broadcast_mismatch', 'reshape_mismatch')


class Run(NamedTuple):
    """A case's arguments, as our values."""

    config: OrderConfig
    mixture: Mixture
    topology: Topology
    order: MosaicMLOrder
    args: Case

    @property
    def batch_size(self) -> int:
        """Samples per device."""
        return self.args['batch_size']

    def plan(self, rank: int) -> BatchPlan:
        """The samples of a rank of the whole world."""
        topology = world(self.args, rank)
        return make_plan(
            self.order,
            topology,
            global_batch_size=self.batch_size * topology.replicas,
            start=self.args.get('sample_in_epoch', 0),
            initial_nodes=self.args.get('initial_physical_nodes'),
        )


def run(folder: Path) -> Iterator[Outcome]:
    """Run ``order/``: one outcome for each case, each trace and each real run."""
    path = folder / 'order' / 'manifest.json'
    if not path.exists():
        return
    arrays = read_arrays(path.with_name('arrays.npz'))
    cases: dict[str, Case] = {case['id']: case for case in read_json(path)['cases']}
    for case in cases.values():
        yield f'order {case["id"]} ({case.get("family")})', _guarded(_case_problem, case, arrays)
    traces = path.with_name('traces.json')
    if traces.exists():
        outputs = read_arrays(path.with_name('traces.npz'))
        for trace in read_json(traces)['cases']:
            yield f'trace {trace["id"]}', _guarded(_trace_problem, trace, cases[trace['id']], outputs)
    real = path.with_name('e2e.json')
    if real.exists():
        for found in read_json(real)['cases']:
            yield f'e2e {found["id"]}', _guarded(_ranks_problem, found, cases[found['id']])


def _guarded(check: Any, *arguments: Any) -> str:
    try:
        return check(*arguments)
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def mixture_of(args: Case) -> Mixture:
    """The streams of a case, and an epoch's draws of them."""
    epoch_size = args.get('epoch_size')
    return Mixture.resolve(
        [
            StreamSize(
                name=f'stream_{i}',
                shard_sizes=np.array(stream['shards'], np.int64),
                **{key: stream[key] for key in ('proportion', 'repeat', 'choose') if stream.get(key) is not None},
            )
            for i, stream in enumerate(args['streams'])
        ],
        epoch_size=None if epoch_size is None else number_abbrev_to_int(epoch_size),
        seed=args['shuffle_seed'],
    )


def config_of(args: Case) -> OrderConfig:
    """The requested order of a case."""
    return OrderConfig(
        shuffle=args['shuffle'],
        algorithm=args['shuffle_algo'],
        seed=args['shuffle_seed'],
        num_canonical_nodes=args['num_canonical_nodes'],
        block_size=args['shuffle_block_size'],
        batching=args['batching_method'],
        sampling=args.get('sampling_method', 'balanced'),
        sampling_granularity=args.get('sampling_granularity', 1),
        partition=args['partition_algo'],
    )


def world(args: Case, rank: int = 0) -> Topology:
    """A rank of the case's world."""
    nodes, ranks = args['world']['num_nodes'], args['world']['ranks_per_node']
    replication = args.get('replication')
    return Topology(
        rank=rank, world_size=nodes * ranks, num_nodes=nodes, replication=1 if replication is None else replication
    )


def _prepare(args: Case) -> Run:
    if isinstance(args['batch_size'], bool) or not isinstance(args['batch_size'], int) or args['batch_size'] < 1:
        raise ConfigError(f'batch_size must be an int of at least 1, got {args["batch_size"]!r}.')
    topology, mixture = world(args), mixture_of(args)
    config = config_of(args).resolve_defaults(mixture, topology.nodes)
    order = make_order(mixture, config, args['epoch'])
    assert isinstance(order, MosaicMLOrder)
    return Run(config, mixture, topology, order, args)


def work(prepared: Run) -> NDArray[np.int64]:
    """Sample ids of the whole world: nodes x ranks x workers x batches x batch size."""
    args, topology = prepared.args, prepared.topology
    devices = Devices(
        nodes=topology.nodes,
        ranks=topology.replicas_per_node,
        batch_size=prepared.batch_size,
        initial_nodes=args.get('initial_physical_nodes'),
    )
    batches = prepared.order.batches(devices, args.get('sample_in_epoch', 0))
    rows = batches.rows(np.arange(batches.num_rows))
    ids = np.where(rows >= 0, prepared.order.ids[rows], -1)
    workers = args['world']['workers_per_rank']
    return work_array(ids, devices.nodes, devices.ranks, workers, devices.batch_size)


def _case_problem(case: Case, arrays: dict[str, NDArray[np.int64]]) -> str:
    args = case['args']
    if 'raises' in case:
        if case['reason'] == 'unknown_name:py1b' or case['reason'] in _CRASHES:
            return _any_order_problem(case)
        # A batch of 0 samples divides by zero there; here it is refused.
        instead = (ConfigError,) if case['reason'] == 'zero_division' else ()
        return expect_error(case, lambda: work(_prepare(args)), instead=instead)
    prepared = _prepare(args)
    resolved = {
        'choose': list(prepared.mixture.choose),
        'epoch_size': prepared.mixture.epoch_size,
        'num_canonical_nodes': prepared.config.num_canonical_nodes,
        'shuffle_block_size': prepared.config.block_size,
        'num_nodes': prepared.topology.nodes,
        'ranks_per_node': prepared.topology.replicas_per_node,
    }
    wanted = {key: case['resolved'].get(key, value) for key, value in resolved.items()}
    if resolved != wanted:
        return f'arguments come to {resolved} instead of {wanted}'
    ids = work(prepared)
    stable = arrays.get(f'{case["id"]}_stable_argsort')
    if stable is not None and not np.array_equal(ids, stable):
        return 'the values differ from the stable order'
    return array_problem(ids, case, arrays) or _plans_problem(prepared, ids)


def _any_order_problem(case: Case) -> str:
    """Check arguments for which MosaicML Streaming fails: an order with equal ranks, or the same error."""
    try:
        ids = work(_prepare(case['args']))
    except ConfigError as error:
        return '' if case['raises'] == 'ValueError' else f'{type(error).__name__}: {error}'
    per_rank = (ids >= 0).sum((2, 3, 4))
    return '' if per_rank.min() == per_rank.max() > 0 else f'ranks get {per_rank.tolist()} samples'


def _delivered(ids: NDArray[np.int64], node: int, rank: int) -> list[list[int]]:
    """Batches of a rank: its workers' batches in turn, as long as they have samples."""
    workers, batches, size = ids.shape[2:]
    in_turn = ids[node, rank].transpose(1, 0, 2).reshape(workers * batches, size)
    return [batch[batch >= 0].tolist() for batch in in_turn if (batch >= 0).any()]


def _plans_problem(prepared: Run, ids: NDArray[np.int64]) -> str:
    """Compare a loader's reads on the first and the last rank with the array."""
    for rank in {0, prepared.topology.world_size - 1}:
        plan = prepared.plan(rank)
        got = [plan.ids(k).tolist() for k in range(plan.num_batches)]
        if got != _delivered(ids, plan.topology.node, plan.topology.local_replica):
            return f'the plan of rank {rank} differs from the array'
    return ''


def _ranks_problem(found: Case, case: Case) -> str:
    prepared = _prepare(case['args'])
    for rank, wanted in enumerate(found['ranks']):
        plan = prepared.plan(rank)
        got = [plan.ids(k).tolist() for k in range(plan.num_batches)]
        if got != wanted and 'cpu_variants' not in case:
            return f'rank {rank} gets other batches'
    return ''


def _trace_problem(trace: Case, case: Case, outputs: dict[str, NDArray[np.int64]]) -> str:
    for number, step in enumerate(trace['steps']):
        wanted = [outputs[name] for name in step['outputs']]
        if step['call'] == 'resample_streams':
            got = resampled(case['args'], step['epoch'], step['stream_id'])
        else:
            got = [{'get_partitions': call_partitions, 'get_shuffle': call_shuffle}[step['call']](step['args'])]
        if not all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)):
            return f'step {number}, {step["call"]}, differs'
    return ''


def resampled(args: Case, epoch: int, stream: int | None) -> list[NDArray[np.int64]]:
    """Units and sample ids that a case's epoch draws, of all streams or of one."""
    full = {
        'shuffle_algo': 'naive', 'num_canonical_nodes': 1, 'shuffle_block_size': 1, 'batching_method': 'random',
        'partition_algo': 'orig', **args,
    }  # fmt: skip
    mixture = mixture_of(full)
    draws = Draws.of(mixture, config_of(full).resolve_defaults(mixture), epoch, stream)
    units, ids = draws.units(), draws.ids()
    return [units, draws.first_id + np.arange(int(units.sum())) if ids is None else ids]


def call_partitions(args: Case) -> NDArray[np.int64]:
    """The array of a get_partitions vector."""
    return get_partitions(**args)


def call_shuffle(args: Case) -> NDArray[np.int64]:
    """The array of a get_shuffle vector."""
    arguments: Case = {**args, 'shard_sizes': np.array(args['shard_sizes'], np.int64)}
    return get_shuffle(**arguments)
