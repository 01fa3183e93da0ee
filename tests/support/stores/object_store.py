"""A store in this process' memory: plain objects, no folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from headrace.errors import ObjectNotFoundError
from headrace.storage import ObjectInfo, StoreOptions


class ObjectStore:
    """The objects below a URL. Stores of one URL share them."""

    objects: ClassVar[dict[str, dict[str, bytes]]] = {}

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        self.url = url
        self._root, _, self._prefix = url.partition('://')[2].partition('/')

    def _all(self) -> dict[str, bytes]:
        return self.objects.setdefault(self._root, {})

    def _name(self, key: str) -> str:
        return f'{self._prefix.strip("/")}/{key}'.lstrip('/')

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        info = self.head(key)
        data = self._all()[self._name(key)]
        out.write(data[offset : None if size is None else offset + size])
        return info.etag

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        self._all()[self._name(key)] = source.read(size)

    def head(self, key: str) -> ObjectInfo:
        data = self._all().get(self._name(key))
        if data is None:
            raise ObjectNotFoundError(f'{self.url}/{key} is not there')
        return ObjectInfo(key, len(data), hashlib.md5(data).hexdigest())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        root = self._name('')
        for name in sorted(self._all()):
            if name.startswith(root + prefix):
                yield self.head(name.removeprefix(root))

    def delete(self, key: str) -> None:
        self._all().pop(self._name(key), None)
