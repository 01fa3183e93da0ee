"""The code and the libraries of a run."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.version import __version__

__all__ = ['code_of_run', 'library_versions']

_LIBRARIES = ('torch', 'numpy', 'lightning', 'mosaicml', 'tokenizers', 'transformers')


def library_versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that have to do with data."""
    versions = {name: _version(name) for name in _LIBRARIES}
    own = {'python': platform.python_version(), 'headrace': __version__}
    return own | {name: text for name, text in versions.items() if text}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def code_of_run(script: str | None = None) -> dict[str, str]:
    """The program, and the commit of the git repository that holds it.

    Git is not run: its files are read. Changes that are not committed do not show.

    Args:
        script: path of the program; None: that of this process.
    """
    path = Path(script or sys.argv[0] or '.').absolute()
    found = {'program': str(path)}
    for folder in (path, *path.parents):
        commit = _commit(folder / '.git')
        if commit:
            return {**found, 'commit': commit}
    return found


def _commit(git: Path) -> str | None:
    """The commit of a checkout; None: there is none."""
    try:
        if git.is_file():  # a worktree's names its folder
            git = git.parent / git.read_text().removeprefix('gitdir:').strip()
        head = (git / 'HEAD').read_text().strip()
        if not head.startswith('ref:'):
            return head
        name = head.removeprefix('ref:').strip()
        common = git / 'commondir'
        shared = git / common.read_text().strip() if common.exists() else git
        if (shared / name).exists():
            return (shared / name).read_text().strip()
        packed = (shared / 'packed-refs').read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((line.split(' ')[0] for line in packed if line.endswith(f' {name}')), None)
