"""``headrace explain --run``: the samples of a recorded run's step, and the steps that saw a sample."""

from __future__ import annotations

import argparse
import dataclasses
import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from headrace.cli.loaders import choose_loader
from headrace.cli.previews import preview, print_preview
from headrace.errors import ConfigError, HeadraceError
from headrace.redaction import redact

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataset
    from headrace.order import BatchExplanation
    from headrace.watching import ExplainedStep, RecordedRun, TrainedStep

__all__ = ['check_arguments', 'explain_run']

_SHOWN_USES = 100


def explain_run(arguments: argparse.Namespace) -> int:
    """Print the answer; the exit status is 1 for a sample that no step sees."""
    run = _open(arguments)
    if arguments.sample is not None:
        return _print_uses(run, arguments)
    if arguments.step is None:
        return _print_segments(run, arguments)
    explained = run.step(arguments.step)
    batch = explained.report.batches[0]
    shown = batch if arguments.rank is None else batch.of_rank(arguments.rank)
    dataset, ids = explained.loader.dataset, shown.ids[~shown.is_padding].tolist()
    if arguments.json:
        previews = {i: _preview(dataset, i) for i in dict.fromkeys(ids[: arguments.previews])}
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
    print('\n'.join(_heading(explained, run)))
    print(shown)
    _print_previews(dataset, shown, arguments.previews)
    return 0


def _open(arguments: argparse.Namespace) -> RecordedRun:
    from headrace.mixing import load_config
    from headrace.watching import RecordedRun

    config, overrides = None, list(arguments.overrides)
    if arguments.config is not None and '=' in str(arguments.config) and not arguments.config.exists():
        overrides.insert(0, str(arguments.config))  # there may be overrides without a file
    elif arguments.config is not None:
        config = choose_loader(load_config(arguments.config, overrides=overrides), 'train')
    name = '' if arguments.loader == 'train' else arguments.loader.removeprefix('train.')
    return RecordedRun(arguments.run, loader=name, config=config, overrides=overrides)


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


def _heading(explained: ExplainedStep, run: RecordedRun) -> list[str]:
    trained, report, segment = explained.trained, explained.report, explained.trained.segment
    verb = 'was trained' if trained.is_sure else 'is not known to be trained yet: it would be'
    where = f'segment {segment.number} of {len(run.history.segments)}'
    begun = f'which began at step {segment.first_step} on {_time(segment.time)}, on {_ranks(segment.topology)}'
    lines = [f'Step {trained.step} {verb} in {where}, {begun}.']
    for other in explained.others:
        did = 'trained it, too' if other.is_sure else 'may have trained it, too'
        lines.append(
            f'Segment {other.segment.number} {did}, on {_ranks(other.segment.topology)}; a later resume from step '
            f'{_resume_after(other, run)} dropped those weights.'
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


def _resume_after(trained: TrainedStep, run: RecordedRun) -> int:
    return min(segment.first_step for segment in run.history.segments if segment.number > trained.segment.number)


def _ranks(topology: Any) -> str:
    ranks, nodes = topology['world_size'], topology['num_nodes']
    return f'{ranks} rank{"s" * (ranks > 1)} and {nodes} node{"s" * (nodes > 1)}'


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime('%Y-%m-%d %H:%M UTC')


def _print_previews(dataset: StreamingDataset, shown: BatchExplanation, count: int) -> None:
    columns = shown.columns()
    for number in [i for i, is_padding in enumerate(columns['is_padding']) if not is_padding][:count]:
        found = _preview(dataset, columns['id'][number])
        heading = f'Rank {columns["rank"][number]}, row {columns["row"][number]}: id {columns["id"][number]}'
        if isinstance(found, str):
            print(f'{heading}: {found}')
        else:
            print_preview(heading, found)


def _preview(dataset: StreamingDataset, sample_id: int) -> Any:
    """The values of a sample; a text if it cannot be read here."""
    try:
        return preview(dataset, sample_id)
    except (HeadraceError, OSError) as error:  # the step is explained all the same
        return redact(f'no preview: {error}')


def _plain(values: Any) -> Any:
    return values if isinstance(values, str) else {name: value.to_json() for name, value in values.items()}


def _print_uses(run: RecordedRun, arguments: argparse.Namespace) -> int:
    import numpy as np

    uses = list(run.uses(arguments.sample))
    dataset = run.last_loader.dataset
    shards, rows = dataset.locate(np.array([arguments.sample]))
    stream, shard, file = dataset.place(int(shards[0]))
    place = {'id': arguments.sample, 'stream': stream, 'shard': shard, 'file': file, 'shard_row': int(rows[0])}
    if arguments.json:
        print(json.dumps({**place, 'uses': [dataclasses.asdict(use) for use in uses]}))
        return 0 if uses else 1
    print('Sample {id} is row {shard_row} of shard {shard} ({file}) of stream {stream}.'.format_map(place))
    past = sum(use.is_past for use in uses)
    print(f'The weights of this run have seen it {past} time{"s" * (past != 1)}.')
    for use in uses[:_SHOWN_USES]:
        verb = 'seen' if use.is_past else 'will be seen'
        print(
            f'  step {use.step}: {verb} in segment {use.segment}, epoch {use.epoch}, position {use.position}: row '
            f'{use.row} of rank {use.rank}'
        )
    if len(uses) > _SHOWN_USES:
        print(f'  and {len(uses) - _SHOWN_USES} more; --json prints all')
    if len(uses) == past:
        print('  It is not seen again in the next 1,000 epochs.')
    return 0 if uses else 1


def _print_segments(run: RecordedRun, arguments: argparse.Namespace) -> int:
    described = run.to_json()
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
        print(f'  checkpoints of {saved} step{"s" * (saved != 1)}; mixture: {shares}')
    if described['damaged_lines']:
        print(f'{described["damaged_lines"]} lines of the record were cut by a kill, and ignored.')
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Check that the arguments of a recorded run come together.

    Raises:
        ConfigError: they do not.
    """
    if arguments.run is None and arguments.step is not None:
        raise ConfigError(
            f'--step is a step of a recorded run, got --step {arguments.step} without --run. Name the folder of the '
            f'run, or give --batch.'
        )
    if arguments.run is None and arguments.config is None:
        raise ConfigError('explain needs the YAML file of the loaders, or --run and the folder of a run, got neither.')
    of_config = {'--batch': arguments.batch, '--epoch': arguments.epoch, '--state': arguments.state}
    given = [name for name, value in of_config.items() if value is not None]
    if arguments.run is not None and given:
        raise ConfigError(
            f'{", ".join(given)} place a batch in a configuration, but the record of --run {arguments.run} knows the '
            f'place of each step. Give --step.'
        )
