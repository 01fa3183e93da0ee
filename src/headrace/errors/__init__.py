"""Every exception that headrace raises on purpose.

HeadraceError
├── ConfigError              (ValueError)          an argument or a YAML file breaks a rule
│   ├── ArgumentError        (TypeError)           an argument has no name, or one that does not exist
│   ├── TopologyError        (ValueError)          ranks, nodes or batch size do not fit together
│   ├── StreamError          (ValueError)          a stream's weights, folder or size break a rule
│   └── UnknownNameError     (KeyError)            no algorithm or method has that name
├── FormatError              (ValueError)          bytes are not what their format says
│   ├── IndexFileError       (json.JSONDecodeError) index.json is empty or not JSON
│   ├── ShardError           (ValueError)          a shard contradicts its index or itself
│   ├── ChecksumError        (ValueError)          size or hash differ from the index
│   └── DocumentError        (ConfigError)         a document of packed data is neither text nor tokens
├── CollateError             (TypeError)           values of a column do not stack into a batch
├── ConversionError          (RuntimeError)        an input cannot be converted, or its worker process died
├── EmptyDatasetError        (RuntimeError)        a stream holds no samples
├── ErasedError              (LookupError)         a sample was erased with `headrace erase`
├── StorageError             (OSError)             a store answered with an error
│   ├── ObjectNotFoundError  (FileNotFoundError)   the object, bucket or file does not exist
│   ├── AccessDeniedError    (PermissionError)     credentials are missing, wrong or too weak
│   ├── TransferError        (OSError)             connection lost, time-out, or server error, after all attempts
│   └── DiskFullError        (OSError)             the cache folder's disk, or its limit, has no room
├── CacheError               (RuntimeError)        the cache folder cannot be used
├── ResumeError              (ValueError)          a state does not belong to this data, mixture or batch size
│   └── MissingStateKeyError (KeyError)            a state lacks a key
├── MissingDependencyError   (ImportError)         an optional package is not installed
├── AliasError               (ImportError)         `headrace.compat` cannot stand for `streaming`, or lacks a name
└── AbsentNameError          (AttributeError)      a name of MosaicML Streaming that headrace does not have

Each can be made from one message, because a DataLoader re-raises a worker's exception as ``type(exc)(message)``,
and each pickles, because exceptions cross process boundaries. None holds a secret: see `redaction`.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors.redaction import redact, visible

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    'AbsentNameError',
    'AccessDeniedError',
    'AliasError',
    'ArgumentError',
    'CacheError',
    'ChecksumError',
    'CollateError',
    'ConfigError',
    'ConversionError',
    'DiskFullError',
    'DocumentError',
    'EmptyDatasetError',
    'ErasedError',
    'FormatError',
    'HeadraceError',
    'IndexFileError',
    'MissingDependencyError',
    'MissingStateKeyError',
    'ObjectNotFoundError',
    'ResumeError',
    'ShardError',
    'StorageError',
    'StreamError',
    'TopologyError',
    'TransferError',
    'UnknownNameError',
]


class HeadraceError(Exception):
    """The root of every exception that headrace raises on purpose. Its message is without secrets."""

    def __new__(cls, *args: object) -> Self:
        return super().__new__(cls, *(visible(redact(arg)) if isinstance(arg, str) else arg for arg in args))

    def __init__(self, *_: object) -> None:
        super().__init__(*self.args)


class ConfigError(HeadraceError, ValueError):
    """An argument or a configuration file breaks a rule."""


class ArgumentError(ConfigError, TypeError):
    """An argument is given by position, has a name that does not exist, or is text where a number belongs."""


class TopologyError(ConfigError):
    """Ranks, nodes, replication or batch size do not fit together."""


class StreamError(ConfigError):
    """A stream's weights, folder or size break a rule."""


class UnknownNameError(ConfigError, KeyError):
    """No algorithm or method has that name."""

    def __str__(self) -> str:  # KeyError's would quote the message
        return ' '.join(map(str, self.args))


class FormatError(HeadraceError, ValueError):
    """Bytes are not what their format says."""


class IndexFileError(FormatError, json.JSONDecodeError):
    """index.json is empty or is not JSON."""

    def __init__(self, *_: object) -> None:
        message = ' '.join(map(str, self.args))
        ValueError.__init__(self, message)
        self.msg, self.doc, self.pos, self.lineno, self.colno = message, '', 0, 1, 1

    def __reduce__(self) -> tuple[type[IndexFileError], tuple[str]]:
        return type(self), (self.msg,)


class ShardError(FormatError):
    """A shard contradicts its index or itself."""


class ChecksumError(FormatError):
    """A file's size or hash differs from the index."""


class DocumentError(FormatError, ConfigError):
    """A document of packed data is not a text, a conversation or tokens, or its column is another one."""


class CollateError(HeadraceError, TypeError):
    """Values of a column do not stack into a batch."""


class ConversionError(HeadraceError, RuntimeError):
    """An input of a conversion cannot be converted, or its worker process died."""


class EmptyDatasetError(HeadraceError, RuntimeError):
    """A stream holds no samples."""


class ErasedError(HeadraceError, LookupError):
    """A sample was erased, with `headrace erase`."""


class StorageError(HeadraceError, OSError):
    """A store answered with an error."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The object, bucket or file does not exist."""


class AccessDeniedError(StorageError, PermissionError):
    """Credentials are missing, wrong, or not allowed to do this."""


class TransferError(StorageError):
    """A connection was lost, timed out, or the server failed, after all attempts."""


class DiskFullError(StorageError):
    """The cache folder has no room, on its disk or under its limit."""


class CacheError(HeadraceError, RuntimeError):
    """The cache folder cannot be used as one."""


class ResumeError(HeadraceError, ValueError):
    """A state does not belong to this data, mixture or batch size."""


class MissingStateKeyError(ResumeError, KeyError):
    """A state lacks a key."""

    def __str__(self) -> str:
        return ' '.join(map(str, self.args))


class MissingDependencyError(HeadraceError, ImportError):
    """An optional package is not installed."""


def import_optional(module: str, needs: str, extra: str) -> Any:
    """A module of an optional package; `needs` says what needs which package, such as 'Videos need PyAV'."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(f"{needs}, which is not installed: pip install 'headrace[{extra}]'") from error


class AliasError(HeadraceError, ImportError):
    """`headrace.compat` cannot stand for `streaming`, or a name or module is imported that it does not have."""


class AbsentNameError(HeadraceError, AttributeError):
    """A name of MosaicML Streaming that headrace does not have."""
