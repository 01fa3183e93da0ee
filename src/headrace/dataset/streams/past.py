"""Data as a recorded run read them: copies of their indexes, and streams that are opened by these in other folders."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headrace.dataset.streams.stream import PlacedStream
from headrace.selection import bitmap_file, costs
from headrace.storage.cache.cached_index import REMOTE_MARKER, digest_of, marker_text
from headrace.storage.whole_file import whole_file

INDEXES: Final = 'headrace-indexes'  # folder of the copies in a run's folder


def data_of(fingerprint: str) -> str:
    """The part of a stream's fingerprint that tells the data, without a selection."""
    return fingerprint.partition(', ')[0]


def _copies(run: Path, fingerprint: str) -> Path:
    whole = data_of(fingerprint).partition(' from shard ')[0]
    return run / INDEXES / hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()


def keep_index(run: Path, fingerprint: str, index: Path) -> None:
    """Copy a cached index into a run's folder, once for each version. An error of the disk leaves it out."""
    kept = _copies(run, fingerprint) / f'{index.name}.gz'
    with contextlib.suppress(OSError):
        if not kept.exists():
            content, written = index.read_bytes(), index.stat().st_mtime_ns
            kept.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(kept, kept.with_suffix('.tmp')) as file:
                file.write(gzip.compress(content, 1))
            os.utime(kept, ns=(written, written))


@dataclass(frozen=True, kw_only=True)
class PastData:
    """The data of a recorded run, for streams that look back at it and leave the run's folders as they are."""

    run: Path  # The run's folder.
    fingerprints: Mapping[str, str]  # Of the streams' data, by name.
    scratch: Path  # Takes the place of the folders of all streams that have a remote.
    lenders: dict[str, Path] = field(default_factory=dict[str, Path], init=False)
    """By name of the stream, the folder in which the run caches it."""

    def moved(self, stream: PlacedStream) -> PlacedStream:
        """The stream with a folder below `scratch`, which holds the index that the run read, if a copy was kept."""
        name = stream.name or ''
        if stream.is_local or name not in self.fingerprints:
            return stream
        self.lenders[name] = stream.folder
        folder = self.scratch / hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        stream = replace(stream, local=str(folder), has_default_folder=False)
        self.restore(stream)
        return stream

    def restore(self, stream: PlacedStream) -> None:
        """Put the kept copies of the stream's index into its folder."""
        for kept in _copies(self.run, self.fingerprints[stream.name or '']).glob('*.gz'):
            path = stream.folder / kept.stem
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.decompress(kept.read_bytes()))
            written = kept.stat().st_mtime_ns
            os.utime(path, ns=(written, written))

    def mark(self, stream: PlacedStream, url: str) -> None:
        """Say that the folder is a cache of a remote."""
        stream.folder.mkdir(parents=True, exist_ok=True)
        (stream.folder / REMOTE_MARKER).write_text(marker_text(url))

    def lender(self, stream: PlacedStream, index: Path) -> Path | None:
        """The folder in which the run caches the same data, of which all may be copied; None without such a folder.

        Its kept selections and costs are copied at once.
        """
        lender = self.lenders.get(stream.name or '')
        if lender is None or digest_of(lender / index.name) != digest_of(index):
            return None
        written = (lender / index.name).stat().st_mtime_ns  # it is part of the names of those
        os.utime(index, ns=(written, written))
        for name in (bitmap_file.FOLDER, costs.FOLDER):
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(lender / name, stream.folder / name)
        return lender


_PAST: Final = ContextVar[PastData | None]('past', default=None)


@contextlib.contextmanager
def looking_back(past: PastData) -> Generator[None]:
    """Open streams inside the block as a run read them."""
    token = _PAST.set(past)
    try:
        yield
    finally:
        _PAST.reset(token)


def past_data() -> PastData | None:
    """The run that streams look back at inside `looking_back`, or None."""
    return _PAST.get()
