"""Run reference vectors: `python -m tests.support.golden order DIR`, or `formats` in place of `order`.

DIR is a folder of recorded results of MosaicML Streaming; missing parts are skipped.

- order: ``order/manifest.json`` with ``arrays.npz``, ``traces`` and ``e2e.json``, ``pure/<function>.json``,
  ``resume/manifest.json``.
- formats: ``formats/manifest.json`` with datasets and their ``.expected.json``, ``formats/encodings.json``,
  ``formats/keep_zip.json``, and damaged datasets in ``corrupt/manifest.json``.

The program prints every
vector that fails. The last line is ``N passed, M failed``, and the exit status is 1 if any failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.golden.case import Outcome

__all__ = ['main']


def _order(folder: Path) -> Iterable[Outcome]:
    from tests.support.golden import order, pure

    yield from order.run(folder)
    yield from pure.run(folder)
    if (folder / 'resume' / 'manifest.json').exists():
        from tests.support.golden import resume

        yield from resume.run(folder)


def _formats(folder: Path) -> Iterable[Outcome]:
    from tests.support.golden import formats

    yield from formats.run(folder)


_VECTORS = {'order': _order, 'formats': _formats}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the vectors that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(prog='python -m tests.support.golden', description=__doc__)
    parser.add_argument('what', choices=list(_VECTORS), help='which vectors')
    parser.add_argument('folder', type=Path, help='a folder of the layout above')
    chosen = parser.parse_args(arguments)
    passed, failed = 0, 0
    for name, problem in _VECTORS[chosen.what](chosen.folder):
        if problem:
            failed += 1
            print(f'FAILED {name}: {problem}', flush=True)
        else:
            passed += 1
    if not passed and not failed:
        print(f'{chosen.folder} holds no vectors: see --help for the files that it needs')
        failed = 1
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
