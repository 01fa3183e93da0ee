"""Arguments that commands share: stores, loaders, simulated runs, and the examples of ``--help``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headrace.dataset import StreamingDataLoader
    from headrace.mixing import Config, LoaderConfig
    from headrace.simulate import Conditions
    from headrace.storage import StoreOptions

STATUS: Final = 'Exit status: 0, done; 1, an error, in one line on stderr; 2, wrong arguments.'


class CommandParser(argparse.ArgumentParser):
    """A parser that adds its arguments that are paths to `paths`, for the completion of shells."""

    def __init__(self, *args: Any, paths: list[argparse.Action] | None = None, **options: Any) -> None:
        self.paths = [] if paths is None else paths
        super().__init__(*args, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Declare an argument, as argparse does; the help names its default, if it has one."""
        text, default = options.get('help'), options.get('default')
        if text and 'default' not in text and default not in (None, False, '', argparse.SUPPRESS) and default != []:
            options['help'] = f'{text} (default: {str(default).replace("%", "%%")})'
        action = super().add_argument(*names, **options)
        if action.choices is None and action.nargs != 0 and (action.type is Path or not action.option_strings):
            self.paths.append(action)
        return action


def show_examples(parser: argparse.ArgumentParser, *examples: str, status: str = STATUS) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # keeps the lines of the epilog
    parser.epilog = '\n'.join(['examples:', *(f'  {example}' for example in examples), '', status])


def add_store_arguments(parser: argparse.ArgumentParser, prefix: str = '', of: str = 'the store') -> None:
    """Declare how to reach a store; `prefix`: for the second one of a command, as in ``--to-region``."""
    parser.add_argument(f'--{prefix}endpoint-url', metavar='URL', help=f"server of {of}, if not the vendor's own")
    parser.add_argument(f'--{prefix}region', help=f'region of {of}')
    parser.add_argument(f'--{prefix}anonymous', action='store_true', help=f'send unsigned requests to {of}')
    parser.add_argument(
        f'--{prefix}store-option',
        action='append',
        default=[],
        metavar='KEY=VALUE',
        help=f'an option of {of}, such as profile=x: docs/stores.md lists them; may be repeated',
    )


def add_two_stores(parser: argparse.ArgumentParser, *, to: str) -> None:
    """Declare how to reach the source and, with the prefix ``to-``, another store."""
    add_store_arguments(parser, of='the source')
    add_store_arguments(parser, 'to-', of=to)


def print_answer(arguments: argparse.Namespace, answer: object, text: object) -> None:
    print(json.dumps(answer) if arguments.json else text)


def check_new_file(path: Path | None) -> None:
    if path is not None and path.exists():
        raise ConfigError(f'--write must name a new file, but {path} already exists.')


@contextlib.contextmanager
def printing_to_stderr(is_json: bool = True) -> Generator[None]:
    """Under ``--json`` send to stderr what is printed meanwhile, also by child processes: stdout is for the JSON."""
    if not is_json:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


@contextlib.contextmanager
def shown_progress(what: str, **unit: Any) -> Generator[Callable[[int, int | None], None]]:
    """A bar on stderr, if that is a terminal. Gives a function of what is done and of the whole; None: unknown."""
    from tqdm import tqdm

    with tqdm(desc=what, disable=not sys.stderr.isatty(), **unit) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


def store_options(arguments: argparse.Namespace, prefix: str = '') -> StoreOptions:
    from headrace.storage import StoreOptions

    name = prefix.replace('-', '_')
    extra: dict[str, object] = {}
    for text in getattr(arguments, f'{name}store_option'):
        key, separator, value = text.partition('=')
        if not separator or not key:
            raise ConfigError(f'--{prefix}store-option is KEY=VALUE, such as profile=x, got {text!r}.')
        extra[key] = int(value) if value.isdecimal() else value
    return StoreOptions(
        endpoint_url=getattr(arguments, f'{name}endpoint_url'),
        region=getattr(arguments, f'{name}region'),
        anonymous=getattr(arguments, f'{name}anonymous'),
        extra=extra,
    )


def given(arguments: argparse.Namespace, function: Callable[..., object]) -> dict[str, Any]:
    """The arguments of a function that options give: those of its names, of its format, and of its stores."""
    values = vars(arguments)
    if 'to_endpoint_url' in values:
        values = {**values, 'source_options': store_options(arguments), 'options': store_options(arguments, 'to-')}
    elif 'endpoint_url' in values:
        values = {**values, 'options': store_options(arguments)}
    if 'format_option' in values:
        values = {**values, 'format_options': _format_options(arguments.format_option)}
    return {name: values[name] for name in signature(function).parameters if name in values}


def names(text: str) -> list[str]:
    """The names of ``a,b``; of ``none``, none."""
    return [] if text == 'none' else text.split(',')


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--format', help='format of the data; by default found by the names of the files')
    parser.add_argument(
        '--format-option',
        action='append',
        default=[],
        metavar='KEY=VALUE',
        help='option of the format, such as delimiter=";" or header=false',
    )
    parser.add_argument('--split', help='sub-folder, or files with this name, such as train')


def _format_options(texts: list[str]) -> dict[str, Any]:
    """The values of options; each is JSON, or else a text."""
    options: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition('=')
        if not separator or name in options:
            raise ConfigError(f'--format-option is KEY=VALUE, once for each key, but got {text!r:.100}.')
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a number from 1, got {text!r}')
    return int(text)


def add_config_arguments(parser: argparse.ArgumentParser, *, or_else: str = '') -> None:
    """Declare the file and its overrides; `or_else`: what may stand in its place, '': nothing."""
    if or_else:
        parser.add_argument('config', type=Path, nargs='?', help=f'YAML file of the loaders, {or_else}')
    else:
        parser.add_argument('config', type=Path, help='YAML file of the loaders')
    parser.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='what goes over the file')


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a file, or a dataset in its place, which needs no file; see `train_of`."""
    parser.add_argument('what', metavar='CONFIG|URL', help='YAML file of the loaders, or a dataset')
    parser.add_argument(
        'overrides',
        nargs='*',
        metavar='KEY=VALUE',
        help='overrides of the file; of a dataset, such as train.decode.size=224',
    )
    parser.add_argument('--batch-size', type=count, default=32, metavar='N', help='of a URL (default: %(default)s)')
    add_store_arguments(parser, of='the store of a URL')


def is_config(what: str) -> bool:
    from headrace.sources.formats import formats_in
    from headrace.storage import ObjectInfo

    path = Path(what)
    return path.is_file() and not formats_in([ObjectInfo(path.name, 0, '')])


def train_of(arguments: argparse.Namespace, purpose: str, cache: str | None) -> LoaderConfig:
    """The training loader of the file that `add_data_arguments` declared, or one of the dataset.

    `cache`: the folder for the shards of a dataset, or None to read folders in place and others as in a run.
    """
    from headrace.mixing import load_config
    from headrace.storage import local_path

    if is_config(arguments.what):
        if getattr(arguments, 'local', None) is not None:
            raise ConfigError(
                f'--local is the cache folder of a URL, but {arguments.what} is a configuration, which names its own. '
                f'Leave it out, or write train.local={arguments.local}.'
            )
        return _train_section(arguments.what, arguments.overrides, purpose)
    if arguments.what.endswith(('.yaml', '.yml')):
        raise ConfigError(f'{arguments.what} does not exist: check its path.')
    folder = local_path(arguments.what)
    place = {'remote': arguments.what} if folder is None else {'local': str(folder)}
    if cache is not None:
        place = {'remote': arguments.what, 'local': cache}
    options = store_options(arguments)
    store = {
        'endpoint_url': options.endpoint_url,
        'region': options.region,
        'anonymous': options.anonymous or None,
        'store_options': dict(options.extra) or None,
    }
    given = {name: value for name, value in store.items() if value is not None}
    made = {'global_batch_size': arguments.batch_size, 'train': {'streams': {'data': {**place, **given}}}}
    config = load_config(made, overrides=arguments.overrides)
    assert config.train is not None
    return config.train


def add_topology_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--ranks', type=int, default=1, help='ranks of all nodes together')
    parser.add_argument('--nodes', type=int, default=1, help='nodes')
    parser.add_argument(
        '--replication', type=int, default=1, help='neighbouring ranks that get the same samples; as in the YAML'
    )


def open_loader(arguments: argparse.Namespace, *, name: str = 'train', rank: int = 0) -> StreamingDataLoader:
    from headrace.mixing import build_loader, load_config
    from headrace.order import Topology

    topology = Topology(
        rank=rank, world_size=arguments.ranks, num_nodes=arguments.nodes, replication=arguments.replication
    )
    config = choose_loader(load_config(arguments.config, overrides=arguments.overrides), name)
    return build_loader(config, topology=topology)


def choose_loader(config: Config, name: str) -> LoaderConfig:
    loaders = {} if config.train is None else {'train': config.train}
    for section in ('eval', 'test', 'predict'):
        of_section: tuple[LoaderConfig, ...] = getattr(config, section)
        loaders |= {f'{section}.{loader.name}': loader for loader in of_section}
        if len(of_section) == 1:
            loaders.setdefault(section, of_section[0])
    if name == 'train' and name not in loaders:
        raise ConfigError(f'the configuration has no `train` section; it has {", ".join(loaders) or "no loaders"}.')
    if name not in loaders:
        raise ConfigError(f'--loader must be one of {", ".join(loaders)}, got {name!r}.')
    return loaders[name]


def add_condition_arguments(parser: argparse.ArgumentParser, *, batches: int) -> None:
    add_config_arguments(parser)
    add_topology_arguments(parser)
    parser.add_argument('--step-seconds', type=float, default=0.1, help='a training step without waiting for data')
    parser.add_argument('--bandwidth', default='119mb', help='of each node, in bytes per second, such as 1.2gb')
    parser.add_argument('--connection-bandwidth', help='of one connection, in bytes per second')
    parser.add_argument('--latency', type=float, default=0.03, help='seconds from a request to the first byte')
    parser.add_argument(
        '--request-seconds',
        type=float,
        default=0.002,
        help='of a request, besides the latency: processor time of the library',
    )
    parser.add_argument('--publish-seconds', type=float, default=0.001, help='check of a shard after its last byte')
    parser.add_argument(
        '--read-seconds', type=float, default=0.0002, help='making one batch, with decoding; `headrace bench` measures'
    )
    parser.add_argument('--receive-seconds', type=float, default=0.0005, help='taking a batch from a worker')
    parser.add_argument('--start-seconds', type=float, default=0.1, help='start of the workers')
    parser.add_argument('--batches', type=int, default=batches, help='batches of an epoch to simulate, at most')
    parser.add_argument('--documents', type=count, metavar='N', help='of a global batch, for a loader with `packing`')


def read_conditions(arguments: argparse.Namespace) -> Conditions:
    from headrace.format import bytes_to_int
    from headrace.simulate import Conditions

    given = {field.name: getattr(arguments, field.name, None) for field in fields(Conditions)}
    given['bandwidth'] = float(bytes_to_int(arguments.bandwidth))
    if arguments.connection_bandwidth is not None:
        given['connection_bandwidth'] = float(bytes_to_int(arguments.connection_bandwidth))
    return Conditions(**{name: value for name, value in given.items() if value is not None})


def train_config(arguments: argparse.Namespace) -> LoaderConfig:
    from headrace.config.build import unpacked

    config = _train_section(arguments.config, arguments.overrides, 'a simulation')
    is_packed, documents = config.packing is not None, arguments.documents
    if documents is not None and not is_packed:
        raise ConfigError(f'--documents is for a loader with `packing`, but {arguments.config} has none. Leave it out.')
    return unpacked(config, documents) if is_packed and documents is not None else config


def _train_section(path: str | Path, overrides: list[str], purpose: str) -> LoaderConfig:
    from headrace.mixing import load_config

    config = load_config(path, overrides=overrides)
    if config.train is None:
        raise ConfigError(
            f'{purpose} needs a `train` section, and the configuration has none. Write the section of the loader that '
            f'you mean as `train`, in a copy of the file.'
        )
    return config.train
