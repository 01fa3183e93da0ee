"""Writers of datasets: to a folder, to a store, or both."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from tqdm import tqdm

from headrace.dataset.writing.claim import INDEX, FolderClaim, StoreClaim
from headrace.errors import ConfigError
from headrace.format import (
    EncodedShard,
    JSONEncoder,
    MDSEncoder,
    ShardEncoder,
    ShardInfo,
    XSVEncoder,
    bytes_to_int,
    dump_index,
)
from headrace.storage import Retry, Store, StoreOptions, open_store, split_url

__all__ = ['CSVWriter', 'JSONWriter', 'MDSWriter', 'TSVWriter', 'Writer', 'XSVWriter']

Out: TypeAlias = str | os.PathLike[str] | tuple[str | os.PathLike[str], str]

_UPLOADS_AHEAD = 4  # shards per worker that may wait in memory or on disk to be uploaded


class Writer:
    """Writes samples into shards, and at the end their index.

    The index comes last, after all shards, so a dataset whose writer crashed has none. The next writer to the same
    `out` removes the files and the temporary folder of a killed one.

    Args:
        encoder: turns samples into shards.
        out: a folder, a URL, or both as `(folder, URL)`.
        keep_local: with a URL, whether the shards stay in the folder too.
        exist_ok: whether to empty a folder, or a prefix of a store, that holds something.
        progress_bar: whether to show a progress bar of the uploads.
        retry: attempts after the first for an upload that fails.
        max_workers: concurrent uploads.
        options: how to reach the store.

    Raises:
        FileExistsError: another writer writes to `out`. Without `exist_ok`, also if `out` holds more than leftovers of
            a writer that was killed on this machine.
        ValueError: an argument breaks a rule.
    """

    def __init__(
        self,
        encoder: ShardEncoder,
        *,
        out: Out,
        keep_local: bool = False,
        exist_ok: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        max_workers: int | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        self._encoder = encoder
        self._shards: list[ShardInfo] = []
        folder, remote = _split_out(out)
        self._store: Store | None = None if remote is None else open_store(remote, options or StoreOptions())
        self._retry = Retry(attempts=1 + retry)
        self._keep_local = keep_local or self._store is None
        self._remote_claim: StoreClaim | None = None
        if self._store is not None:
            self._remote_claim = StoreClaim(self._store, self._retry, exist_ok=exist_ok)
        if folder is None:
            self._claim = FolderClaim.make_temporary()
        else:
            self._claim = FolderClaim.take(folder, exist_ok=exist_ok, has_store=self._store is not None)
        self.local = self._claim.path
        self.remote = remote
        if self._remote_claim is not None:
            try:
                self._remote_claim.take(self._claim.mark)
            except BaseException:
                self._claim.release()
                raise
        self._progress = tqdm(desc='upload', unit='file', disable=not progress_bar or self._store is None)
        self._max_workers = max_workers or min(8, 2 * (os.cpu_count() or 1))
        self._uploader: ThreadPoolExecutor | None = None
        self._uploads: list[Future[None]] = []
        self._is_open = True

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards that are finished, in order."""
        return tuple(self._shards)

    def get_config(self) -> dict[str, Any]:
        """The settings that are stored with each shard."""
        return self._encoder.get_config()

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add one sample.

        Raises:
            KeyError: the sample lacks a column.
            AttributeError, TypeError, ValueError, OverflowError: a value does not fit its column. The message names
                the column, and the sample by the number of calls before this one. The writer skips the sample, and can
                continue.
            OSError: an earlier upload failed.
        """
        if not self._is_open:
            raise ValueError('This writer is closed: samples are written before `finish` or inside its `with` block.')
        for shard in self._encoder.add(sample):
            self._put(shard)

    def write_batch(self, columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]) -> None:
        """Add many samples: the same dataset as of `write`, sample by sample, in a fraction of the time.

        Args:
            columns: the values of each column, equally many: a list, an array whose first axis is the sample, or what
                converts to one, such as a tensor. Numbers of an array of one axis count as Python numbers.

        Raises:
            KeyError: a column is missing.
            AttributeError, TypeError, ValueError, OverflowError: as for `write`, or the columns differ in length. None
                of the samples is added, and the writer can continue.
            OSError: an earlier upload failed.
        """
        if not self._is_open:
            raise ValueError('This writer is closed: samples are written before `finish` or inside its `with` block.')
        for shard in self._encoder.add_batch(columns):
            self._put(shard)

    def _put(self, shard: EncodedShard) -> None:
        for name, data in shard.files:
            _write_file(self.local / name, data)
            self._upload(name)
        self._shards.append(shard.info)

    def _upload(self, name: str) -> None:
        if self._store is None:
            return
        if self._uploader is None:
            self._uploader = ThreadPoolExecutor(self._max_workers, thread_name_prefix='headrace-upload')
        # A wait for the oldest upload bounds the disk space, and raises its error.
        while len(self._uploads) >= _UPLOADS_AHEAD * self._max_workers:
            self._uploads.pop(0).result()
        self._progress.total = (self._progress.total or 0) + 1
        self._uploads.append(self._uploader.submit(self._upload_file, name))

    def _upload_file(self, name: str) -> None:
        assert self._store is not None
        store, path = self._store, self.local / name

        if self._remote_claim is not None:
            self._remote_claim.check()

        def attempt() -> None:
            with open(path, 'rb') as source:
                store.put(name, source, size=path.stat().st_size)

        self._retry.call(f'Uploading {store.url}/{name}', attempt)
        if not self._keep_local:
            path.unlink()
        self._progress.update()

    def finish(self) -> None:
        """Write the last shards, then the index. A second call does nothing."""
        if not self._is_open:
            return
        for shard in self._encoder.finish():
            self._put(shard)
        for upload in self._uploads:
            upload.result()
        _write_file(self.local / INDEX, dump_index(self._shards))
        if self._store is not None:
            self._upload_file(INDEX)
        if self._remote_claim is not None:
            self._remote_claim.release()
        self._close()

    def abort(self) -> None:
        """Stop without an index, and remove the files of the folder."""
        if not self._is_open:
            return
        for upload in self._uploads:
            upload.cancel()
        if self._uploader is not None:
            self._uploader.shutdown(wait=True)
        self._claim.remove_files()
        self._close()

    def _close(self) -> None:
        self._is_open = False
        if self._uploader is not None:
            self._uploader.shutdown()
        self._progress.close()
        self._claim.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.finish()
        except BaseException:
            self.abort()
            raise


def _split_out(out: Out) -> tuple[Path | None, str | None]:
    """Folder and URL of `out`; a URL without a folder needs a temporary one."""
    if isinstance(out, tuple):
        if len(out) != 2 or not all(out):
            raise ConfigError(f'`out` must be a folder, a URL, or a pair (folder, URL), but is {out!r}.')
        return Path(out[0]), str(out[1])
    scheme, rest = split_url(str(out))
    if scheme in ('', 'file'):
        return Path(rest), None
    return None, str(out)


def _write_file(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + '.tmp')
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class MDSWriter(Writer):
    """Writes MDS shards, which hold any value; `headrace.format.get_mds_encodings` names the encodings.

    Args:
        columns: encoding of each column.
        out: a folder, a URL, or both as `(folder, URL)`.
        keep_local, exist_ok, progress_bar, retry, max_workers, options: see `Writer`.
        compression: 'zstd', 'br', 'bz2', 'gz' or 'snappy', with a level as in 'zstd:7'.
        hashes: names of hashes to store in the index, sorted.
        size_limit: bytes of a shard file before compression, as a number or text ('64mb'); None for a single shard.

    Raises:
        ValueError: an argument breaks a rule, or is unknown.
        FileExistsError: `out` holds something, and `exist_ok` is not set.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        encoder = MDSEncoder(columns, compression=compression, hashes=hashes, size_limit=_checked(size_limit))
        super().__init__(encoder, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class JSONWriter(Writer):
    """Writes JSONL shards of columns 'str', 'int' and 'float'; see `MDSWriter`.

    Args:
        columns: encoding of each column.
        newline: the end of a line.
        out, keep_local, compression, hashes, size_limit: see `MDSWriter`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        newline: str = '\n',
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        encoder = JSONEncoder(
            columns, newline=newline, compression=compression, hashes=hashes, size_limit=_checked(size_limit)
        )
        super().__init__(encoder, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class XSVWriter(Writer):
    """Writes shards of lines of separated values, without quoting; see `MDSWriter`.

    Args:
        columns: encoding of each column: 'str', 'int' or 'float'.
        separator: the text between two values.
        newline: the end of a line.
        out, keep_local, compression, hashes, size_limit: see `MDSWriter`.
    """

    _format = 'xsv'

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str | None,
        out: Out,
        newline: str = '\n',
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        encoder = XSVEncoder(
            columns,
            shard_format=self._format,
            separator=separator,
            newline=newline,
            compression=compression,
            hashes=hashes,
            size_limit=_checked(size_limit),
        )
        super().__init__(encoder, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class CSVWriter(XSVWriter):
    """Writes comma-separated shards; see `XSVWriter`."""

    _format = 'csv'

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**_known(type(self), kwargs, 'separator'), separator=None)


class TSVWriter(XSVWriter):
    """Writes tab-separated shards; see `XSVWriter`."""

    _format = 'tsv'

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**_known(type(self), kwargs, 'separator'), separator=None)


_ARGUMENTS = {
    'columns', 'out', 'keep_local', 'compression', 'hashes', 'size_limit', 'newline', 'exist_ok', 'progress_bar',
    'retry', 'max_workers', 'options',
}  # fmt: skip


def _known(writer: type[Writer], arguments: dict[str, Any], *refused: str) -> dict[str, Any]:
    unknown = sorted(set(arguments) - _ARGUMENTS | set(arguments).intersection(refused))
    if unknown:
        raise ConfigError(
            f'{writer.__name__} got an Invalid Writer argument: {unknown[0]!r}. It takes {sorted(_ARGUMENTS)}.'
        )
    return arguments


def _checked(size_limit: int | str | None) -> int | None:
    limit = None if size_limit is None else bytes_to_int(size_limit)
    if limit is not None and limit >= 1 << 32:
        raise ConfigError(f'`size_limit` must be less than 2**32 bytes, but is {size_limit!r}.')
    return limit
