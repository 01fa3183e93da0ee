"""Commands before a run: `doctor`, `bench`, `warm`, `measure`, `simulate` and `tune`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import (
    add_condition_arguments,
    add_data_arguments,
    add_store_arguments,
    add_topology_arguments,
    check_new_file,
    count,
    is_config,
    print_answer,
    read_conditions,
    show_examples,
    shown_progress,
    store_options,
    train_config,
    train_of,
)
from headrace.cli.commands import command
from headrace.errors import ConfigError
from headrace.errors.display import count_text, human_size, printable, text_table
from headrace.errors.redaction import redact

if TYPE_CHECKING:
    from headrace.cli.doctor import Finding
    from headrace.cli.doctor.bench import Rate
    from headrace.mixing import LoaderConfig
    from headrace.simulate import Tuning
    from headrace.simulate.tune import Trial


_MARKS = {'ok': 'ok      ', 'note': 'note    ', 'problem': 'PROBLEM '}


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('what', nargs='?', metavar='CONFIG|URL', help='YAML file of the loaders, or a dataset')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')
    parser.add_argument('--ranks', type=int, default=1, help='ranks on this machine')
    parser.add_argument('--nodes', type=count, metavar='N', help="nodes of the run (default: the launcher's)")
    add_store_arguments(parser, of='the store of a URL')
    show_examples(
        parser,
        'headrace doctor                          # this machine and this environment',
        'headrace doctor train.yaml --ranks 8     # and the stores and caches of every stream',
        'headrace doctor train.yaml --nodes 8     # and whether nodes download the same shards',
        'headrace doctor s3://bucket/data/train   # and one dataset',
        status='Exit status: 0, no problem; 1, a problem, or an error; 2, wrong arguments.',
    )


@command('doctor', _add_doctor)
def _run_doctor(arguments: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            print(printable(redact(f'{_MARKS[finding.level]}{finding.what}: {finding.text}')), flush=True)
            if finding.fix:
                print(printable(redact(f'{"":8}-> {finding.fix}')), flush=True)
    problems = sum(finding.level == 'problem' for finding in findings)
    if arguments.json:
        print(redact(json.dumps([dataclasses.asdict(finding) for finding in findings])))
    else:
        notes = sum(finding.level == 'note' for finding in findings)
        print(f'{count_text(len(findings), "check")}: {count_text(problems, "problem")}, {count_text(notes, "note")}')
    return 1 if problems else 0


def _findings(arguments: argparse.Namespace) -> Iterable[Finding]:
    from headrace.cli.doctor import Place, check_data, check_launcher, check_machine, check_versions, places_of
    from headrace.config.schema import named_loaders
    from headrace.dataset.topology import detect_topology
    from headrace.errors import TopologyError
    from headrace.mixing import load_config

    places, workers, nodes = list[Place](), 0, arguments.nodes or 1
    train, loaders = None, dict[str, 'LoaderConfig']()
    if arguments.what is not None and is_config(arguments.what):
        config = load_config(arguments.what, overrides=arguments.overrides)
        places, loaders = places_of(config), named_loaders(config)
        train = config.train
        workers = 0 if train is None else train.loader.num_workers
    elif arguments.what is not None:
        places = [Place('data', arguments.what, options=store_options(arguments))]
    if arguments.nodes is None:
        with contextlib.suppress(TopologyError):  # which `check_launcher` shows
            nodes = detect_topology().num_nodes
    yield from check_versions()
    yield from check_launcher()
    yield from check_machine(workers=workers, ranks=arguments.ranks)
    yield from check_data(places, train=train, nodes=nodes, ranks=arguments.ranks, loaders=loaders)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument('--seconds', type=float, default=5, help='for each number of workers (default: %(default)s)')
    parser.add_argument(
        '--workers', metavar='N,N', help="numbers of workers (default: 0, and the configuration's, or 2)"
    )
    parser.add_argument('--cold', action='store_true', help='begin with an empty cache, in a temporary folder')
    show_examples(
        parser,
        'headrace bench train.yaml                    # with the cache as it is',
        'headrace bench train.yaml --cold --workers 0,4,8',
        'headrace bench s3://bucket/data --batch-size 256 --seconds 20',
        'headrace bench s3://bucket/images train.decode.size=224',
    )


@command('bench', _add_bench)
def _run_bench(arguments: argparse.Namespace) -> int:
    from headrace.cli.doctor.bench import bench, limit_of

    if not 0 < arguments.seconds < math.inf:
        raise ConfigError(f'--seconds must be a number of seconds, more than 0, got {arguments.seconds}.')
    is_cold = arguments.cold or not is_config(arguments.what)
    with _configured(arguments) as config:
        numbers = [0, config.loader.num_workers or 2] if arguments.workers is None else _numbers(arguments.workers)
        rates: list[Rate] = []
        for number in numbers:
            with _cache(config, is_cold=is_cold) as chosen:
                rates.append(bench(chosen, workers=number, seconds=arguments.seconds))
        with _cache(config, is_cold=is_cold) as chosen:
            limit = limit_of(chosen, rates)
    fewest = min(rates, key=lambda rate: rate.workers)
    read_seconds, batch_size = fewest.cpu_seconds_per_batch, round(fewest.samples / (fewest.batches - 1))
    answer = {'data': arguments.what, 'rates': [rate.to_json() for rate in rates], 'limit': limit}
    header = ('workers', 'samples/s', 'values', 'downloaded', 'first batch', 'wait p50', 'p99', 'CPU of a batch')
    advice = f'--read-seconds {read_seconds:.2g}, if a rank has batches of {batch_size:,}.'
    lines = [*text_table([header, *map(_row, rates)], indent=0), limit, f'For headrace simulate and tune: {advice}']
    print_answer(arguments, {**answer, 'read_seconds': read_seconds}, '\n'.join(lines))
    return 0


def _row(rate: Rate) -> tuple[str, ...]:
    return (
        str(rate.workers),
        f'{rate.samples_per_second:,.0f}',
        f'{rate.bytes_per_second / 1e6:,.1f} MB/s',
        human_size(rate.bytes_downloaded),
        f'{rate.first_batch_seconds:.2f} s',
        f'{1000 * rate.wait_p50:.2f} ms',
        f'{1000 * rate.wait_p99:.2f} ms',
        f'{1000 * rate.cpu_seconds_per_batch:.2f} ms',
    )


def _numbers(text: str) -> list[int]:
    parts = text.split(',')
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f'--workers is a list of numbers such as 0,4,8, got {text!r}.')
    return [int(part) for part in parts]


@contextlib.contextmanager
def _configured(arguments: argparse.Namespace) -> Generator[LoaderConfig]:
    """The training loader of the file, or one of the URL, whose cache is temporary."""
    from headrace.storage import local_path

    with tempfile.TemporaryDirectory(prefix='headrace-bench-') as cache:
        yield train_of(arguments, 'a measurement', cache if local_path(arguments.what) is None else None)


@contextlib.contextmanager
def _cache(config: LoaderConfig, *, is_cold: bool) -> Generator[LoaderConfig]:
    from headrace.cli.doctor.loaders import cached_in

    if not is_cold:
        yield config
        return
    with tempfile.TemporaryDirectory(prefix='headrace-bench-') as folder:
        yield cached_in(config, folder)


def _add_warm(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument('--local', metavar='DIR', help='cache folder of a URL')
    add_topology_arguments(parser)
    parser.add_argument('--node', type=int, default=0, help='number of this node, counted from 0')
    parser.add_argument('--batches', type=count, metavar='N', help='the first global batches (default: an epoch)')
    parser.add_argument('-j', '--jobs', type=count, default=8, metavar='N', help='concurrent shards')
    show_examples(
        parser,
        'headrace warm train.yaml',
        'headrace warm s3://bucket/data --local /scratch/cache/data',
        'headrace warm train.yaml --ranks 64 --nodes 8 --node $SLURM_NODEID --batches 200',
    )


@command('warm', _add_warm)
def _run_warm(arguments: argparse.Namespace) -> int:
    from headrace.config.build import build_dataset, unpacked
    from headrace.dataset.warm import warm
    from headrace.order import Topology

    config = train_of(arguments, '`headrace warm`', arguments.local)
    if arguments.local is None and not is_config(arguments.what):
        raise ConfigError(f'a URL needs the cache folder to fill: add --local DIR for {arguments.what}.')
    if not 0 <= arguments.node < arguments.nodes:
        raise ConfigError(f'--node counts from 0 to --nodes - 1, which is {arguments.nodes - 1}, got {arguments.node}.')
    if config.packing is not None:
        if arguments.batches is not None:
            raise ConfigError(
                '--batches needs a loader without `packing`, since the documents of a batch are known when they are '
                'read. Leave it out: then all shards are fetched.'
            )
        config = unpacked(config)  # the same shards, in the order of the documents
    topology = Topology(
        rank=arguments.node * (arguments.ranks // arguments.nodes),
        world_size=arguments.ranks,
        num_nodes=arguments.nodes,
        replication=max(arguments.replication, config.replication or 1),
    )
    dataset = build_dataset(config, topology=topology)
    with shown_progress('warm', unit=' shards') as show:
        report = warm(
            dataset,
            dataset.plan(epoch=0, topology=topology),
            batches=arguments.batches,
            jobs=arguments.jobs,
            progress=lambda done: show(done, len(dataset.shards)),
        )
    there = report.shards - report.fetched
    text = f'Fetched {count_text(report.fetched, "shard")} ({human_size(report.bytes)}), {there:,} were there.'
    if report.is_full:
        text += '\nThe cache is full: cache_limit has no room for the shards that are needed later.'
    print_answer(arguments, report.to_json(), text)
    return 0


def _add_measure(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument('--cost', metavar='COLUMN', help="column of the costs (default: the configuration's)")
    parser.add_argument('--local', metavar='DIR', help='cache folder of a URL (default: a temporary one, as in a run)')
    parser.add_argument('-j', '--jobs', type=count, default=8, metavar='N', help='concurrent shards of a stream')
    show_examples(
        parser,
        'headrace measure train.yaml',
        'headrace measure s3://bucket/chats --cost tokens --local /scratch/cache/chats -j 32',
        "headrace measure train.yaml --cost text --json | jq '.[0].p99'",
    )


@command('measure', _add_measure)
def _run_measure(arguments: argparse.Namespace) -> int:
    from headrace.config.build import build_streams
    from headrace.inspect.costs import measure

    config = train_of(arguments, '`headrace measure`', arguments.local)
    if arguments.cost is not None:
        streams = tuple(dataclasses.replace(stream, cost=arguments.cost) for stream in config.streams)
        config = dataclasses.replace(config, cost=arguments.cost, streams=streams)
    with shown_progress('measure', unit=' shards') as show:
        summaries = measure(
            build_streams(config),
            arguments.cost,
            jobs=arguments.jobs,
            cache_limit=config.cache_bytes,
            allow_unsafe_types=bool(config.allow_unsafe_types),
            progress=show,
        )
    print_answer(
        arguments,
        [summary.to_json() for summary in summaries],
        '\n'.join(line for summary in summaries for line in summary.lines()),
    )
    return 0


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    add_condition_arguments(parser, batches=500)
    parser.add_argument('--epochs', type=int, default=1, help='epochs that are simulated')
    parser.add_argument('--prices', type=Path, help="YAML of prices per GB by provider, instead of headrace's")
    parser.add_argument('--html', type=Path, metavar='FILE', help='write a page with plots')
    parser.add_argument('--ui', action='store_true', help='serve a page with plots that follow the values set on it')
    parser.add_argument('--port', type=int, default=0, help='port on 127.0.0.1 for --ui, or 0 for any free one')
    show_examples(
        parser,
        'headrace simulate train.yaml --ranks 64 --nodes 8 --step-seconds 0.35 --bandwidth 1.2gb',
        'headrace simulate train.yaml train.cache_limit=200gb --epochs 2 --html run.html',
        'headrace simulate train.yaml --ui --port 8000   # from afar: ssh -L 8000:127.0.0.1:8000 HOST',
    )


@command('simulate', _add_simulate)
def _run_simulate(arguments: argparse.Namespace) -> int:
    from headrace.simulate import simulate
    from headrace.simulate.page import costs, page, read_prices

    if arguments.ui and (arguments.json or arguments.html is not None):
        raise ConfigError('--ui shows a page until it is stopped; leave out --json and --html.')
    prices = read_prices(arguments.prices)
    if arguments.ui:
        return _serve(arguments, prices)
    simulated = simulate(train_config(arguments), read_conditions(arguments))
    cost = costs(simulated.epoch_store_bytes, prices)
    if arguments.html is not None:
        arguments.html.write_text(page(simulated, cost, title=str(arguments.config)))
    dollars = (f'    {provider:34}  ${price:,.2f}' for provider, price in cost.items())
    text = '\n'.join([str(simulated), '  egress of an epoch, all nodes:', *dollars])
    print_answer(arguments, {**simulated.to_json(), 'egress_cost': cost}, text)
    return 0


def _serve(arguments: argparse.Namespace, prices: dict[str, float]) -> int:
    from headrace.simulate.page import SimulationServer

    server = SimulationServer(
        train_config(arguments), read_conditions(arguments), prices, title=str(arguments.config), port=arguments.port
    )
    with server:
        print(f'The page is at {server.url} until Ctrl-C.', flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _add_tune(parser: argparse.ArgumentParser) -> None:
    add_condition_arguments(parser, batches=100)
    parser.add_argument('--wait', default='1%', help='largest share of the time spent waiting: 1%% or 0.01')
    parser.add_argument('--most-workers', type=count, default=8, metavar='N', help='workers of a rank at most')
    parser.add_argument('--disk', metavar='SIZE', help='largest cache of a node, such as 200gb')
    parser.add_argument('--keep-order', action='store_true', help='for a run in progress: keep the order of samples')
    parser.add_argument('--seconds', type=float, default=120, help='longest time of the search')
    parser.add_argument('--write', type=Path, metavar='OUT.yaml', help='write a configuration with the changes')
    show_examples(
        parser,
        'headrace tune train.yaml --ranks 64 --nodes 8 --step-seconds 0.35 --bandwidth 1.2gb --wait 1%',
        'headrace tune train.yaml --step-seconds 0.1 --read-seconds 0.08 --keep-order --write tuned.yaml',
        status='Exit status: 0, the target is reached; 1, it is out of reach, or an error; 2, wrong arguments.',
    )


@command('tune', _add_tune)
def _run_tune(arguments: argparse.Namespace) -> int:
    from headrace.format import bytes_to_int
    from headrace.simulate import tune

    out: Path | None = arguments.write
    check_new_file(out)
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f'--write must name a file in a folder that exists, but {out.parent} does not.')
    with shown_progress('tune', unit=' runs') as show:
        trials: list[Trial] = []

        def progress(trial: Trial) -> None:
            trials.append(trial)
            show(len(trials), None)

        tuning = tune(
            train_config(arguments),
            read_conditions(arguments),
            target=_share(arguments.wait),
            most_workers=arguments.most_workers,
            disk=None if arguments.disk is None else bytes_to_int(arguments.disk),
            keep_order=arguments.keep_order,
            seconds=arguments.seconds,
            progress=progress,
        )
    print_answer(arguments, tuning.to_json(), tuning)
    if out is not None:
        out.write_text(_changed(arguments, tuning, out.resolve().parent), encoding='utf-8')
        if not arguments.json:
            given = 'the given values and ' if arguments.overrides else ''
            print(f'{out} is {arguments.config} with {given}these changes.')
    return 0 if tuning.is_reached else 1


def _changed(arguments: argparse.Namespace, tuning: Tuning, folder: Path) -> str:
    """YAML for a folder: the configuration with the changes."""
    from headrace.mixing import load_config, to_yaml
    from headrace.simulate.tune import replace_settings, yaml_lines

    if not arguments.overrides:
        config = os.path.relpath(arguments.config.resolve(), folder)
        lines = [f'defaults: {json.dumps([config])}', *(yaml_lines(tuning.changes) if tuning.changes else ())]
        return '\n'.join([*lines, ''])
    # Overrides may remove keys of the file, which an including file cannot do. So the whole configuration is written.
    config = load_config(arguments.config, overrides=arguments.overrides)
    assert config.train is not None
    return to_yaml(dataclasses.replace(config, train=replace_settings(config.train, tuning.changes)))


def _share(text: str) -> float:
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith('%') else float(number)
    except ValueError:
        raise ConfigError(f'--wait is a share of the time, such as 1% or 0.01, got {text!r}.') from None
