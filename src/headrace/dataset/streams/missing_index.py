"""The error for a folder without index.json, and why it is probably missing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.errors import EmptyDatasetError, HeadraceError, ObjectNotFoundError
from headrace.sources.formats import how_to_name

_INDEX: Final = 'index.json'
_SHARD: Final = re.compile(r'shard(\..*)?\.(mds|json|csv|tsv|xsv)(\..*)?', re.DOTALL)
_MOST: Final = 1000  # entries to look at


def explain_missing_index(folder: Path) -> str:
    """The likely cause of a missing index in a folder, and the fix. Reads names only."""
    try:
        with os.scandir(folder) as scan:
            entries = [entry for entry, _ in zip(scan, range(_MOST), strict=False)]
    except FileNotFoundError:
        if folder.is_symlink():
            return f'{folder} is a link to {folder.readlink()}, which is not there. Mount its disk, or correct it.'
        there = next(filter(Path.is_dir, folder.absolute().parents), None)
        hint = 'Check the path.' if there is None else f'Of its path, {there} is there.'
        return f'There is no folder {folder}. {hint}'
    except NotADirectoryError:
        return f'{folder} is a file. Name it without a slash at its end, or say its `format` if its name does not.'
    except OSError as error:
        return f'The folder {folder} cannot be listed: {error.strerror}.'
    splits = sorted(entry.name for entry in entries if os.path.exists(os.path.join(entry.path, _INDEX)))  # noqa: PTH110, PTH118
    if splits:
        return f'Its sub-folders {_some(splits)} have one: set `split={splits[0]!r}`, or name that sub-folder.'
    from headrace.dataset.writing.start import MARK  # writers take time to import, and a training run has none

    names = sorted(entry.name for entry in entries)
    if MARK in names or any(map(_SHARD.fullmatch, names)):
        return (
            'It holds shards without an index: its writer has not finished. Call `finish`, or write inside `with '
            'MDSWriter(...)`. After a crash, start the writer again; with `resume=True` it continues.'
        )
    files = [name for name in names if not name.startswith('.')]
    if not files:
        return 'The folder is empty. Check the path.'
    return (
        f'It holds {_some(files)}, and no shards. `headrace convert` makes shards of a folder of images, texts or '
        f'tables; others are written with an `MDSWriter`.{how_to_name(names)}'
    )


def missing_index(index: Path, remote: str | None, title: str) -> HeadraceError:
    """The error for local data without an index. `title`: the stream's name for messages."""
    place = explain_missing_index(index.parent)
    if remote is None:
        return EmptyDatasetError(f'No `remote` provided, but local file {index} does not exist either. {place}')
    return ObjectNotFoundError(f'No such file or directory: {index}, the index of stream {title}. {place}')


def _some(names: Sequence[str]) -> str:
    more = f' and {len(names) - 3} more' if len(names) > 3 else ''
    return ', '.join(names[:3]) + more
