"""Reference vectors of single functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.format import bytes_to_int, number_abbrev_to_int
from headrace.order import Mixture, SampleMap, StreamSize, Topology
from headrace.order.mosaicml.epoch_permutation import choose_per_shard
from headrace.order.shuffle import divide_spans
from tests.support.golden.case import Case, Outcome, array_problem, expect_error, read_arrays, read_json
from tests.support.golden.order import call_partitions, call_shuffle, resampled

__all__ = ['run']

Arrays = dict[str, NDArray[np.int64]]


def run(folder: Path) -> Iterator[Outcome]:
    """Run ``pure/``: one outcome for each case."""
    for path in sorted((folder / 'pure').glob('*.json')):
        content = read_json(path)
        check = _CHECKS.get(content['function'])
        if check is None:
            yield f'pure {content["function"]}', f'there is no such function; there are {sorted(_CHECKS)}'
            continue
        arrays = read_arrays(path.with_suffix('.npz'))
        for case in content['cases']:
            yield f'pure {case["id"]}', _problem(check, case, arrays)


def _problem(check: Callable[[Case, Arrays], str], case: Case, arrays: Arrays) -> str:
    if 'raises' in case and case['reason'] != 'broadcast_mismatch':
        return expect_error(case, lambda: check(case, arrays))
    try:
        return check(case, arrays)
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def _partitions(case: Case, arrays: Arrays) -> str:
    got = call_partitions(case['args'])
    if 'raises' in case:  # arguments for which MosaicML Streaming fails: any order with equal ranks passes
        per_rank = (got >= 0).sum((2, 3, 4))
        return '' if per_rank.min() == per_rank.max() else f'ranks get {per_rank.tolist()} samples'
    return array_problem(got, case, arrays)


def _shuffle(case: Case, arrays: Arrays) -> str:
    got = call_shuffle(case['args'])
    return '' if 'raises' in case else array_problem(got, case, arrays)


def _sampling(case: Case, arrays: Arrays) -> str:
    args = case['args']
    seed = args['seed'] + args['epoch'] if args['use_epoch'] else args['seed']
    sizes = np.array(args['samples_per_shard'], np.int64)
    got = choose_per_shard(sizes, args['choose'], args['granularity'], seed)
    return '' if 'raises' in case else array_problem(got, case, arrays)


def _resample(case: Case, arrays: Arrays) -> str:
    args = case['args']
    got = resampled(args, args['epoch'], args['stream_id'])
    for name, array in zip(('shuffle_units', 'sample_ids'), got, strict=True):
        if hashlib.sha256(array.astype('<i8').tobytes()).hexdigest() != case[f'{name}_sha256']:
            return f'the {name} differ'
    for key, array in zip(case.get('arrays', []), got, strict=False):
        if key in arrays and not np.array_equal(arrays[key], array):
            return f'{key} differs'
    return ''


def _spans(case: Case, arrays: Arrays) -> str:
    sizes = np.array(case['args']['shard_sizes'], np.int64)
    spans = divide_spans(np.cumsum(sizes) - sizes, sizes, case['args']['num_parts'])
    got = np.stack([spans.begins, spans.begins + spans.lengths], 1).tolist()
    parts = np.stack([spans.bounds[:-1], spans.bounds[1:]], 1).tolist()
    return _differences(spans=(got, case['spans']), super_spans=(parts, case['super_spans']))


def _spanner(case: Case, arrays: Arrays) -> str:
    sizes = np.array(case['args']['shard_sizes'], np.int64)
    places = SampleMap(sizes)
    got = [[sample, *places.locate_one(sample)] for sample, _, _ in case['lookups']]
    beyond = [_answer(places, sample) for sample in (-1, int(sizes.sum()))]
    return _differences(lookups=(got, case['lookups']), beyond=(beyond, case['minus_one_and_end']))


def _answer(places: SampleMap, sample: int) -> str:
    try:
        return str(places.locate_one(sample))
    except IndexError:
        return 'IndexError'


def _replicate(case: Case, arrays: Arrays) -> str:
    args = case['args']
    workers = args['workers_per_rank']
    topology = Topology(
        rank=args['worker'] // workers,
        world_size=args['num_nodes'] * args['ranks_per_node'],
        num_nodes=args['num_nodes'],
        replication=args['replication'],
    )
    if 'raises' in case:
        return ''
    of_rank = args['worker'] % workers
    of_node = topology.local_replica * workers + of_rank
    got = {
        'is_leader': topology.replica * workers + of_rank == 0,
        'is_local_leader': of_node == 0,
        'is_multinode': topology.nodes > 1,
        'node': topology.node,
        'num_nodes': topology.nodes,
        'num_ranks': topology.replicas,
        'num_workers': topology.replicas * workers,
        'rank': topology.replica,
        'rank_of_node': topology.local_replica,
        'ranks_per_node': topology.replicas_per_node,
        'worker': topology.replica * workers + of_rank,
        'worker_of_node': of_node,
        'worker_of_rank': of_rank,
        'workers_per_node': topology.replicas_per_node * workers,
        'workers_per_rank': workers,
    }
    return _differences(**{key: (got.get(key), value) for key, value in case['replicated'].items()})


def _weights(case: Case, arrays: Arrays) -> str:
    args = case['args']
    sizes = [
        StreamSize(name=f'stream_{i}', shard_sizes=np.array([samples], np.int64), **weights)
        for i, (samples, weights) in enumerate(zip(args['samples_per_stream'], args['streams'], strict=True))
    ]
    epoch_size = args['epoch_size']
    mixture = Mixture.resolve(
        sizes,
        epoch_size=number_abbrev_to_int(epoch_size) if isinstance(epoch_size, str) else epoch_size,
        seed=args['seed'],
    )
    if 'raises' in case:
        return ''
    return _differences(
        choose=(list(mixture.choose), case['choose']),
        epoch_size=(mixture.epoch_size, case['epoch_size']),
        proportions=(list(mixture.proportions), [float.fromhex(x) for x in case['proportion_hex']]),
        repeats=(list(mixture.repeats), [float.fromhex(x) for x in case['repeat_hex']]),
    )


def _parse(case: Case, arrays: Arrays) -> str:
    parse = {'bytes_to_int': bytes_to_int, 'number_abbrev_to_int': number_abbrev_to_int}[case['args']['function']]
    value = parse(case['args']['text'])
    return '' if 'raises' in case else _differences(value=(value, case['value']))


def _differences(**pairs: tuple[Any, Any]) -> str:
    return '; '.join(f'{name}: {got} instead of {wanted}' for name, (got, wanted) in pairs.items() if got != wanted)


_CHECKS: dict[str, Callable[[Case, Arrays], str]] = {
    'apply_weights': _weights,
    'divide_spans': _spans,
    'get_partitions': _partitions,
    'get_sampling': _sampling,
    'get_shuffle': _shuffle,
    'parse_sizes': _parse,
    'replicate_world': _replicate,
    'resample_streams': _resample,
    'spanner': _spanner,
}
