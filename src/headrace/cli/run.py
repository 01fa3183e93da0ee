"""The commands `run`, `demo`, `watch` and `completion`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.cli.arguments import CommandParser, printing_to_stderr, show_examples
from headrace.cli.commands import command
from headrace.errors import ConfigError, MissingDependencyError
from headrace.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('-m', dest='is_module', action='store_true', help='run a module, as `python -m` does')
    parser.add_argument(
        '--path', action='store_true', help='print the folder that has the same effect in PYTHONPATH, and exit'
    )
    parser.add_argument('program', nargs='?', help='a Python file, an installed command, or a module')
    parser.add_argument('arguments', nargs=argparse.REMAINDER, help="the program's arguments")
    show_examples(
        parser,
        'headrace run train.py --epochs 3',
        'headrace run -m package.train',
        'headrace run composer -n 8 train.py',
        status="Exit status: the program's; 1, an error before it starts; 2, wrong arguments.",
    )


@command('run', _add_run, json="print the exit status as JSON, and the program's stdout on stderr")
def _run_run(arguments: argparse.Namespace) -> int:
    """Run the program in this process as `python` would; processes that it starts have the alias, too."""
    from headrace.compat import FOLDER  # installs the alias

    if arguments.path:
        print(json.dumps({'path': FOLDER}) if arguments.json else FOLDER)
        return 0
    program: str | None = arguments.program
    is_file = program is not None and not arguments.is_module and _is_program(Path(program))
    command = None if program is None or arguments.is_module or is_file else _installed_command(program)
    if program is None or not (arguments.is_module or is_file or command):
        raise ConfigError(
            f'`headrace run` takes a Python file that exists, the command of a package that is installed beside '
            f'headrace, or a module after -m, but got {program!r}. Correct it.'
        )
    before = os.environ.get('PYTHONPATH', '')
    if FOLDER not in before.split(os.pathsep):
        os.environ['PYTHONPATH'] = os.pathsep.join([FOLDER, before] if before else [FOLDER])
    script = program if command is None else str(Path(sys.executable).with_name(program))
    sys.argv[:] = [script, *arguments.arguments]
    if not getattr(sys.flags, 'safe_path', False):  # since Python 3.11
        sys.path[0] = str(Path.cwd() if arguments.is_module else Path(script).resolve().parent)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # signals are the program's own
    if not arguments.json:
        return _run_program(program, command, is_module=arguments.is_module)
    begin = time.monotonic()
    with printing_to_stderr():
        try:
            status = _run_program(program, command, is_module=arguments.is_module)
        except SystemExit as ended:
            status = _exit_status(ended.code)
    seconds = round(time.monotonic() - begin, 3)
    print(json.dumps({'program': sys.argv, 'exit_status': status, 'seconds': seconds}))
    return status


def _run_program(program: str, command: EntryPoint | None, *, is_module: bool) -> int:
    try:
        if command is not None:
            sys.exit(command.load()())
        elif is_module:
            runpy.run_module(program, run_name='__main__', alter_sys=True)
        else:
            runpy.run_path(program, run_name='__main__')
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)  # as `python` does, with the program's own hook
        return 1
    return 0


def _exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _is_program(path: Path) -> bool:
    """Whether `python PATH` would run it. A folder of a package is none, so that its command may have its name."""
    return path.is_file() or (path / '__main__.py').is_file()


def _installed_command(name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points

    return next(iter(entry_points(group='console_scripts', name=name)), None)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--out', type=Path, default=Path('demo-output'), help='folder for everything that it writes')
    parser.add_argument(
        '--store', choices=['local', 's3'], default='local', help='shards in a folder, or on a loopback S3 server'
    )
    parser.add_argument(
        '--framework', choices=['lightning', 'composer', 'both'], default='both', help='the trainer to run it under'
    )
    show_examples(parser, 'headrace demo', 'headrace demo --framework lightning --store s3')


@command('demo', _add_demo, json='print the proof as JSON, and everything else on stderr')
def _run_demo(arguments: argparse.Namespace) -> int:
    demo = _demo()
    frameworks = demo.FRAMEWORKS if arguments.framework == 'both' else (arguments.framework,)
    with printing_to_stderr(arguments.json):
        trainings = demo.run_demo(arguments.out, store=arguments.store, frameworks=frameworks)
    holds = all(training.proof.holds for training in trainings)
    if arguments.json:
        proofs = {training.framework: dataclasses.asdict(training.proof) for training in trainings}
        print(json.dumps({'out': str(arguments.out.resolve()), 'holds': holds, 'proofs': proofs}))
    return 0 if holds else 1


def _demo() -> Any:
    """The module `examples.demo.run` of this checkout."""
    root = Path(__file__).parents[3]
    if not (root / 'examples' / 'demo' / 'run.py').is_file():
        raise MissingDependencyError(
            f'the demo is not part of an installed headrace: unpack the source distribution of headrace {__version__} '
            '(pip download --no-deps --no-binary :all: headrace) or clone its repository, and run `make demo` there'
        )
    sys.path.insert(0, str(root))  # it imports `examples.demo`, and `tests.support` for its S3 server
    return importlib.import_module('examples.demo.run')


_EVERY = 2.0  # seconds


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('folder', metavar='RUN', type=Path, help='folder of a run with the callback RunRecord')
    parser.add_argument('--text', action='store_true', help='show a table in the terminal instead of a page')
    parser.add_argument('--once', action='store_true', help='with --text: show it once, and exit')
    parser.add_argument('--port', type=int, default=0, help='port of the page on 127.0.0.1, or 0 for any free one')
    show_examples(
        parser,
        'headrace watch runs/a                  # a page; its address is printed',
        'headrace watch runs/a --text           # a table, every two seconds',
        'headrace watch runs/a --json | jq .total',
    )


@command('watch', _add_watch, json='print JSON once, and end')
def _run_watch(arguments: argparse.Namespace) -> int:
    from headrace.watching.live import live_text, read_live

    if arguments.json:
        print(json.dumps(read_live(arguments.folder)))
    elif arguments.text and (arguments.once or not sys.stdout.isatty()):
        print(live_text(read_live(arguments.folder)))
    elif arguments.text:
        while True:
            text = live_text(read_live(arguments.folder))
            print(f'\x1b[H\x1b[2J{text}', flush=True)
            time.sleep(_EVERY)
    else:
        from headrace.watching.live import WatchServer

        with WatchServer(arguments.folder, arguments.port) as server:
            print(f'{server.url} shows {arguments.folder}; Ctrl-C ends it.', flush=True)
            server.serve_forever()
    return 0


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('shell', choices=['bash', 'zsh', 'fish', 'tcsh'], help='the shell that reads the script')
    show_examples(
        parser,
        'headrace completion bash > ~/.local/share/bash-completion/completions/headrace',
        'headrace completion zsh > ~/.zfunc/_headrace        # with: fpath+=~/.zfunc; compinit',
        'headrace completion fish > ~/.config/fish/completions/headrace.fish',
    )


@command('completion', _add_completion, json='print JSON, with the script as a text')
def _run_completion(arguments: argparse.Namespace) -> int:
    import shtab

    parser: CommandParser = arguments.parser
    for action in parser.paths:
        cast('Any', action).complete = shtab.FILE
    script = shtab.complete(parser, arguments.shell)
    print(json.dumps({'shell': arguments.shell, 'script': script}) if arguments.json else script)
    return 0
