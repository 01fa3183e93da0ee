"""``headrace watch``: the mix, waits and cache of all ranks of a run, while it trains."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from headrace.cli.arguments import show_examples

__all__ = ['HELP', 'add_arguments', 'run']

HELP = 'show the waits, the mix and the caches of a run while it trains, on a local page or in the terminal'

_EVERY = 2.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run and the form."""
    parser.add_argument('folder', metavar='RUN', type=Path, help='folder of a run with the callback RunRecord')
    parser.add_argument('--text', action='store_true', help='show a table in the terminal instead of a page')
    parser.add_argument('--once', action='store_true', help='with --text: show it once, and end')
    parser.add_argument('--json', action='store_true', help='print JSON once, and end')
    parser.add_argument('--port', type=int, default=0, help='port of the page on 127.0.0.1; 0: any free one')
    show_examples(
        parser,
        'headrace watch runs/a                  # a page; its address is printed',
        'headrace watch runs/a --text           # a table, every two seconds',
        'headrace watch runs/a --json | jq .total',
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the run until Ctrl-C."""
    from headrace.watching.live import read_live
    from headrace.watching.table import live_text

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
        from headrace.watching.server import WatchServer

        with WatchServer(arguments.folder, arguments.port) as server:
            print(f'{server.url} shows {arguments.folder}; Ctrl-C ends it.', flush=True)
            server.serve_forever()
    return 0
