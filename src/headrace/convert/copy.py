"""Copies of a whole dataset from one store to another: verified, index last, and continued after a kill.

A marker stands at the destination until its index does, and names the dataset that is copied. Objects beside the marker
of this dataset are of an earlier copy of it, so those of the right size stay. Stores never show a part of an object.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.convert.apart import lies_in
from headrace.convert.merge import refuse_erasure
from headrace.convert.stored_dataset import (
    INDEX,
    PATIENT,
    StoredDataset,
    check_hashes,
    object_url,
    open_object,
    open_stored,
)
from headrace.dataset.writing.place import StorePlace
from headrace.dataset.writing.start import MARK
from headrace.errors import ChecksumError, ConfigError, FormatError, HeadraceError, ObjectNotFoundError, StorageError
from headrace.errors.redaction import redact, warn, without_credentials
from headrace.format import FileInfo, parse_index
from headrace.format.index import Generation
from headrace.storage import StoreOptions, open_store
from headrace.storage.output import check_output

COPY_MARK: Final = '.headrace-copying'  # name of the marker at the destination
Place = str | os.PathLike[str]


@dataclass(frozen=True)
class CopyReport:
    """The result of `copy_dataset`."""

    source: str
    destination: str
    files: int
    """Files of the dataset, its index included."""
    copied: int
    """Files that were copied now; the others were there."""
    bytes: int
    """Bytes that were copied now."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def copy_dataset(
    source: Place,
    destination: Place,
    *,
    overwrite: bool = False,
    jobs: int = 8,
    source_options: StoreOptions | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CopyReport:
    """Copy a dataset between two stores of any kind.

    Each file must have the size and all checksums that the index gives. Large files are fetched in concurrent ranges.
    A call after a kill copies what is missing, and so does one of a dataset with checksums that has grown since.
    Nothing is copied if the destination has the whole dataset already.

    Args:
        source: a folder, or a URL of a store, with the dataset.
        destination: a folder, or a URL of a store.
        overwrite: replace another dataset at the destination. Its files are removed first.
        jobs: concurrent files.
        source_options: how to reach the source.
        options: how to reach the destination.
        progress: called with the bytes that are there, and with those of the whole dataset.

    Raises:
        ConfigError: the source is inside the destination that it would replace; or an argument breaks a rule.
        FileExistsError: the destination has another dataset, or files with names of this one.
        FileNotFoundError: the source has no index, or lacks a file.
        FormatError: a file of the source is not what its index says, or the dataset changed meanwhile.
        OSError: a store cannot be reached, or refuses.
    """
    if jobs < 1:
        raise ConfigError(f'`jobs` must be a number of concurrent files from 1, but is {jobs}.')
    if overwrite and lies_in(source, destination) and not lies_in(destination, source):
        raise ConfigError(
            f'`overwrite` (--overwrite) would delete the source {os.fspath(source)}, since it lies within the '
            f'destination {os.fspath(destination)}. Choose another destination.'
        )
    check_output(destination)
    dataset = open_stored(source, source_options)
    copy = _Copy(dataset, StorePlace(open_store(destination, options), PATIENT), overwrite=overwrite, progress=progress)
    copy.run(jobs)
    return CopyReport(
        source=without_credentials(os.fspath(source)),
        destination=without_credentials(os.fspath(destination)),
        files=len(copy.files) + 1,
        copied=copy.copied,
        bytes=copy.copied_bytes,
    )


class _Copy:
    def __init__(
        self,
        dataset: StoredDataset,
        target: StorePlace,
        *,
        overwrite: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._dataset, self._target = dataset, target
        self._overwrite, self._progress = overwrite, progress
        self.files = _stored_files(dataset)
        self._total = sum(info.bytes for info in self.files.values())
        self._mark = hashlib.blake2b(dataset.index, digest_size=16).hexdigest().encode()
        self._there = 0
        self.copied = self.copied_bytes = 0

    def run(self, jobs: int) -> None:
        there = {info.key: info.size for info in self._target.list()}
        old_index = self._target.read_if_there(INDEX) if INDEX in there else None
        is_done = old_index == self._dataset.index
        has_mark = COPY_MARK in there and self._target.read_if_there(COPY_MARK) == self._mark
        has_grown = not is_done and self._begins_with(old_index)
        is_ours = is_done or has_mark or has_grown
        if not is_ours:
            self._refuse(there)
        if has_grown and not has_mark:  # of other files there, nothing is known
            there = {name: there[name] for name in _files_of(old_index) if name in there}
        todo = [info for info in self.files.values() if not self._is_there(info, there, is_ours=is_ours)]
        if not is_ours:
            # Beside the marker every file counts as copied, so files of others go before it comes.
            missing = {info.basename for info in todo}
            replaced = [name for name in _files_of(old_index) if name not in self.files]
            for name in (INDEX, *replaced, *missing):  # without its index, the destination is not a dataset
                if name in there:
                    self._target.delete(name)
        if is_done and not todo:
            if COPY_MARK in there:
                self._delete_mark()
            return
        if not has_mark:
            self._target.write(COPY_MARK, self._mark)
        self._target.remove_unfinished({'', *(name.rpartition('/')[0] for name in self.files)})
        self._copy_all(todo, jobs)
        if StorePlace(self._dataset.store, PATIENT).read(INDEX) != self._dataset.index:
            raise FormatError(
                f'{object_url(self._dataset.store, INDEX)} changed while the dataset was copied, so the copy has no '
                f'index. Copy it again, with `overwrite`.'
            )
        self._target.write(INDEX, self._dataset.index)
        self.copied += 1
        self.copied_bytes += len(self._dataset.index)
        self._delete_mark()

    def _begins_with(self, index: bytes | None) -> bool:
        """Whether the dataset is one of an index with further shards at its end; only checksums tell."""
        if not all(info.hashes for info in self.files.values()):
            return False
        generation = Generation(hashlib.blake2b(index or b'', digest_size=8).hexdigest())
        return generation.shards_in(self._dataset.index) is not None

    def _refuse(self, there: Mapping[str, int]) -> None:
        """Refuse a destination that is not this copy's, unless it is empty or may be replaced."""
        refuse_erasure(self._target.shown, there)
        if MARK in there:
            raise FileExistsError(
                redact(
                    f'{self._target.shown} has a dataset that is still being written: it holds {MARK}. Wait for its '
                    f'writer, or choose another destination.'
                )
            )
        clash = next((key for key in there if key in self.files or key in (INDEX, COPY_MARK)), None)
        if clash is not None and not self._overwrite:
            raise FileExistsError(
                redact(
                    f'{self._target.shown} has {clash} of another dataset already. Choose another destination, or '
                    f'replace it with `overwrite` (--overwrite).'
                )
            )

    def _is_there(self, info: FileInfo, there: Mapping[str, int], *, is_ours: bool) -> bool:
        if there.get(info.basename) != info.bytes:
            return False
        if not is_ours:  # equal sizes say little about files of another origin
            if not info.hashes:
                return False
            try:
                with open_object(self._target.store, info.basename, info.bytes) as file:
                    check_hashes(file, info)
            except (ChecksumError, ObjectNotFoundError):
                return False
        self._count(info.bytes)
        return True

    def _copy_all(self, todo: list[FileInfo], jobs: int) -> None:
        with ThreadPoolExecutor(jobs, thread_name_prefix='headrace-copy') as pool:
            futures = {pool.submit(self._copy_file, info): info for info in todo}
            try:
                running = set(futures)
                while running:
                    done, running = wait(running, timeout=0.5, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                        self.copied += 1
                        self.copied_bytes += futures[future].bytes
                        self._count(futures[future].bytes)
            finally:
                pool.shutdown(cancel_futures=True)

    def _copy_file(self, info: FileInfo) -> None:
        try:
            with open_object(self._dataset.store, info.basename, info.bytes) as file:
                check_hashes(file, info)
                self._target.upload(info.basename, file, info.bytes)
        except FormatError as error:
            url = object_url(self._dataset.store, info.basename)
            raise type(error)(f'{url}: {error} Run `headrace verify` on the source.') from error
        size = PATIENT.call(f'Asking for {info.basename}', lambda: self._target.store.head(info.basename)).size
        if size != info.bytes:
            raise ChecksumError(
                f'{object_url(self._target.store, info.basename)} has {size} bytes after {info.bytes} were stored. '
                f'Copy again.'
            )

    def _delete_mark(self) -> None:
        try:
            self._target.delete(COPY_MARK)
        except StorageError as error:
            warn(f'The copy is whole, but its marker stays. The same copy removes it. The reason: {error}')

    def _count(self, size: int) -> None:
        self._there += size
        if self._progress is not None:
            self._progress(self._there, self._total)


def _stored_files(dataset: StoredDataset) -> dict[str, FileInfo]:
    """The files that the store holds, by name: compressed ones if there are."""
    stored = (file.zip or file.raw for info in dataset.shards for file in info.files)
    return {info.basename: info for info in stored}


def _files_of(index: bytes | None) -> list[str]:
    """Names of the files of a replaced dataset, or [] if its index cannot be read."""
    try:
        shards = parse_index(index or b'', source='the replaced index', allow_unsafe_types=True, allow_empty=True)
    except HeadraceError:
        return []
    return [name for info in shards for name in info.file_names]
