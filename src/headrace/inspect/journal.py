"""A file with the shards that have passed, so that a check that was ended begins where it was.

Each line is the digest of a shard: of its place, its entry in the index, and the versions of its files in the store. So
a shard that has changed since is checked again. A line that a killed process did not finish is passed over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from typing_extensions import Self

from headrace.errors import ConfigError
from headrace.format import ShardInfo
from headrace.storage import ObjectInfo

__all__ = ['Journal', 'shard_digest']

_TITLE: Final = 'shards that passed headrace verify'


class Journal:
    """The shards that have passed, by digest.

    Args:
        path: the file; made if it is not there.

    Raises:
        ConfigError: it is another file, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text(encoding='ascii') if path.exists() else ''
            if _TITLE.startswith(text):  # the process was killed at once
                text = ''
            if text and not text.startswith(_TITLE):
                raise ConfigError(f'--state names a new file, or one of `headrace verify`; but {path} is another file.')
            self._file = open(path, 'a' if text else 'w', encoding='ascii')  # noqa: SIM115 - until `__exit__`
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f'--state {path} cannot be used: {error}. Name another file.') from error
        whole, _, torn = text.rpartition('\n')
        self.passed = set(whole.split('\n')[1:])
        """Digests of shards."""
        if torn or not text:
            self._file.write('\n' if torn else f'{_TITLE}\n')
            self._file.flush()

    def add(self, digest: str) -> None:
        """Note a shard; it stays noted if the process is killed."""
        self._file.write(f'{digest}\n')
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()


def shard_digest(place: str, info: ShardInfo, objects: Mapping[str, ObjectInfo]) -> str:
    """The digest of a shard's place, of its entry, and of its stored files.

    Args:
        place: the dataset's root, without credentials.
        info: the entry.
        objects: the store's listing, by key; empty if there is none.
    """
    names = [part.basename for file in info.files for part in (file.raw, file.zip) if part is not None]
    stored = [(name, found.size, found.etag) for name in names if (found := objects.get(name)) is not None]
    text = json.dumps([place, info.entry(), stored], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
