"""Writers of each format of shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.dataset.writing.columns import plain_columns
from headrace.dataset.writing.writer import Writer
from headrace.errors import ConfigError
from headrace.format import JSONEncoder, MDSEncoder, ShardEncoder, XSVEncoder, bytes_to_int
from headrace.storage.output import Out

__all__ = ['CSVWriter', 'JSONWriter', 'MDSWriter', 'TSVWriter', 'XSVWriter']


class MDSWriter(Writer):
    """Writes MDS shards, which hold any value; `headrace.format.get_mds_encodings` names the encodings.

    Args:
        columns: encoding of each column: a name, or an `Encoding` or its class, which is registered under its name.
            Left out, the first samples tell them, which is printed.
        out: a folder, a URL, or both as `(folder, URL)`.
        keep_local, exist_ok, append, resume, progress_bar, total, retry, max_workers, options: see `Writer`.
        compression: 'zstd', 'br', 'bz2', 'gz' or 'snappy', with a level as in 'zstd:7'.
        hashes: names of hashes to store in the index, sorted.
        size_limit: bytes of a shard file before compression, as a number or text ('64mb'); None for a single shard.

    Raises:
        ValueError: an argument breaks a rule, or is unknown.
        FileExistsError: `out` holds something; see `Writer`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        encoder = partial(MDSEncoder, compression=compression, hashes=hashes, size_limit=_checked(size_limit))
        super().__init__(encoder, columns, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class JSONWriter(Writer):
    """Writes JSONL shards of columns 'str', 'int' and 'float'; see `MDSWriter`.

    Args:
        columns: encoding of each column; left out, the first samples tell them.
        newline: the end of a line.
        out, keep_local, compression, hashes, size_limit: see `MDSWriter`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        out: Out,
        newline: str = '\n',
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        limit = _checked(size_limit)
        encoder = partial(JSONEncoder, newline=newline, compression=compression, hashes=hashes, size_limit=limit)
        super().__init__(_of_lines(encoder), columns, out=out, keep_local=keep_local, **_known(type(self), kwargs))


class XSVWriter(Writer):
    """Writes shards of lines of separated values, without quoting; see `MDSWriter`.

    Args:
        columns: encoding of each column: 'str', 'int' or 'float'; left out, the first samples tell them.
        separator: the text between two values.
        newline: the end of a line.
        out, keep_local, compression, hashes, size_limit: see `MDSWriter`.
    """

    _format = 'xsv'

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        separator: str | None,
        out: Out,
        newline: str = '\n',
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        encoder = partial(
            XSVEncoder,
            shard_format=self._format,
            separator=separator,
            newline=newline,
            compression=compression,
            hashes=hashes,
            size_limit=_checked(size_limit),
        )
        super().__init__(_of_lines(encoder), columns, out=out, keep_local=keep_local, **_known(type(self), kwargs))


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
    'columns', 'out', 'keep_local', 'compression', 'hashes', 'size_limit', 'newline', 'exist_ok', 'append', 'resume',
    'progress_bar', 'total', 'retry', 'max_workers', 'options',
}  # fmt: skip


def _known(writer: type[Writer], arguments: dict[str, Any], *refused: str) -> dict[str, Any]:
    unknown = sorted(set(arguments) - _ARGUMENTS | set(arguments).intersection(refused))
    if unknown:
        raise ConfigError(
            f'{writer.__name__} got an Invalid Writer argument: {unknown[0]!r}. It takes {sorted(_ARGUMENTS)}.'
        )
    return arguments


def _of_lines(encoder: Callable[[Mapping[str, Any]], ShardEncoder]) -> Callable[[Mapping[str, Any]], ShardEncoder]:
    return lambda columns: encoder(plain_columns(columns))


def _checked(size_limit: int | str | None) -> int | None:
    limit = None if size_limit is None else bytes_to_int(size_limit)
    if limit is not None and limit >= 1 << 32:
        raise ConfigError(f'`size_limit` must be less than 2**32 bytes, but is {size_limit!r}.')
    return limit
