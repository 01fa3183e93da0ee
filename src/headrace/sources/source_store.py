"""A store whose objects are the index of a dataset of another format, and its parts.

So the cache fetches both as it fetches an index.json and compressed shards. It fetches once per machine, with retries
and in ranges, and compares with the remote at the start. The index has the digest of the dataset's listing as its
version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headrace.errors import ChecksumError, ConfigError, EmptyDatasetError, FormatError, StorageError, TransferError
from headrace.redaction import without_credentials
from headrace.sources.formats import choose_split, find_format, format_of
from headrace.sources.source_index import SourceIndex, index_name
from headrace.storage import ObjectInfo, open_store, split_url
from headrace.storage.transfer.retry import BrokenTransferError

if TYPE_CHECKING:
    from headrace.sources.protocol import SourceFormat
    from headrace.storage import StoreOptions

__all__ = ['SourceStore', 'glob_pattern', 'has_glob', 'split_glob']

_MAGIC = re.compile(r'[*?\[]')


def has_glob(url: str | None) -> bool:
    """Whether a path or URL is a glob, such as ``s3://bucket/data/train-*.parquet``. A path that exists is none."""
    if url is None or _MAGIC.search(split_url(url)[1]) is None:
        return False
    if '?' in url and '?' not in without_credentials(url):  # a signature, which the store refuses
        return False
    return bool(split_url(url)[0]) or not Path(url).exists()


def split_glob(url: str) -> tuple[str, str]:
    """The folder of a URL, and the glob of names in it; '' for all."""
    if not has_glob(url):
        return url, ''
    parts = url.split('/')
    first = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    return '/'.join(parts[:first]) or ('/' if url.startswith('/') else '.'), '/'.join(parts[first:])


def glob_pattern(glob: str) -> re.Pattern[str]:
    """The regular expression of a glob: ``*`` and ``?`` stay in one folder, ``**`` spans any."""
    text, at = '', 0
    while at < len(glob):
        if glob.startswith('**/', at):
            text, at = text + '(?:.*/)?', at + 3
        elif glob.startswith('**', at):
            text, at = text + '.*', at + 2
        elif glob[at] in '*?':
            text, at = text + ('[^/]*' if glob[at] == '*' else '[^/]'), at + 1
        elif glob[at] == '[' and (end := glob.find(']', at + 2)) > 0:
            inside = glob[at + 1 : end].replace('\\', '\\\\').replace('[', '\\[')
            text, at = f'{text}[{"^" + inside[1:] if inside[0] == "!" else inside}]', end + 1
        else:
            text, at = text + re.escape(glob[at]), at + 1
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise ConfigError(f'The glob {glob!r} in `remote` is malformed: {error}. Correct it.') from None


class SourceStore:
    """See `Store`. It can be listed and read; `index` is set once it has been read from the cache."""

    def __init__(
        self,
        remote: str,
        options: StoreOptions,
        *,
        split: str | None,
        format_name: str | None,
        columns: Collection[str] | None,
        allow_unsafe_types: bool,
        shown: str | None = None,
    ) -> None:
        """Make no request.

        Args:
            remote: URL or path of the dataset's folder, or a glob.
            options: how to reach the store.
            split: the split to read, by the names of its files; None: all files.
            format_name: name of the format; None: the one of the listing.
            columns: the columns to read; None: all.
            allow_unsafe_types: whether columns may run code when they are read.
            shown: the place as the user named it, for messages; None: `url`.
        """
        root, self._glob = split_glob(remote)
        self._store = open_store(root, options)
        # As a store of the same place has it: a cache folder names its origin so.
        below = [part for part in (self._glob, split) if part]
        self.url = '/'.join([self._store.url.rstrip('/') if below else self._store.url, *below])
        self.shown = without_credentials(shown) if shown else self.url
        self.index: SourceIndex | None = None
        self._split, self._format, self._columns = split, format_name, columns
        self._allow_unsafe_types = allow_unsafe_types

    @property
    def root_url(self) -> str:
        """The URL to which keys of objects are relative."""
        return self._store.url.rstrip('/')

    @property
    def index_name(self) -> str:
        """The key of the index."""
        return index_name(self._columns)

    def find(self) -> tuple[SourceFormat | None, list[ObjectInfo]]:
        """The data's format and objects; None if the listing has no known format.

        Raises:
            StreamError: the listing has several formats.
            EmptyDatasetError: no object is of the format that was asked for, or of the split.
            StorageError: the store failed.
        """
        prefix = '' if self._glob else f'{self._split}/' if self._split else ''
        listed = list(self._store.list(prefix)) or list(self._store.list(''))
        if self._glob:
            pattern = glob_pattern(self._glob)
            listed = [info for info in listed if pattern.fullmatch(info.key)]
        found = find_format(listed) if self._format is None else format_of(self._format)
        if found is None:
            return None, []
        objects = list(found.find(listed))
        if not objects:
            raise EmptyDatasetError(
                f'No object at {self.shown} is of the format {found.NAME!r}. Correct `remote`, `split` or `format`.'
            )
        if self._split:
            objects = choose_split(objects, self._split, self.shown)
        return found, objects

    def _require(self) -> tuple[SourceFormat, list[ObjectInfo]]:
        found, objects = self.find()
        if found is None:
            raise EmptyDatasetError(
                f'{self.shown} holds neither an index.json nor files of a known format. Correct `remote` or `split`, '
                f'or say the `format`.'
            )
        return found, objects

    def head(self, key: str) -> ObjectInfo:
        """The index, by its listing; its size is not known."""
        if key != self.index_name:
            info, ranges = self._ranges(key)
            return ObjectInfo(key, sum(length for _, length in ranges), info.etag)
        found, objects = self._require()
        return ObjectInfo(key, 0, _digest(found, objects))

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`: the index, which is made now; or a part's ranges, one after another."""
        if key == self.index_name:
            return self._make_index(out)
        info, ranges = self._ranges(key)
        end = sum(length for _, length in ranges) if size is None else offset + size
        # A store's etag may last for one mount only.
        expected = etag or (self._current(info).etag if info.version else info.etag)
        version, start = '', 0
        for begin, length in ranges:
            first, last = max(offset, start), min(end, start + length)
            if first < last:
                version = self._read(info, out, begin + first - start, last - first, expected or version)
            start += length
        if end > start:
            raise ConfigError(f'{key} has {start} bytes, but bytes {offset} to {end} were asked for.')
        return version

    def _current(self, info: ObjectInfo) -> ObjectInfo:
        """An object as this mount of its store names it, if it is the version that was indexed."""
        found = self._store.head(info.key)
        if (found.size, found.version) != (info.size, info.version):
            raise self._has_changed(info)
        return found

    def _has_changed(self, info: ObjectInfo) -> ChecksumError:
        return ChecksumError(f'{self.root_url}/{info.key} has changed since it was indexed.')

    def _read(self, info: ObjectInfo, out: BinaryIO, offset: int, size: int, etag: str) -> str:
        try:
            return self._store.get(info.key, out, offset=offset, size=size, etag=etag or None)
        except BrokenTransferError as error:
            if not error.changed:
                raise
            raise self._has_changed(info) from error  # to ask again is of no use
        except ConfigError as error:
            # The store refused the range: the object has become shorter, unless it is the caller who errs.
            found = self._store.head(info.key).size
            if found == info.size:
                raise
            raise ChecksumError(
                f'{self._store.url.rstrip("/")}/{info.key} has {found} bytes, but had {info.size} when it was indexed.'
            ) from error

    def _ranges(self, key: str) -> tuple[ObjectInfo, Sequence[tuple[int, int]]]:
        if self.index is None:
            raise FormatError(f'{key!r:.200} was asked for before the index of {self.url} was read.')
        return self.index.ranges(key)

    def _make_index(self, out: BinaryIO) -> str:
        found, objects = self._require()
        try:
            source = found.index(
                self._store, objects, columns=self._columns, allow_unsafe_types=self._allow_unsafe_types
            )
        except TransferError as error:  # after all retries of its own: the whole index is not tried again
            raise StorageError(str(error)) from error
        if not len(source.parts):
            raise EmptyDatasetError(
                f'The {found.NAME} files of {self.shown} have no rows. Correct `remote` or `split`.'
            )
        out.write(SourceIndex(source, objects, self._columns).to_bytes())
        return _digest(found, objects)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`: the dataset's own objects."""
        return self._store.list(prefix)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """Refuse: the data are read only."""
        del source, size
        raise ConfigError(f'{self.url} is read only; got {key!r} to write.')

    def delete(self, key: str) -> None:
        """Refuse: the data are read only."""
        raise ConfigError(f'{self.url} is read only; got {key!r} to delete.')


def _digest(found: SourceFormat, objects: Sequence[ObjectInfo]) -> str:
    """The version of a listing."""
    listed = [(info.key, info.size, info.version or info.etag) for info in objects]
    return hashlib.blake2b(json.dumps([found.NAME, listed]).encode(), digest_size=16).hexdigest()
