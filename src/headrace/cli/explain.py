"""The commands `explain` and `skip`: samples of batches, of steps and of recorded runs, and what skips them.

They read indexes; with packing, they also read and tokenise documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.arguments import (
    add_config_arguments,
    add_topology_arguments,
    check_new_file,
    choose_loader,
    open_loader,
    show_examples,
)
from headrace.cli.commands import command
from headrace.cli.inspect import preview, print_preview
from headrace.cli.states import read_state
from headrace.errors import ConfigError, HeadraceError, ResumeError
from headrace.errors.display import count_text, printable, text_table
from headrace.errors.redaction import redact

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataLoader, StreamingDataset
    from headrace.metrics import StepReport
    from headrace.order import BatchExplanation, BatchPlan
    from headrace.watching import ExplainedStep, RecordedRun, TrainedStep


_SHOWN_USES = 100
_SAMPLE = 'Sample {id} is row {shard_row} of shard {shard} ({file}) of stream {stream}{erased}.'


def _explain_run(arguments: argparse.Namespace) -> int:
    run = _open(arguments)
    if arguments.sources:
        return _print_sources(run, arguments)
    if arguments.sample is not None:
        return _print_uses(run, arguments)
    if arguments.step is None:
        return _print_segments(run, arguments)
    explained = run.step(arguments.step)
    batch = explained.report.batches[0]
    batch = batch if arguments.rank is None else batch.of_rank(arguments.rank)
    shown = dataclasses.replace(batch, ids=run.last_ids(explained, batch))
    rows = (~batch.is_padding).nonzero()[0][: arguments.previews].tolist()
    previewed = [_preview(explained.loader.dataset, int(batch.ids[row])) for row in rows]
    if arguments.json:
        previews = {int(shown.ids[row]): values for row, values in zip(rows, previewed, strict=True)}
        print(
            json.dumps(
                {
                    **_where(explained.trained),
                    'others': [_where(other) for other in explained.others],
                    'skip': list(explained.report.ranges[0]),
                    **shown.to_json(),
                    'batch': explained.report.numbers[0],
                    'previews': {i: _plain(values) for i, values in previews.items()},
                }
            )
        )
        return 0
    print('\n'.join(_step_heading(explained, run)))
    print(shown)
    for row, values in zip(rows, previewed, strict=True):
        heading = f'Rank {batch.ranks[row]}, row {batch.rows[row]}: id {shown.ids[row]}'
        if isinstance(values, str):
            print(f'{heading}: {values}')
        else:
            print_preview(heading, values)
    return 0


def _open(arguments: argparse.Namespace) -> RecordedRun:
    from headrace.mixing import load_config
    from headrace.watching import RecordedRun

    config, overrides = None, list(arguments.overrides)
    if arguments.config is not None and not _is_file(arguments):
        overrides.insert(0, str(arguments.config))
    elif arguments.config is not None:
        config = choose_loader(load_config(arguments.config, overrides=overrides), 'train')
    name = '' if arguments.loader == 'train' else arguments.loader.removeprefix('train.')
    return RecordedRun(arguments.run, loader=name, config=config, overrides=overrides)


def _is_file(arguments: argparse.Namespace) -> bool:
    """Whether a configuration is named. With --run, there may be overrides without one."""
    return arguments.config is not None and ('=' not in str(arguments.config) or arguments.config.exists())


def _where(trained: TrainedStep) -> dict[str, Any]:
    segment = trained.segment
    return {
        'step': trained.step,
        'segment': segment.number,
        'segment_first_step': segment.first_step,
        'segment_reached': segment.reached,
        'was_trained': trained.is_sure,
        'is_in_last_weights': trained.is_kept,
        'topology': dict(segment.topology),
        'versions': dict(segment.versions),
        'code': dict(segment.code),
        'mixture': trained.place.mixture,
    }


def _step_heading(explained: ExplainedStep, run: RecordedRun) -> list[str]:
    trained, report, segment = explained.trained, explained.report, explained.trained.segment
    verb = 'was trained' if trained.is_sure else 'is not known to be trained yet: it would be'
    where = f'segment {segment.number} of {len(run.history.segments)}'
    begun = f'which began at step {segment.first_step} on {_time(segment.time)}, on {_ranks(segment.topology)}'
    lines = [f'Step {trained.step} {verb} in {where}, {begun}.']
    for other in explained.others:
        did = 'trained it, too' if other.is_sure else 'may have trained it, too'
        resume = min(later.first_step for later in run.history.segments if later.number > other.segment.number)
        lines.append(
            f'Segment {other.segment.number} {did}, on {_ranks(other.segment.topology)}; a later resume from step '
            f'{resume} dropped those weights.'
        )
    begin, end = report.ranges[0]
    batch = report.batches[0]
    shares = ', '.join(f'{name} {count}' for name, count in batch.stream_counts().items() if count)
    lines.append(
        f'Global batch {report.numbers[0]} of epoch {batch.epoch}, {batch.position_unit} {begin} to {end} of the run. '
        f'Streams, in {batch.counted}: {shares}'
    )
    lines.append(f'To skip it: skip: [[{begin}, {end}]]')
    return lines


def _ranks(topology: Mapping[str, int]) -> str:
    ranks, nodes = topology['world_size'], topology['num_nodes']
    return f'{count_text(ranks, "rank")} and {count_text(nodes, "node")}'


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime('%Y-%m-%d %H:%M UTC')


def _preview(dataset: StreamingDataset, sample_id: int) -> Any:
    """The values of a sample; a text if it cannot be read here."""
    try:
        return preview(dataset, sample_id)
    except (HeadraceError, OSError) as error:  # the step is explained all the same
        return redact(f'no preview: {error}')


def _plain(values: Any) -> Any:
    return values if isinstance(values, str) else {name: value.to_json() for name, value in values.items()}


def _place_of(dataset: StreamingDataset, sample: int) -> dict[str, Any]:
    import numpy as np

    shards, rows = dataset.locate(np.array([sample]))
    stream, shard, file = dataset.place(int(shards[0]))
    place = {'id': sample, 'stream': stream, 'shard': shard, 'file': file, 'shard_row': int(rows[0])}
    return {**place, 'is_erased': bool(np.isin(sample, dataset.pool.erased.ids))}


def _print_place(place: Mapping[str, Any]) -> None:
    print(_SAMPLE.format(**place, erased='; it is erased' * place['is_erased']))


def _print_uses(run: RecordedRun, arguments: argparse.Namespace) -> int:
    uses = list(run.uses(arguments.sample))
    place = _place_of(run.last_loader.dataset, arguments.sample)
    if arguments.json:
        print(json.dumps({**place, 'uses': [dataclasses.asdict(use) for use in uses]}))
        return 0 if uses else 1
    _print_place(place)
    past = sum(use.is_past for use in uses)
    print(f'The weights of this run have seen it {count_text(past, "time")}.')
    several = len({use.data for use in uses}) > 1
    for use in uses[:_SHOWN_USES]:
        verb = 'seen' if use.is_past else 'will be seen'
        data = f', from data {use.data}' if several else ''
        print(
            f'  step {use.step}: {verb} in segment {use.segment}, epoch {use.epoch}, position {use.position}: row '
            f'{use.row} of rank {use.rank}{data}'
        )
    if len(uses) > _SHOWN_USES:
        print(f'  and {len(uses) - _SHOWN_USES} more; --json prints all')
    if run.last_loader.dataset.stream_unit == 'tokens':
        print('  Later uses of documents are not known before they are packed.')
    elif len(uses) == past:
        later = 'this epoch. Later ones depend on what is appended' if run.follows_growth else 'the next 1,000 epochs'
        print(f'  It is not seen again in {later}.')
    return 0 if uses else 1


def _print_segments(run: RecordedRun, arguments: argparse.Namespace) -> int:
    from headrace.watching.live import decided_text

    described = run.to_json()
    if arguments.decisions:
        print(json.dumps(run.history.decisions(run.loader_name)))
        return 0
    if arguments.json:
        print(json.dumps(described))
        return 0
    for segment in described['segments']:
        kept = segment['kept_to']
        text = 'dropped by a later resume' if kept is None else f'its weights count to step {kept}'
        shares = ', '.join(f'{name} {share:.3f}' for name, share in segment['proportions'].items())
        print(
            f'Segment {segment["number"]}: steps {segment["first_step"]} to {segment["reached"]}, {text}; '
            f'{_time(segment["time"])}, {_ranks(segment["topology"])}, headrace {segment["versions"]["headrace"]}'
        )
        saved = len(set(segment['checkpoints']))  # a trainer may write several files at a step
        print(f'  checkpoints of {count_text(saved, "step")}; mixture: {shares}')
        if decided := segment['decisions']:
            print(f'  {decided_text(decided[-1], len(decided))}')
    if damaged := described['damaged_lines']:
        print(f'Ignored {count_text(damaged, "line")} of the record that a kill cut off.')
    return 0


def _print_sources(run: RecordedRun, arguments: argparse.Namespace) -> int:
    from headrace.watching.sources import sources_of

    checkpoints = sources_of(run)
    if arguments.json:
        print(json.dumps(checkpoints))
        return 0
    rows = [('step', 'stream', 'source', 'format', 'data', 'shards', 'drawn', 'unique', 'share')]
    for checkpoint in checkpoints:
        step = f'{checkpoint["step"]}{"" if checkpoint["is_checkpoint"] else " (last)"}'
        for source in checkpoint['sources']:
            first, drawn = source['first_shard'], f'{source["drawn"]:,} {source["unit"]}'
            shards = f'{first} to {first + source["shards"] - 1}'
            about = (source['stream'], source['source'], source['format'], source['data'], shards)
            rows.append((step, *about, drawn, f'{source["unique"]:,}', f'{source["share"]:.3f}'))
            step = ''
    print(printable('\n'.join(text_table(rows)), keep='\n'))
    return 0


def _check_of_run(arguments: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Refuse with --run what the record says itself."""
    places = ('--ranks', '--nodes', '--replication')
    given = {**given, **{name: getattr(arguments, name[2:]) for name in places if getattr(arguments, name[2:]) != 1}}
    if arguments.run is not None and (named := [name for name, value in given.items() if value is not None]):
        raise ConfigError(
            f'{", ".join(named)} place a batch in a configuration, but the record of --run {arguments.run} knows the '
            f'place and the ranks of each step. Give --step alone.'
        )


def _check_arguments(arguments: argparse.Namespace) -> None:
    if arguments.run is None and arguments.step is not None:
        raise ConfigError(
            f'--step is a step of a recorded run, got --step {arguments.step} without --run. Name the folder of the '
            f'run, or give --batch.'
        )
    if arguments.run is None and arguments.config is None:
        raise ConfigError('explain needs the YAML file of the loaders, or --run and the folder of a run, got neither.')
    for name in ('decisions', 'sources'):
        if getattr(arguments, name) and (arguments.run is None or (arguments.step, arguments.sample) != (None, None)):
            raise ConfigError(
                f'--{name} prints those of a recorded run, got it without --run, or with --step or --sample. '
                f'Give --run and the folder of the run alone.'
            )
    _check_of_run(arguments, {'--batch': arguments.batch, '--epoch': arguments.epoch, '--state': arguments.state})


_EPOCHS = 1000  # looked through for a sample
_PACKED = 1000  # batches that are packed to find a document


def _add_explain(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, or_else='not needed with --run')
    parser.add_argument('--run', type=Path, metavar='DIR', help='folder of a run with a record')
    parser.add_argument('--decisions', action='store_true', help='of --run: print those of the last weights as JSON')
    parser.add_argument('--sources', action='store_true', help='of --run: the data that trained each checkpoint')
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
    parser.add_argument('--state-key', help='path of the position in --state, if it holds several: a.b.c')
    show_examples(
        parser,
        'headrace explain train.yaml --batch 147 --ranks 8 --rank 5   # the rows of a rank',
        'headrace explain train.yaml --sample 7509                    # when it is seen next',
        'headrace explain --run runs/a --step 147                     # of a run with a record',
        'headrace explain --run runs/a --sample 7509                  # when it was and will be seen',
        'headrace explain --run runs/a --sources                      # the data of each checkpoint',
        status='Exit status: 0, done; 1, an error, or a sample that is not seen; 2, wrong arguments.',
    )


@command('explain', _add_explain)
def _run_explain(arguments: argparse.Namespace) -> int:
    from headrace.order import run_range

    _check_arguments(arguments)
    if arguments.run is not None:
        return _explain_run(arguments)
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
            f'before it. Leave out --epoch to count batches from --state, or explain it with the mixture of that time.'
        )


def _heading(explanation: BatchExplanation, plan: BatchPlan, *, has_length: bool) -> str:
    topology, number = plan.topology, explanation.number
    place, of_all = f'of {plan.total_batches}', f' of {len(plan.order)}'
    if not has_length:
        place, of_all = 'which does not end', ''
    if plan.start:
        place = f'after position {plan.start}'
    unit = '' if explanation.counted == 'samples' else f', in {explanation.counted}'
    ranks = _ranks({'world_size': topology.world_size, 'num_nodes': topology.num_nodes})
    return (
        f'Global batch {number} of epoch {explanation.epoch}, {place}, on {ranks}; the position after it is '
        f'{explanation.end}{of_all}.\nStreams{unit}: {_shares(explanation)}'
    )


def _shares(explanation: BatchExplanation) -> str:
    counts = {name: count for name, count in explanation.stream_counts().items() if count}
    total = sum(counts.values())
    return ', '.join(f'{name} {count} ({count / total:.3f})' for name, count in counts.items()) or 'none'


def _print_next_use(loader: StreamingDataLoader, plan: BatchPlan, number: int, arguments: argparse.Namespace) -> int:
    from headrace.order import next_use
    from headrace.packing import PackedDataset

    dataset, sample, epoch = loader.dataset, arguments.sample, plan.order.epoch
    if not 0 <= sample < dataset.num_samples:
        raise ConfigError(f'--sample must be an id in [0, {dataset.num_samples}), got {sample}.')
    searched = f'{_EPOCHS} epochs'
    if isinstance(dataset, PackedDataset):  # whose documents are read and tokenised
        end = min(plan.num_batches, number + _PACKED)
        use = next(iter(dataset.uses_of(plan, sample, number, end)), None)
        searched = count_text(end - number, 'batch')
    else:
        use = next_use(
            lambda later: plan if later == epoch else loader.plan(later),
            sample,
            epoch=epoch,
            batch=number,
            epochs=_EPOCHS,
        )
    place = _place_of(dataset, sample)
    if arguments.json:
        print(json.dumps({**place, 'next': None if use is None else dataclasses.asdict(use)}))
    else:
        _print_place(place)
        print(
            f'It is not seen in {searched} from batch {number} of epoch {epoch} on.'
            if use is None
            else f'From batch {number} of epoch {epoch} on it is first seen in epoch {use.epoch}, at position '
            f'{use.position}: row {use.row} of rank {use.rank} in global batch {use.batch}.'
        )
    return 0 if use is not None else 1


def _add_skip(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, or_else='not needed with --run')
    parser.add_argument('--run', type=Path, metavar='DIR', help='folder of a run with a record, which knows its steps')
    parser.add_argument('--loader', default='train', help='of --run with several: train.NAME')
    parser.add_argument('--step', type=int, required=True, help='global batch of the run, counted from 0')
    parser.add_argument('--before', type=int, default=0, help='global batches before it to skip, too')
    parser.add_argument('--after', type=int, default=0, help='global batches after it to skip, too')
    parser.add_argument(
        '--documents',
        action='store_true',
        help='of packed data: skip the documents of the batches, wherever they are, instead of the sequences',
    )
    add_topology_arguments(parser)
    parser.add_argument('--state', type=Path, help='checkpoint from before the step, or JSON of its state')
    parser.add_argument('--state-key', help='path of the position in --state, if it holds several: a.b.c')
    parser.add_argument(
        '--state-step', type=int, help='batches that were trained when --state was taken, if it does not say so'
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument('--write', type=Path, metavar='OUT.yaml', help='file for the configuration of the resumed run')
    output.add_argument('--json', action='store_true', help='print every row of the batches, as JSON')
    show_examples(
        parser,
        'headrace skip train.yaml --step 1234 --ranks 64 --nodes 8',
        'headrace skip train.yaml --step 1234 --before 2 --state last.ckpt --write resumed.yaml',
        'headrace skip --run runs/a --step 1234 --write skip.yaml',
    )


@command('skip', _add_skip, json=None)
def _run_skip(arguments: argparse.Namespace) -> int:
    from headrace.metrics import explain_step, report_text, skip_yaml

    out: Path | None = arguments.write
    check_new_file(out)
    if arguments.run is None and arguments.config is None:
        raise ConfigError('skip needs the YAML file of the loaders, or --run and the folder of a run, got neither.')
    given = {'--state': arguments.state, '--state-key': arguments.state_key, '--state-step': arguments.state_step}
    _check_of_run(arguments, given)
    around = {'before': arguments.before, 'after': arguments.after, 'documents': arguments.documents}
    if arguments.run is not None:
        report = _open(arguments).report(arguments.step, **around)
    else:
        loader = open_loader(arguments, name=arguments.loader)
        first_step = _load_state(loader, arguments)
        report = explain_step(loader, arguments.step, place=loader.next_pass(), first_step=first_step, **around)
    if arguments.json:
        print(report_text({'step': report.step, **report.to_json()}), end='')
        return 0
    if out is None:
        print(skip_yaml(report.skip, _comments(report)), end='')
        return 0
    try:
        out.write_text(_configuration(arguments, report, out.resolve().parent), encoding='utf-8')
    except OSError as error:
        raise ConfigError(f'--write {out} cannot be written: {error.strerror}.') from error
    print('\n'.join(_comments(report)))
    if arguments.run is not None and not _is_file(arguments):
        print(f'{out} has skip: {report.skip}. Merge it over the configuration of the run: defaults: [CONFIG, {out}]')
        return 0
    given = 'the given values and ' if arguments.overrides else ''
    print(f'{out} is {arguments.config} with {given}skip: {report.skip}')
    return 0


def _configuration(arguments: argparse.Namespace, report: StepReport, folder: Path) -> str:
    """YAML for a folder: the configuration with the `skip`."""
    from headrace.metrics import skip_yaml
    from headrace.mixing import load_config, to_yaml

    if arguments.run is not None and not _is_file(arguments):
        return skip_yaml(report.skip, _comments(report))
    if not arguments.overrides:
        return skip_yaml(report.skip, _comments(report), [os.path.relpath(arguments.config.resolve(), folder)])
    # Overrides may remove keys of the file, which an including file cannot do. So the whole configuration is written.
    config = load_config(arguments.config, overrides=arguments.overrides)
    assert config.train is not None  # its step was explained
    train = dataclasses.replace(config.train, skip=tuple((begin, end) for begin, end in report.skip))
    comments = (f'# {line}' for line in _comments(report))
    return '\n'.join([*comments, to_yaml(dataclasses.replace(config, train=train))])


def _load_state(loader: StreamingDataLoader, arguments: argparse.Namespace) -> int:
    """Load the state, if there is one; returns its number of trained batches."""
    given: int | None = arguments.state_step
    if arguments.state is None:
        if given is not None:
            raise ConfigError(f'--state-step says when --state was taken, which is not given; got {given}.')
        return 0
    state = read_state(arguments.state, arguments.state_key)
    batches = state.batches if given is None else given
    if batches is None:
        loader.load_state_dict(state.state)
        counted = _batches_before(loader)
        if counted not in state.steps:
            raise ResumeError(
                f'--state {arguments.state} does not say how many batches were trained when it was taken: give '
                f'--state-step, or the checkpoint itself.'
                + ('' if counted is None else f' They are {counted}, if all had the present size.')
            )
        return counted
    if batches < 0 or state.batches not in (None, batches):
        raise ConfigError(
            f'--state-step must be the number of batches that were trained when --state was taken, got {given}'
            + ('.' if state.batches is None else f', but the file says {state.batches}. Leave it out.')
        )
    loader.load_state_dict(state.state)
    return batches


def _batches_before(loader: StreamingDataLoader) -> int | None:
    """Batches from the beginning of the run to the loader's position, as if all were like the current ones."""
    epoch, start = loader.next_pass()
    if loader.dataset.run.mixture.takeover.epoch or loader.dataset.run.mixture.takeover.sample:
        return None  # earlier epochs had other batches
    whole = loader.plan(epoch)
    number = whole.num_batches - loader.plan(epoch, start).num_batches
    if number and int(whole.explain(number - 1).end) != start:
        return None
    return number + sum(loader.plan(before).num_batches for before in range(epoch))


def _comments(report: StepReport) -> list[str]:
    return [
        *report.summary(),
        f'To train without: resume from a checkpoint of at most {count_text(report.steps[0], "batch")}.',
    ]
