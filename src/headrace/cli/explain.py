"""``headrace explain``: the samples of a global batch or of a recorded run's step, or the uses of a sample.

It reads indexes; with packing, it also reads and tokenises documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import show_examples
from headrace.cli.loaders import add_config_arguments, add_topology_arguments, open_loader
from headrace.cli.recorded import check_arguments, explain_run
from headrace.cli.states import read_state
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader
    from headrace.order import BatchExplanation, BatchPlan

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'say which samples, or packed documents, make up a batch or a step of a run, or when a sample is seen'

_EPOCHS = 1000  # looked through for a sample


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file, the loader, the topology, and the batch or sample."""
    add_config_arguments(parser, or_else='not needed with --run')
    parser.add_argument('--run', type=Path, metavar='DIR', help='folder of a run with a record')
    parser.add_argument('--step', type=int, help='of --run: global batch of the run, counted from 0')
    parser.add_argument('--previews', type=int, default=3, metavar='N', help='of --step: samples to show')
    parser.add_argument('--loader', default='train', help='train, or eval, test, predict and a name: eval.books')
    parser.add_argument(
        '--batch', type=int, help='global batch, 0 by default: of --epoch; else counted from --state, or epoch 0'
    )
    parser.add_argument('--epoch', type=int, help='epoch that --batch is counted in')
    parser.add_argument('--sample', type=int, help='a global sample id: say when it is seen next, from --batch on')
    parser.add_argument('--rank', type=int, help='only the rows of this rank')
    add_topology_arguments(parser)
    parser.add_argument('--state', type=Path, help='checkpoint that the run was resumed from, or JSON of its state')
    parser.add_argument('--state-key', help='where the position is in --state, if it holds several: a.b.c')
    parser.add_argument('--json', action='store_true', help='print JSON')
    show_examples(
        parser,
        'headrace explain train.yaml --batch 147 --ranks 8 --rank 5   # the rows of a rank',
        'headrace explain train.yaml --sample 7509                    # when it is seen next',
        'headrace explain --run runs/a --step 147                     # of a run with a record',
        'headrace explain --run runs/a --sample 7509                  # when it was and will be seen',
        status='Exit status: 0, done; 1, an error, or a sample that is not seen; 2, wrong arguments.',
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; the exit status is 1 for a sample without a further use."""
    from headrace.order import run_range

    check_arguments(arguments)
    if arguments.run is not None:
        return explain_run(arguments)
    arguments.batch = arguments.batch or 0
    if arguments.batch < 0 or (arguments.epoch or 0) < 0:
        raise ConfigError(
            f'--batch and --epoch count from 0, got --batch {arguments.batch} and --epoch {arguments.epoch}.'
        )
    loader = open_loader(arguments, name=arguments.loader, rank=arguments.rank or 0)
    if arguments.state is not None:
        loader.load_state_dict(read_state(arguments.state, arguments.state_key).state)
    plan, number = _find_batch(loader, arguments)
    if arguments.sample is not None:
        return _print_next_use(loader, plan, number, arguments)
    _check_mixture(plan, number)
    explanation = loader.dataset.explain(plan, number)
    skip = list(run_range(plan, number))
    shown = explanation if arguments.rank is None else explanation.of_rank(arguments.rank)
    if arguments.json:
        print(json.dumps({**shown.to_json(), 'skip': skip}))
        return 0
    print(_heading(explanation, plan, has_length=loader.dataset.has_length))
    if arguments.rank is not None:
        print(f'Rank {arguments.rank}: {_shares(shown)}')
    print(f'To skip it: skip: [{skip}]')
    print(shown)
    return 0


def _find_batch(loader: StreamingDataLoader, arguments: argparse.Namespace) -> tuple[BatchPlan, int]:
    """A plan with the requested batch, and its number there."""
    from headrace.order import find_batch

    batch, epoch = arguments.batch, arguments.epoch
    if epoch is not None:
        plan = loader.plan(epoch)
        if batch >= plan.num_batches:
            there = f'batches 0 to {plan.num_batches - 1}' if plan.num_batches else 'no batches'
            raise ConfigError(f'epoch {epoch} has {there}, got --batch {batch}.')
        return plan, batch
    # The state may lie between batches, and earlier steps may have had another size.
    epoch, start = (0, 0) if arguments.state is None else loader.next_pass()
    return find_batch(loader.plan, batch, epoch=epoch, start=start, skip=loader.dataset.skip)


def _check_mixture(plan: BatchPlan, number: int) -> None:
    if int(plan.global_positions(number).min()) < plan.order.first:
        raise ConfigError(
            f'the mixture took over at position {plan.order.first} of epoch {plan.order.epoch}, got a batch from '
            f'before it. Leave out --epoch to count batches from --state, or explain it with the mixture of then.'
        )


def _heading(explanation: BatchExplanation, plan: BatchPlan, *, has_length: bool) -> str:
    topology, number = plan.topology, explanation.number
    place, of_all = f'of {plan.total_batches}', f' of {len(plan.order)}'
    if not has_length:
        place, of_all = 'which does not end', ''
    if plan.start:
        place = f'after position {plan.start}'
    ranks, nodes = (
        f'{n} {what}{"s" * (n > 1)}' for n, what in ((topology.world_size, 'rank'), (topology.num_nodes, 'node'))
    )
    return (
        f'Global batch {number} of epoch {explanation.epoch}, {place}, on {ranks} and {nodes}; the position after it '
        f'is {explanation.end}{of_all}.\nStreams{_unit(explanation)}: {_shares(explanation)}'
    )


def _unit(explanation: BatchExplanation) -> str:
    return '' if explanation.counted == 'samples' else f', in {explanation.counted}'


def _shares(explanation: BatchExplanation) -> str:
    counts = {name: count for name, count in explanation.stream_counts().items() if count}
    total = sum(counts.values())
    return ', '.join(f'{name} {count} ({count / total:.3f})' for name, count in counts.items()) or 'none'


def _print_next_use(loader: StreamingDataLoader, plan: BatchPlan, number: int, arguments: argparse.Namespace) -> int:
    import numpy as np

    from headrace.order import next_use
    from headrace.packing import PackedDataset

    dataset, sample, epoch = loader.dataset, arguments.sample, plan.order.epoch
    if isinstance(dataset, PackedDataset):
        raise ConfigError(
            f'--sample needs a loader without `packing`, got {sample}: which sequence a document is in is not known '
            f'before it is tokenised. Remove `packing` from a copy of the configuration to see its place in the order.'
        )
    if not 0 <= sample < dataset.num_samples:
        raise ConfigError(f'--sample must be an id in [0, {dataset.num_samples}), got {sample}.')
    use = next_use(
        lambda later: plan if later == epoch else loader.plan(later), sample, epoch=epoch, batch=number, epochs=_EPOCHS
    )
    shards, rows = dataset.locate(np.array([sample]))
    stream, shard, file = dataset.place(int(shards[0]))
    place = {'id': sample, 'stream': stream, 'shard': shard, 'file': file, 'shard_row': int(rows[0])}
    if arguments.json:
        print(json.dumps({**place, 'next': None if use is None else dataclasses.asdict(use)}))
    else:
        print('Sample {id} is row {shard_row} of shard {shard} ({file}) of stream {stream}.'.format_map(place))
        print(
            f'It is not seen in {_EPOCHS} epochs from batch {number} of epoch {epoch} on.'
            if use is None
            else f'From batch {number} of epoch {epoch} on it is first seen in epoch {use.epoch}, at position '
            f'{use.position}: row {use.row} of rank {use.rank} in global batch {use.batch}.'
        )
    return 0 if use is not None else 1
