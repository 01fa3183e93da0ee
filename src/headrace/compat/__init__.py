"""`import headrace.compat` makes `import streaming` give headrace, for programs written for MosaicML Streaming.

The alias holds for this process and for the worker processes that it spawns. `headrace run SCRIPT` and
`python -m headrace.compat SCRIPT` set it from outside, also for all processes that the script starts.
`docs/mosaicml.md` lists the names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.compat.finder import ROOT, AliasFinder, is_aliased
from headrace.errors import AliasError

__all__ = ['FOLDER', 'install', 'uninstall']

FOLDER = str(Path(__file__).parent / 'on_path')
"""A folder for `PYTHONPATH` or `sys.path`: its `streaming` is this alias, ahead of an installed MosaicML Streaming."""


def install() -> None:
    """Make `import streaming` give headrace, in this process and in those that `multiprocessing` spawns from it.

    Raises:
        AliasError: MosaicML Streaming itself was imported before.
    """
    if not is_aliased():
        origin = getattr(sys.modules[ROOT], '__file__', None) or 'a file of unknown name'
        raise AliasError(
            f'`headrace.compat` must be imported before `streaming`, but `streaming` is loaded already, from {origin}. '
            f'Make `import headrace.compat` the first line of the program, or start it with `headrace run`.'
        )
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
    if FOLDER not in sys.path:
        sys.path.insert(1, FOLDER)  # spawned processes get the path; its first entry is the script's folder


def uninstall() -> None:
    """Undo `install`: later imports of `streaming` find an installed package again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    sys.path[:] = [folder for folder in sys.path if folder != FOLDER]
    if is_aliased():
        for name in [name for name in sys.modules if name == ROOT or name.startswith(f'{ROOT}.')]:
            del sys.modules[name]


install()
