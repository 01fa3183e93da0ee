"""Files of a Databricks workspace: Unity Catalog volumes, and DBFS (`databricks_dbfs`).

``dbfs:/Volumes/catalog/schema/volume/path`` names a volume, any other ``dbfs:/path`` DBFS; ``dbfs:///`` means the same.

Workspace and credentials are databricks-sdk's unified authentication: ``DATABRICKS_HOST`` and ``DATABRICKS_TOKEN``, or
OAuth (``DATABRICKS_CLIENT_ID`` and ``DATABRICKS_CLIENT_SECRET``). The SDK also takes credentials of the tools of Azure
and Google, profiles of ``~/.databrickscfg`` (``DATABRICKS_CONFIG_PROFILE``), and those of a cluster's notebooks. It
refreshes them. ``StoreOptions.endpoint_url`` is the workspace's address, instead of ``DATABRICKS_HOST``.

``StoreOptions.extra``: ``profile`` (name of a profile).

An etag is made of size and time of change in seconds, which is all that the services tell. A file that replaces one of
the same size within a second counts as the same version.
"""

from __future__ import annotations

import email.utils
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from headrace.errors import ConfigError, StorageError
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.databricks_api import RefusedError, WorkspaceFolder, etag_of
from headrace.storage.stores.file_tree import walk
from headrace.storage.transfer.answer_bounds import items_of
from headrace.storage.transfer.http_body import CHUNK, ReadRequest, SourcePart
from headrace.storage.transfer.http_errors import why_absent
from headrace.storage.transfer.sealed_errors import sealed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.storage.stores.databricks_dbfs import DbfsStore

__all__ = ['VolumeStore', 'open_databricks_store']

FILES = '/api/2.0/fs/files'
FOLDERS = '/api/2.0/fs/directories'


def open_databricks_store(url: str, options: StoreOptions) -> VolumeStore | DbfsStore:
    """The store for ``dbfs:/Volumes/catalog/schema/volume/path`` or ``dbfs:/path``."""
    _, path = split_url(url)
    if not path.startswith('/') or not {'.', '..'}.isdisjoint(path.split('/')):
        raise ConfigError(
            f'A Databricks URL names an absolute path, as in dbfs:/Volumes/catalog/schema/volume/x or dbfs:/x; got '
            f'{url!r}. Write one slash, or three, after "dbfs:", and no "." or "..".'
        )
    parts = [part for part in path.split('/') if part]
    if parts[:1] != ['Volumes']:
        from headrace.storage.stores.databricks_dbfs import DbfsStore

        return DbfsStore('/'.join(parts), options)
    if len(parts) < 4:
        raise ConfigError(
            f'The URL of a volume names catalog, schema and volume, as in dbfs:/Volumes/catalog/schema/volume/x; got '
            f'{url!r}. Add what is missing.'
        )
    return VolumeStore('/'.join(parts), options)


@sealed
class VolumeStore(WorkspaceFolder):
    """Files of a Unity Catalog volume, below a folder."""

    def __init__(self, root: str, options: StoreOptions | None = None) -> None:
        """Take the path, which begins with ``Volumes/catalog/schema/volume``."""
        super().__init__(root, options or StoreOptions())
        self.volume = '/'.join(self.root.split('/')[:5])

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        path, wanted = self._path(key), ReadRequest(f'{self.url}/{key}', offset, size, etag)
        if size == 0:
            return ''
        headers = {'Accept': 'application/octet-stream'}
        if wanted.range:
            headers['Range'] = wanted.range
        if etag:
            headers['If-Unmodified-Since'] = email.utils.formatdate(int(etag.partition('-')[0], 16), usegmt=True)
        with self._refusals('Reading', key):
            try:
                with self._answer('Reading', key, 'GET', FILES + quote(path), headers=headers) as answer:
                    part = answer.headers.get('Content-Range', '') if answer.status_code == 206 else None
                    with self._mapped_headers('Reading', key):
                        expected = int(answer.headers['Content-Length'])
                        whole = int(part.rpartition('/')[2]) if part else expected
                        found = _etag(answer, whole)
                    return wanted.receive(
                        lambda: answer.raw.read(CHUNK),
                        out,
                        etag=found,
                        length=expected,
                        part=part,
                        mapped_errors=lambda: self._mapped_errors('Reading', key, etag=found),
                    )
            except RefusedError as error:
                if error.status != 416:
                    raise
                return wanted.nothing_left(self.head(key))

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. The service takes up to 5 GiB at once."""
        path = self._path(key)
        start = source.tell()
        how: dict[str, Any] = {
            'query': {'overwrite': 'true'},
            'headers': {'Content-Type': 'application/octet-stream', 'Content-Length': str(size)},
        }
        with self._refusals('Writing', key):
            try:
                self._upload(key, path, SourcePart(source, size), how)
            except RefusedError as error:
                if error.status != 404:
                    raise
                # A folder on the way is missing, or the volume: then this fails, too.
                folder = quote(path.rpartition('/')[0])
                with self._answer('Writing', key, 'PUT', FOLDERS + folder):
                    pass
                source.seek(start)
                self._upload(key, path, SourcePart(source, size), how)

    def _upload(self, key: str, path: str, body: SourcePart, how: dict[str, Any]) -> None:
        with self._answer('Writing', key, 'PUT', FILES + quote(path), body=body if len(body) else b'', **how):
            pass

    def head(self, key: str) -> ObjectInfo:
        """See `Store.head`."""
        path = self._path(key)
        doing = 'Looking up', key
        with (
            self._refusals(*doing),
            self._answer(*doing, 'HEAD', FILES + quote(path)) as answer,
            self._mapped_headers(*doing),
        ):
            size = int(answer.headers['Content-Length'])
            return ObjectInfo(key, size, _etag(answer, size))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""

        def children(folder: str) -> Iterator[ObjectInfo | str]:
            pages = self._pages(f'{self.root}/{folder}'.rstrip('/'), prefix)
            for entry in items_of(f'{self.url}/{folder}', pages, lambda entry: str(entry['path'])):
                key = str(entry['path']).rstrip('/')[len(self.root) + 1 :]
                if entry.get('is_directory'):
                    yield key
                else:
                    size = int(entry.get('file_size', 0))
                    yield ObjectInfo(key, size, etag_of(int(entry.get('last_modified', 0)) / 1000, size))

        yield from walk(prefix, children)

    def _pages(self, folder: str, prefix: str) -> Iterator[list[dict[str, Any]]]:
        query: dict[str, Any] = {}
        while True:
            with self._refusals('Listing', prefix):
                try:
                    page = self._fetch('Listing', prefix, 'GET', FOLDERS + quote(folder), query=query)
                except RefusedError as error:
                    if error.status != 404 or self._volume_exists() is False:
                        raise
                    return  # it was never made, or is deleted meanwhile
            yield page.get('contents', [])
            if not page.get('next_page_token'):
                return
            query['page_token'] = page['next_page_token']

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        with self._refusals('Deleting', key):
            try:
                with self._answer('Deleting', key, 'DELETE', FILES + quote(path)):
                    pass
            except RefusedError as error:
                if error.status != 404:
                    raise

    def _volume_exists(self) -> bool | None:
        """Whether the volume is there; None if the service does not say."""
        try:
            with self._answer('Looking up', '', 'HEAD', FOLDERS + quote(self.volume)):
                return True
        except RefusedError as error:
            return False if error.status == 404 else None
        except (StorageError, ConfigError):
            return None

    def _why_absent(self, key: str) -> str:
        return why_absent(
            self._volume_exists(),
            container=f'the volume {self.volume}',
            server=self._host(),
            name=f'the file {self.root}/{key}',
        )


def _etag(answer: Any, size: int) -> str:
    modified = email.utils.parsedate_to_datetime(answer.headers['Last-Modified'])
    return etag_of(modified.timestamp(), size)
