"""Reading of damaged datasets, from the index to the last value. Only errors of headrace may come out."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final
from unittest import mock

from headrace import StreamingDataset
from headrace.errors import HeadraceError
from headrace.sources import delta
from headrace.sources.formats import format_of
from headrace.sources.source_index import unpack_part
from tests.support.fuzz.fuzz_mutators import mutate
from tests.support.fuzz.fuzz_seeds import Objects
from tests.support.sources.source_cases import MemoryStore

__all__ = ['damaged', 'read', 'read_all']


_FORKS: Final = multiprocessing.get_context('forkserver')
_FORKS.set_forkserver_preload(['__main__', __name__, 'deltalake', 'pandas', 'pyarrow.compute'])


def damaged(rng: random.Random, parser: str, seeds: list[Objects]) -> tuple[Objects, Objects]:
    """A seed, and the same with one damaged file."""
    good = rng.choice(seeds)
    names = [name for name in good if parser not in ('mds', 'index') or (name == 'index.json') == (parser == 'index')]
    name = rng.choice(names)
    other = rng.choice([*rng.choice(seeds).values()])
    return good, {**good, name: mutate(rng, name, good[name], other)}


def read(parser: str, good: Objects, bad: Objects, folder: Path) -> None:
    """Read a damaged dataset; and, of other formats, with the index of the undamaged one, too.

    Args:
        parser: a name of `PARSERS`.
        good: the undamaged dataset.
        bad: the damaged one.
        folder: an empty or absent folder for files.

    Raises:
        Exception: one that is not of headrace.
    """
    for is_indexed_before in (False, True) if parser not in ('mds', 'index') else (False,):
        with contextlib.suppress(HeadraceError):
            read_all(parser, bad, folder, index_of=good if is_indexed_before else bad)


def read_all(parser: str, objects: Objects, folder: Path, *, index_of: Objects) -> int:
    """Read a dataset, each value; returns the number of rows.

    Args:
        parser: a name of `PARSERS`.
        objects: the dataset.
        folder: an empty or absent folder for files.
        index_of: the objects from which the index is made, for formats that have none of their own.

    Raises:
        HeadraceError: the dataset is damaged.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if parser in ('mds', 'index'):
        for name, data in objects.items():
            (folder / name).write_bytes(data)
        dataset = StreamingDataset(local=str(folder), batch_size=1)
        failed = None
        for row in range(min(len(dataset), 1000)):
            try:
                dataset[row]
            except HeadraceError as error:  # others may be whole
                failed = error
        if failed is not None:
            raise failed
        return len(dataset)
    kind = format_of(parser)
    store = MemoryStore(dict(index_of))
    found = kind.find(list(store.list('')))
    with mock.patch.object(delta.subprocess, 'run', _run) if parser == 'delta' else contextlib.nullcontext():
        source = kind.load(kind.index(store, found, columns=None, allow_unsafe_types=False).to_bytes())
    count = 0
    for number, part in enumerate(source.parts):
        ranges = part.ranges or ((0, len(objects[part.key])),)
        spans = [*part.beside, *((part.key, at, size) for at, size in ranges)]
        packed, raw = folder / 'packed', folder / 'raw'
        packed.write_bytes(b''.join(objects[key][at : at + size] for key, at, size in spans))
        unpack_part(source, number, packed, raw)
        count += part.rows
    return count


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Read the log of a Delta table in a fork of a process that has imported what it needs, which takes seconds."""
    del options
    process = _FORKS.Process(target=_write, args=(command[-2], command[-1]))
    process.start()
    process.join()
    return subprocess.CompletedProcess(command, process.exitcode or 0, b'', b'')


def _write(folder: str, out: str) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    delta._write(folder, Path(out))
