"""DBFS, the file system of a Databricks workspace that came before volumes.

Its API moves at most 1 MiB at a time, as base64 in JSON: it is slow, and volumes are what Databricks recommends.
"""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from headrace.errors import StorageError
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.stores.databricks_api import RefusedError, WorkspaceFolder, etag_of
from headrace.storage.stores.file_tree import temporary_name, walk
from headrace.storage.transfer.http_body import ReadRequest, SourcePart, truncated
from headrace.storage.transfer.http_errors import changed, not_found, why_absent
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ['DbfsStore']

API: Final = '/api/2.0/dbfs'
BLOCK: Final = 1 << 20
"""Bytes that one request reads or writes at most, as the API has it."""


@sealed
class DbfsStore(WorkspaceFolder):
    """Files of DBFS, below a folder."""

    def __init__(self, root: str = '', options: StoreOptions | None = None) -> None:
        super().__init__(root, options or StoreOptions())

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        url = f'{self.url}/{key}'
        info = self._status('Reading', key)
        if etag and etag != info.etag:
            raise changed(url, etag, info.etag)
        left = ReadRequest(url, offset, size).check(info)
        if not left:
            return info.etag
        try:
            while left:
                block = self._block(key, offset, min(BLOCK, left))
                if not block:
                    raise truncated(url, left)
                out.write(block)
                offset += len(block)
                left -= len(block)
            # Each block is a request of its own, so the file may have been replaced before one of them.
            if (now := self._status('Reading', key)).etag != info.etag:
                raise changed(url, info.etag, now.etag)
        except BrokenTransferError as error:
            if not error.changed:
                error.etag = info.etag
            raise
        return info.etag

    def _block(self, key: str, offset: int, size: int) -> bytes:
        query = {'path': self._path(key), 'offset': offset, 'length': size}
        with self._refusals('Reading', key):
            answer = self._fetch('Reading', key, 'GET', f'{API}/read', query=query)
        block = base64.b64decode(answer.get('data', ''))
        if len(block) > size:
            raise StorageError(
                f'{self._host()} sent {len(block)} bytes of {self.url}/{key} where it was asked for {size}. Use a '
                f'server that honours the length.'
            )
        return block

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. DBFS cannot replace a file at once: while one is replaced, a reader may find none."""
        path = self._path(key)
        folder = path.rpartition('/')[0]
        temporary = f'{folder}/{temporary_name()}'
        body = SourcePart(source, size)
        with self._refusals('Writing', key):
            try:
                handle = self._post(key, 'create', path=temporary)['handle']
            except RefusedError as error:
                if error.status != 404:
                    raise
                self._post(key, 'mkdirs', path=folder)
                handle = self._post(key, 'create', path=temporary)['handle']
            try:
                while block := body.read(BLOCK):
                    self._post(key, 'add-block', handle=handle, data=base64.b64encode(block).decode())
                self._post(key, 'close', handle=handle)
                try:
                    self._post(key, 'move', source_path=temporary, destination_path=path)
                except RefusedError as error:
                    if error.code != 'RESOURCE_ALREADY_EXISTS':
                        raise
                    self._post(key, 'delete', path=path)
                    self._post(key, 'move', source_path=temporary, destination_path=path)
            except BaseException:
                with contextlib.suppress(RefusedError, StorageError):
                    self._post(key, 'delete', path=temporary)
                raise

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        return self._status('Looking up', key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        base = self.root.rstrip('/')

        def children(folder: str) -> Iterator[ObjectInfo | str]:
            path = f'{base}/{folder}' if folder else self.root
            with self._refusals('Listing', prefix):
                try:
                    page = self._fetch('Listing', prefix, 'GET', f'{API}/list', query={'path': path})
                except RefusedError as error:
                    if error.status != 404:  # or deleted meanwhile
                        raise
                    return
            for entry in page.get('files', ()):
                key = str(entry['path'])[len(base) + 1 :]
                if entry['path'] != path:  # a file lists itself
                    yield key if entry.get('is_dir') else _info(key, entry)

        yield from walk(prefix, children)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        with self._refusals('Deleting', key):
            try:
                self._post(key, 'delete', doing='Deleting', path=path)
            except RefusedError as error:
                if error.status != 404:
                    raise

    def _status(self, doing: str, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._refusals(doing, key):
            answer = self._fetch(doing, key, 'GET', f'{API}/get-status', query={'path': path})
        if answer.get('is_dir'):
            raise not_found(f'{self.url}/{key}', 'it is a folder.')
        return _info(key, answer)

    def _post(self, key: str, verb: str, *, doing: str = 'Writing', **fields: Any) -> dict[str, Any]:
        return self._fetch(doing, key, 'POST', f'{API}/{verb}', json=fields)

    def _why_absent(self, key: str) -> str:
        folder = self._path(key).rpartition('/')[0] or '/'
        exists: bool | None = None
        try:
            with self._answer('Looking up', key, 'GET', f'{API}/get-status', query={'path': folder}):
                exists = True
        except RefusedError as error:
            exists = False if error.status == 404 else None
        except StorageError:
            pass
        return why_absent(exists, container=f'the folder {folder}', server=self._host(), name='such a file in it')


def _info(key: str, told: dict[str, Any]) -> ObjectInfo:
    size = int(told.get('file_size', 0))
    return ObjectInfo(key, size, etag_of(int(told.get('modification_time', 0)) / 1000, size))
