"""A store whose objects are the index of a dataset of another format, and its parts.

So the cache fetches both as it fetches an index.json and compressed shards. It fetches once per machine, with retries
and in ranges, and compares with the remote at the start. The index has the digest of the dataset's listing as its
version.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

from headrace.errors import (
    AccessDeniedError,
    ChecksumError,
    ConfigError,
    EmptyDatasetError,
    FormatError,
    HeadraceError,
    ObjectNotFoundError,
    StorageError,
    StreamError,
    TransferError,
)
from headrace.errors.mapping import panics_as
from headrace.errors.redaction import logger_of, without_credentials
from headrace.sources.formats import (
    OF_ANY_NAME,
    SIDECARS,
    TABLES,
    are_shards,
    check_options,
    folder_of,
    format_of,
    formats_in,
    how_to_name,
    is_hidden,
    one_format,
)
from headrace.sources.ledger import Ledger, ledger_of
from headrace.sources.protocol import SourceFormat
from headrace.sources.source_index import SourceIndex, index_name, names_of_classes
from headrace.sources.splits import check_once, check_parts, check_split, choose_split, splits_of
from headrace.storage import ObjectInfo, Retry, Store, StoreOptions, local_path, open_store, split_url
from headrace.storage.transfer.retry import BrokenTransferError

_log = logger_of(__name__)
_MAGIC = re.compile(r'[*?\[]')
_BRACES = re.compile(r'(?<!\[)\{[^{}/]*(?:\.\.|,)[^{}/]*\}')


def has_glob(url: str | None) -> bool:
    """Whether a path or URL is a glob, such as ``s3://bucket/data/train-*.parquet``. A path that exists is none.

    ConfigError: it has braces, as WebDataset expands them.
    """
    scheme = split_url(url)[0] if url is not None else ''
    if url is not None and _BRACES.search(url) and scheme not in {'http', 'https'}:
        path = local_path(url)
        if path is not None and Path(path).exists():
            return False
        raise ConfigError(
            f'Braces are not expanded, but `remote` is {without_credentials(url)}. Name the files with a glob: '
            f'{without_credentials(_BRACES.sub("*", url))}. Write "[{{]" for a brace that is in the name.'
        )
    if url is None or _MAGIC.search(split_url(url)[1]) is None:
        return False
    if '?' in url and '?' not in without_credentials(url):  # a signature, which the store refuses
        return False
    return bool(split_url(url)[0]) or not Path(url).exists()


def split_glob(url: str) -> tuple[str, str]:
    """The folder of a URL, and the glob of names in it; '' for all. A local file is the only one of its folder."""
    if not has_glob(url):
        path = local_path(url)
        if path is None or not Path(path).is_file():
            return url, ''
        return os.path.dirname(path) or '.', os.path.basename(path)  # noqa: PTH119, PTH120 - as it is written
    parts = url.split('/')
    first = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    if '://' in url and first == 2:
        raise ConfigError(f'A glob is below a bucket, but that of {url} is in its name. Name one bucket.')
    root = '/'.join(parts[:first]) or ('/' if url.startswith('/') else '.')
    return root + '/' * (root.endswith('/') and '://' in url), '/'.join(parts[first:])  # an empty part is one of a key


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
        format_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make no request."""
        root, self._glob = split_glob(remote)
        self._root = open_store(root, options)
        # As a store of the same place has it: a cache folder names its origin so.
        below = [part for part in (self._glob, split) if part]
        self.url = '/'.join([self._root.url.rstrip('/') if below else self._root.url, *below])
        self.shown = without_credentials(remote) if self._glob else self.url  # The place for messages.
        self.index: SourceIndex | None = None
        self.ledger = Ledger()  # Of the index, where this store made it.
        self._split, self._format, self._columns = split, format_name, columns
        self.format_options = check_options(format_name, format_options)
        self._allow_unsafe_types = allow_unsafe_types
        self._remote, self._options = remote, options

    @cached_property
    def _place(self) -> tuple[Store, ObjectInfo | None]:
        """The store of the objects, and the one that `remote` names, if it names one: only a listing tells."""
        above, _, name = self._remote.rpartition('/')
        is_local = split_url(above)[0] in {'', 'file'}  # as is 's3:/', above a bucket
        if self._glob or is_local or not self._is_name(name):
            return self._root, None
        with contextlib.suppress(ConfigError, AccessDeniedError, ObjectNotFoundError):  # the parent cannot be listed
            store = open_store(f'{above}/', self._options)
            first = next(iter(store.list(name)), None)  # a folder of this name, as Spark writes them, is behind it
            if first is not None and first.key == name:
                return store, first
        return self._root, None

    def _is_name(self, name: str) -> bool:
        """Whether an object of this name would be read."""
        objects = [ObjectInfo(name, 0, '')]
        if self._format in OF_ANY_NAME:
            return bool(name)
        return bool(
            formats_in(objects, is_named=True) if self._format is None else format_of(self._format).find(objects)
        )

    @property
    def _store(self) -> Store:
        return self._place[0]

    @property
    def root_url(self) -> str:
        """The URL to which keys of objects are relative."""
        return self._store.url.rstrip('/')

    @property
    def index_name(self) -> str:
        return index_name(self._columns, self.format_options)

    def find(self) -> tuple[SourceFormat | None, list[ObjectInfo]]:
        """The data's format and objects; None and all objects if the listing has no known format.

        StreamError: the listing has several formats or splits, or lacks parts. EmptyDatasetError: no object is of the
        format that was asked for, or of the split.
        """
        name, listed, _, objects = self._find()
        return (None, listed) if name is None else (format_of(name), objects)

    def _find(self) -> tuple[str | None, list[ObjectInfo], list[ObjectInfo], list[ObjectInfo]]:
        """The format, all objects, those of the format, and those to read."""
        store, target = self._place
        near = listed = [target, *store.list(f'{target.key}.')] if target else self._listed(store)
        path = target.key if target else self._glob.rstrip('/')
        pattern, is_glob = glob_pattern(self._glob or '**'), bool(self._glob)
        target = next((info for info in listed if info.key == path), None)
        # An existing path is not a glob: on each store, as on a disk.
        if target or (is_glob and any(info.key.startswith(f'{path}/') for info in listed)):
            pattern, is_glob = re.compile(re.escape(path) + ('' if target else '/.*'), re.DOTALL), False
        listed = [info for info in listed if pattern.fullmatch(info.key)]
        if is_glob and not listed:
            raise EmptyDatasetError(
                f'No object is named as {self.shown}. In a glob, "*", "?" and "[" stand for other characters: write '
                f'"[*]", "[?]" and "[[]" for these themselves. Correct `remote`.'
            )
        name = self._format or one_format(formats_in(listed, is_named=is_glob or target is not None), self.shown)
        if name is None:
            return None, listed, [], []
        find = format_of(name).find
        if target:  # its descriptions belong to it, such as x.ds.index to x.ds
            listed += [info for info in near if info.key.startswith(f'{path}.') and not find([info])]
        of_format = objects = list(find(listed))
        if not objects and name in OF_ANY_NAME and (target or is_glob):
            beside = [info for info in listed if info.key.endswith(SIDECARS)]
            named = [target] if target else [info for info in listed if info not in beside]
            shown = [info for info in named if not is_hidden(info.key)] or named
            of_format = objects = [*shown, *(beside if name == 'tokens' else ())]
        if not objects:
            more = (
                f' Files of other names are read if `remote` names them, such as {self.shown.rstrip("/")}/*.'
                if name in OF_ANY_NAME and not is_glob
                else ''
            )
            raise EmptyDatasetError(
                f'No object at {self.shown} is of the format {name!r}. Correct `remote`, `split` or `format`.{more}'
                f'{how_to_name(info.key for info in listed)}'
            )
        if self._split:
            objects = choose_split(objects, self._split, self.shown)
        if empty := next((info.key for info in objects if not all(info.key.split('/'))), None):
            raise StreamError(
                f'A key with an empty part between slashes is read if `remote` names its folder, but {self.shown} has '
                f'{empty!r}. Name {self.root_url}/{folder_of(empty)}/ in `remote`, or leave it out with a glob.'
            )
        if name not in TABLES:
            if not is_glob:
                check_split(objects, self._split, self.shown)
            check_parts(objects, self.shown, pattern.fullmatch)
            check_once(objects, self.shown)
        return name, objects if target else listed, of_format, objects

    def _listed(self, store: Store) -> list[ObjectInfo]:
        """The objects at the glob, or of the split, or all."""
        prefix = _MAGIC.split(self._glob)[0] if self._glob else f'{self._split}/' if self._split else ''
        return list(store.list(prefix)) or ([] if self._glob or not prefix else list(store.list('')))

    def _require(self) -> tuple[str, list[ObjectInfo], list[ObjectInfo], list[ObjectInfo]]:
        name, listed, of_format, objects = self._find()
        if name is None:
            if self._glob and are_shards(info.key for info in listed):
                raise EmptyDatasetError(
                    f'Shards of MDS are read from a folder, but {self.shown} is taken for a glob. If it is the name of '
                    f"a folder, say so with `format='mds'`."
                )
            raise EmptyDatasetError(
                f'{self.shown} holds neither an index.json nor files of a known format. Correct `remote` or `split`, '
                f'or say the `format`.{how_to_name(info.key for info in listed)}'
            )
        return name, listed, of_format, objects

    def head(self, key: str) -> ObjectInfo:
        """The index, by its listing; its size is not known."""
        if key != self.index_name:
            ranges = self._ranges(key)
            return ObjectInfo(key, sum(length for _, _, length in ranges), ranges[-1][0].etag)
        name, *_, objects = self._require()
        return ObjectInfo(key, 0, self._digest(name, objects))

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`: the index, which is made now; or a part's ranges, one after another."""
        if key == self.index_name:
            return self._make_index(out)
        ranges = self._ranges(key)
        end = sum(length for _, _, length in ranges) if size is None else offset + size
        last = ranges[-1][0].key
        versions = {last: etag} if etag else {}
        start = self._copy(ranges, out, offset, end, versions)
        if end > start:
            raise ConfigError(f'{key} has {start} bytes, but bytes {offset} to {end} were asked for.')
        return versions.get(last, '')

    def read(self, spans: Sequence[tuple[str, int, int]]) -> bytes:
        """The bytes of ranges of indexed objects, each a key, offset and size; ChecksumError: one has changed since."""
        assert self.index is not None
        out = io.BytesIO()
        ranges = [(self.index.objects[key], offset, size) for key, offset, size in spans]
        self._copy(ranges, out, 0, sum(size for *_, size in spans), {})
        return out.getvalue()

    def _copy(
        self,
        ranges: Sequence[tuple[ObjectInfo, int, int]],
        out: BinaryIO,
        offset: int,
        end: int,
        versions: dict[str, str],
    ) -> int:
        """Copy the bytes from `offset` to `end` of joined ranges, whose length is returned. Notes objects' etags."""
        start = 0
        for info, begin, length in ranges:
            first, last = max(offset, start), min(end, start + length)
            if first < last:
                # A store's etag may last for one mount only.
                expected = versions.get(info.key) or (self._current(info).etag if info.version else info.etag)
                versions[info.key] = self._read(info, out, begin + first - start, last - first, expected)
            start += length
        return start

    def _current(self, info: ObjectInfo) -> ObjectInfo:
        """An object as this mount of its store names it, if it is the version that was indexed."""
        current = self._store.head(info.key)
        if (current.size, current.version) != (info.size, info.version):
            raise self._has_changed(info)
        return current

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
            current = self._store.head(info.key).size
            if current == info.size:
                raise
            raise ChecksumError(
                f'{self._store.url.rstrip("/")}/{info.key} has {current} bytes, but had {info.size} when indexed.'
            ) from error

    def _ranges(self, key: str) -> list[tuple[ObjectInfo, int, int]]:
        if self.index is None:
            raise FormatError(f'{key!r:.200} was asked for before the index of {self.url} was read.')
        return self.index.ranges(key)

    def open_index(self, retry: Retry) -> SourceIndex:
        """Make the index, by which parts are read from now on."""
        out = io.BytesIO()
        retry.call(f'Reading {self.url}', lambda: self.get(self.index_name, out))
        self.index = SourceIndex.from_bytes(out.getvalue())
        return self.index

    def _make_index(self, out: BinaryIO) -> str:
        name, listed, of_format, objects = self._require()
        try:
            with panics_as(FormatError):
                source = format_of(name).index(
                    self._store,
                    objects,
                    columns=self._columns,
                    allow_unsafe_types=self._allow_unsafe_types,
                    **self.format_options,
                )
        except TransferError as error:  # after all retries of its own: the whole index is not tried again
            raise StorageError(str(error)) from error
        except (HeadraceError, OSError, MemoryError):
            raise
        except Exception as error:  # of a library, which does not know the dataset's name
            raise FormatError(
                f'The {name} files of {self.shown} cannot be read: {type(error).__name__}: {error}. Restore or write '
                f'them again, or report it if other programs read them.'
            ) from error
        if not len(source.parts):
            raise EmptyDatasetError(f'The {name} files of {self.shown} have no rows. Correct `remote` or `split`.')
        with_rows = {part.key for part in source.parts}
        with_rows |= {key for part in source.parts for key, _, _ in part.beside if not key.endswith(SIDECARS)}
        used = objects
        if name in TABLES:
            files = {*cast('Any', source).files}
            used = [info for info in objects if info.key in files]
            of_format = [info for info in objects if info.key.endswith('.parquet') and not is_hidden(info.key)]
            about = {info.key for info in objects}.difference(files, (info.key for info in of_format))
            listed = [info for info in listed if info.key not in about]
        ledger = ledger_of(
            listed,
            of_format,
            used,
            with_rows=with_rows,
            columns=[*source.columns, *source.dropped],
            others='of other versions of the table' if name in TABLES else 'of another split',
        )
        splits = splits_of(objects) if self._glob else ()
        self.ledger = replace(
            ledger,
            splits=tuple(splits),
            classes=tuple(names_of_classes(source)),
            dropped=tuple(source.dropped),
            notes=tuple(getattr(source, 'notes', ())),
        )
        lines = self.ledger.lines() or ['Nothing was left out.']
        level = logging.WARNING if self.ledger.is_suspect else logging.INFO if self.ledger.lines() else logging.DEBUG
        what = ', '.join(filter(None, (name, getattr(source, 'snapshot', ''))))
        _log.log(level, 'Read %d files of %s as %s. %s', len(with_rows), self.shown, what, ' '.join(lines))
        out.write(SourceIndex(source, used, self._columns, self.format_options).to_bytes())
        return self._digest(name, objects)

    def _digest(self, name: str, objects: Sequence[ObjectInfo]) -> str:
        """The version of a listing."""
        if name in TABLES:
            return _digest(name, cast('Any', format_of(name)).decisive(objects, **self.format_options))
        return _digest(name, objects)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`: the dataset's own objects."""
        return self._store.list(prefix)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        del source, size
        raise ConfigError(f'{self.url} is read only; got {key!r} to write.')

    def delete(self, key: str) -> None:
        raise ConfigError(f'{self.url} is read only; got {key!r} to delete.')


def _digest(name: str, objects: Sequence[ObjectInfo]) -> str:
    listed = [(info.key, info.size, info.version or info.etag) for info in objects]
    if name == 'parquet' and any('=' in folder_of(info.key) for info in objects):
        name = 'parquet with the keys of its folders'  # older versions did not read them
    return hashlib.blake2b(json.dumps([name, listed]).encode(), digest_size=16).hexdigest()
