"""``headrace run``: a program written for MosaicML Streaming, with headrace in its place."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.arguments import printing_to_stderr, show_examples
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'run a program for MosaicML Streaming unchanged: its `import streaming` gives headrace'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the program and its arguments."""
    parser.add_argument('-m', dest='is_module', action='store_true', help='run a module, as `python -m` does')
    parser.add_argument(
        '--path', action='store_true', help='print the folder that has the same effect in PYTHONPATH, and end'
    )
    parser.add_argument(
        '--json', action='store_true', help="print the exit status as JSON, and the program's stdout on stderr"
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


def run(arguments: argparse.Namespace) -> int:
    """Run the program in this process, as `python` would; returns the exit status.

    `PYTHONPATH` gets the alias' folder, so that processes that the program starts have the alias, too.

    Raises:
        ConfigError: no program is given, or there is neither such a file nor such a command.
    """
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
            status = _status(ended.code)
    seconds = round(time.monotonic() - begin, 3)
    print(json.dumps({'program': sys.argv, 'exit_status': status, 'seconds': seconds}))
    return status


def _run_program(program: str, command: EntryPoint | None, *, is_module: bool) -> int:
    """Run it; returns its exit status, unless it ends this process."""
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


def _status(code: object) -> int:
    """The exit status of `sys.exit(code)`, whose text is shown, as Python does."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _is_program(path: Path) -> bool:
    """Whether `python PATH` would run it. A folder of a package is none, so that its command may have its name."""
    return path.is_file() or (path / '__main__.py').is_file()


def _installed_command(name: str) -> EntryPoint | None:
    """The function that an installed package declares for a command; None: no package does."""
    from importlib.metadata import entry_points

    return next(iter(entry_points(group='console_scripts', name=name)), None)
