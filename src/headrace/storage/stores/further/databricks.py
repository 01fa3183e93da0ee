"""Files of a Databricks workspace: Unity Catalog volumes, and DBFS.

``dbfs:/Volumes/catalog/schema/volume/path`` names a volume, any other ``dbfs:/path`` DBFS; ``dbfs:///`` means the same.

Workspace and credentials are databricks-sdk's unified authentication: ``DATABRICKS_HOST`` and ``DATABRICKS_TOKEN``, or
OAuth (``DATABRICKS_CLIENT_ID`` and ``DATABRICKS_CLIENT_SECRET``). The SDK also takes credentials of the tools of Azure
and Google, profiles of ``~/.databrickscfg`` (``DATABRICKS_CONFIG_PROFILE``), and those of a cluster's notebooks. It
refreshes them. ``StoreOptions.endpoint_url`` is the workspace's address, instead of ``DATABRICKS_HOST``.

``StoreOptions.extra``: ``profile`` (name of a profile).

An etag is made of size and time of change in seconds, which is all that the services tell. A file that replaces one of
the same size within a second counts as the same version.

The credentials are databricks-sdk's; the requests are made here, since the SDK's own are repeated up to a deadline and
have one time-out for everything. The API of DBFS, which came before volumes, moves at most 1 MiB at a time, as base64
in JSON: it is slow, and volumes are what Databricks recommends.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import os
from abc import abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from headrace.errors import AccessDeniedError, ConfigError, StorageError, import_optional
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.stores.local import temporary_keys, temporary_name, walk
from headrace.storage.transfer.answer_bounds import items_of
from headrace.storage.transfer.http import (
    CHUNK,
    ReadRequest,
    SourcePart,
    changed,
    error_of_status,
    new_session,
    not_found,
    read_json,
    truncated,
    unchanged,
    why_absent,
)
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed
from headrace.version import __version__

EXTRA: Final = frozenset({'profile'})
MEANINGS: Final = {
    **dict.fromkeys(('NOT_FOUND', 'RESOURCE_DOES_NOT_EXIST'), 404),
    **dict.fromkeys(('REQUEST_LIMIT_EXCEEDED', 'RESOURCE_EXHAUSTED'), 429),
    'PERMISSION_DENIED': 403,
    'TEMPORARILY_UNAVAILABLE': 503,
    'UNAUTHENTICATED': 401,
}
"""The HTTP status that an error code of Databricks stands for; that of the answer may be another."""

API: Final = '/api/2.0/dbfs'

BLOCK: Final = 1 << 20  # Bytes that one request reads or writes at most, as the API has it.

FILES = '/api/2.0/fs/files'

FOLDERS = '/api/2.0/fs/directories'


class RefusedError(Exception):
    def __init__(self, status: int, code: str, text: str, retry_after: str | None) -> None:
        super().__init__(f'HTTP status {status}{f" {code}" if code else ""}{f": {text}" if text else ""}')
        self.status = MEANINGS.get(code, status)
        self.code = code
        self.retry_after = retry_after


class WorkspaceFolder(BucketStore):
    """A folder of a workspace: what the stores for volumes and for DBFS have in common."""

    def __init__(self, root: str = '', options: StoreOptions | None = None) -> None:
        super().__init__(root.strip('/'), options, extra=EXTRA, title='a Databricks store')
        self.root = f'/{self.prefix}'

    @property
    def url(self) -> str:
        return f'dbfs:{self.root}'

    def _path(self, key: str) -> str:
        return f'/{self._name(key)}'

    def _connect(self) -> tuple[Any, Any]:
        """The SDK's configuration, with its credentials, and a session of requests."""
        import_optional('databricks.sdk.core', f'{self.url} needs databricks-sdk', 'databricks')
        from databricks.sdk.core import Config
        from requests.exceptions import InvalidURL, MissingSchema
        from urllib3.exceptions import HTTPError

        try:
            config = Config(
                host=self.options.endpoint_url,
                profile=self.options.extra.get('profile'),
                http_timeout_seconds=self.options.read_timeout,
                retry_timeout_seconds=1,  # of what it asks about the workspace; 0 would be its default of 300
                product='headrace',
                product_version=__version__,
            )
        except (OSError, HTTPError) as error:  # those of requests are OSErrors
            if isinstance(error, (InvalidURL, MissingSchema)):
                raise self._bad_address('Finding the workspace of', '', error) from error
            what = f'Finding the workspace of {self.url}/'
            raise BrokenTransferError.at(f'{what} broke: {self._told(error)}.') from error
        except ValueError as error:
            text = _without_settings(error)
            if ' auth: ' in text:
                raise self._no_credentials(text) from error
            raise ConfigError(
                f'databricks-sdk made no client for {self.url}: {text}. Check the address of the workspace '
                f'(DATABRICKS_HOST, endpoint_url) and the profile.'
            ) from error
        return config, new_session(self.options, self._pool)

    def _no_credentials(self, text: str) -> AccessDeniedError:
        return AccessDeniedError(
            f'{self.url} needs credentials, and databricks-sdk found none that work: {text}. Configure one of its '
            f'sources (DATABRICKS_HOST and DATABRICKS_TOKEN, a profile of ~/.databrickscfg, OAuth).'
        )

    @contextlib.contextmanager
    def _answer(
        self,
        doing: str,
        key: str,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        json: dict[str, Any] | None = None,
        body: Any = None,
        accepted: Collection[int | str] = (),
    ) -> Generator[Any]:
        """One request; its answer, whose body has not been read.

        `accepted`: statuses and codes of refusals for which it is None.
        """
        config, session = self._connection.get()
        # Lengths and ranges are of the bytes themselves.
        headers = {'Accept-Encoding': 'identity', 'User-Agent': config.user_agent, **(headers or {})}
        if getattr(config, 'workspace_id', None):  # of a host that serves several; old SDKs know of none
            headers['X-Databricks-Workspace-Id'] = config.workspace_id
        with contextlib.ExitStack() as stack:
            with self._mapped_errors(doing, key):
                try:
                    headers |= config.authenticate()
                except ValueError as error:
                    raise self._no_credentials(_without_settings(error)) from error
                answer = session.request(
                    method,
                    f'{config.host}{path}',
                    params=query,
                    headers=headers,
                    json=json,
                    data=body,
                    auth=unchanged,
                    stream=True,
                    allow_redirects=False,
                    timeout=(self.options.connect_timeout, self.options.read_timeout),
                )
                stack.callback(answer.close)
                if answer.status_code >= 300:
                    refused = _refusal(answer)
                    if refused.status not in accepted and refused.code not in accepted:
                        raise refused
                    answer = None
            yield answer

    def _fetch(self, doing: str, key: str, method: str, path: str, **how: Any) -> dict[str, Any] | None:
        """The content of an answer; None for a refusal that is accepted."""
        with self._answer(doing, key, method, path, **how) as answer, self._mapped_errors(doing, key):
            if answer is None:
                return None
            advice = 'Check that it is the address of a workspace (DATABRICKS_HOST, or the profile).'
            return read_json(answer, f'{doing} {self.url}/{key}: {self._server()}', advice) or {}

    def _exists(self, method: str, path: str, query: dict[str, Any] | None = None) -> bool | None:
        """Whether there is a folder, or None if the workspace does not say."""
        try:
            with self._answer('Looking up', '', method, path, query=query, accepted={404}) as answer:
                return answer is not None
        except (StorageError, ConfigError):
            return None

    def _bad_address(self, doing: str, key: str, error: Exception) -> ConfigError:
        return ConfigError(f'{doing} {self.url}/{key}: the address of the workspace is none: {error}.')

    def _explained(self, doing: str, key: str, error: Exception, connection: tuple[Any, Any]) -> Exception | None:
        from requests.exceptions import InvalidURL, MissingSchema

        host = connection[0].host
        if isinstance(error, (InvalidURL, MissingSchema)):
            return self._bad_address(doing, key, error)
        if not isinstance(error, RefusedError):
            return None
        if 300 <= error.status < 400:
            return ConfigError(
                f'{doing} {self.url}/{key}: {host} redirects to a login page or elsewhere, as no API does. '
                f'Check that it is the address of a workspace (DATABRICKS_HOST, or the profile).'
            )
        return error_of_status(
            error.status,
            f'{doing} {self.url}/{key} at {host}: {str(error).rstrip(".")}',
            url=f'{self.url}/{key}',
            absent=lambda: (
                f'{self._why_absent(key)}. Check the URL and the workspace (DATABRICKS_HOST, or the profile).'
            ),
            credentials=self._credentials,
            remedy='Use credentials that may do this, or have them granted what is missing.',
            retry_after=error.retry_after,
        )

    @abstractmethod
    def _why_absent(self, key: str) -> str: ...

    def _server(self) -> str:
        return str(self._connection.get()[0].host)

    def _credentials(self) -> str:
        """Which credentials the requests are made with, without saying what they are."""
        config = self._connection.get()[0]
        variables = [name for name in (attribute.env for attribute in config.attributes()) if name]
        used = [name for name in variables if os.environ.get(name)]
        profile = [f'the profile {config.profile!r}'] if config.profile else []
        return f'{config.auth_type!r} credentials from {", ".join(profile + used) or "the default profile"}'


def _without_settings(error: ValueError) -> str:
    """The message of the SDK without the values of its configuration, which it appends."""
    return str(error).partition('. Config:')[0].partition('. Env:')[0].rstrip('.')


def _refusal(answer: Any) -> RefusedError:
    told: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        content = answer.json()
        told = content if isinstance(content, dict) else {}
    return RefusedError(
        answer.status_code,
        str(told.get('error_code', '')),
        str(told.get('message', '')),
        answer.headers.get('Retry-After'),
    )


def etag_of(modified: float, size: int) -> str:
    """The version of a file, made of its time of change in seconds and its size."""
    return f'{int(modified):x}-{size:x}'


@sealed
class DbfsStore(WorkspaceFolder):
    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        info = self._status('Reading', self._key(name))
        if wanted.etag and wanted.etag != info.etag:
            raise changed(wanted.url, wanted.etag, info.etag)
        left, begin = wanted.check(info), wanted.offset
        if not left:
            return None
        blocks = self._blocks(info, begin, left)
        part = f'bytes {begin}-{begin + left - 1}/{info.size}'
        return Body(lambda: next(blocks, b''), blocks.close, info.etag, left, part)

    def _blocks(self, info: ObjectInfo, offset: int, left: int) -> Generator[bytes]:
        url = f'{self.url}/{info.key}'
        try:
            while left:
                block = self._block(info.key, offset, min(BLOCK, left))
                if not block:
                    raise truncated(url, left)
                yield block
                offset += len(block)
                left -= len(block)
            # Each block is a request of its own, so the file may have been replaced before one of them.
            if (now := self._status('Reading', info.key)).etag != info.etag:
                raise changed(url, info.etag, now.etag)
        except BrokenTransferError as error:
            if not error.changed:
                error.etag = info.etag
            raise

    def _block(self, key: str, offset: int, size: int) -> bytes:
        query = {'path': self._path(key), 'offset': offset, 'length': size}
        answer = self._fetch('Reading', key, 'GET', f'{API}/read', query=query) or {}
        block = base64.b64decode(answer.get('data', ''))
        if len(block) > size:
            raise StorageError(
                f'{self._server()} sent {len(block)} bytes of {self.url}/{key} where it was asked for {size}. Use a '
                f'server that honours the length.'
            )
        return block

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. DBFS cannot replace a file at once: while one is replaced, a reader may find none."""
        path = self._path(key)
        folder = path.rpartition('/')[0]
        temporary = f'{folder}/{temporary_name()}'
        body = SourcePart(source, size)
        created = self._post(key, 'create', accepted={404}, path=temporary)
        if created is None:
            self._post(key, 'mkdirs', path=folder)
            created = self._post(key, 'create', path=temporary) or {}
        handle = created['handle']
        move = {'source_path': temporary, 'destination_path': path}
        try:
            while block := body.read(BLOCK):
                self._post(key, 'add-block', handle=handle, data=base64.b64encode(block).decode())
            self._post(key, 'close', handle=handle)
            if self._post(key, 'move', accepted={'RESOURCE_ALREADY_EXISTS'}, **move) is None:
                self._post(key, 'delete', path=path)
                self._post(key, 'move', **move)
        except BaseException:
            with contextlib.suppress(StorageError):
                self._post(key, 'delete', path=temporary)
            raise

    def head(self, key: str) -> ObjectInfo:
        return self._status('Looking up', key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from walk(prefix, partial(self._children, prefix))

    def remove_unfinished(self, folders: Iterable[str]) -> None:
        """See `LocalStore.remove_unfinished`."""
        for key in temporary_keys(folders, partial(self._children, '')):
            self.delete(key)

    def _children(self, prefix: str, folder: str) -> Iterator[ObjectInfo | str]:
        base = self.root.rstrip('/')
        path = f'{base}/{folder}' if folder else self.root
        # It was never made, or is deleted meanwhile.
        page = self._fetch('Listing', prefix, 'GET', f'{API}/list', query={'path': path}, accepted={404}) or {}
        for entry in page.get('files', ()):
            key = str(entry['path'])[len(base) + 1 :]
            if entry['path'] != path:  # a file lists itself
                yield key if entry.get('is_dir') else _info(key, entry)

    def delete(self, key: str) -> None:
        self._post(key, 'delete', doing='Deleting', accepted={404}, path=self._path(key))

    def _status(self, doing: str, key: str) -> ObjectInfo:
        answer = self._fetch(doing, key, 'GET', f'{API}/get-status', query={'path': self._path(key)}) or {}
        if answer.get('is_dir'):
            raise not_found(f'{self.url}/{key}', 'it is a folder.')
        return _info(key, answer)

    def _post(
        self, key: str, verb: str, *, doing: str = 'Writing', accepted: Collection[int | str] = (), **fields: Any
    ) -> dict[str, Any] | None:
        return self._fetch(doing, key, 'POST', f'{API}/{verb}', json=fields, accepted=accepted)

    def _why_absent(self, key: str) -> str:
        folder = self._path(key).rpartition('/')[0] or '/'
        exists = self._exists('GET', f'{API}/get-status', {'path': folder})
        return why_absent(exists, f'the folder {folder}', self._server(), 'such a file in it')


def _info(key: str, told: dict[str, Any]) -> ObjectInfo:
    size = int(told.get('file_size', 0))
    return ObjectInfo(key, size, etag_of(int(told.get('modification_time', 0)) / 1000, size))


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
        super().__init__(root, options)
        self.volume = '/'.join(self.root.split('/')[:5])

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        headers = {'Accept': 'application/octet-stream'}
        if wanted.range:
            headers['Range'] = wanted.range
        if wanted.etag:
            since = int(wanted.etag.partition('-')[0], 16)
            headers['If-Unmodified-Since'] = email.utils.formatdate(since, usegmt=True)
        with contextlib.ExitStack() as stack:
            where = FILES + quote(f'/{name}')
            answer = stack.enter_context(
                self._answer('Reading', self._key(name), 'GET', where, headers=headers, accepted={416})
            )
            if answer is None:
                return None
            part = answer.headers.get('Content-Range', '') if answer.status_code == 206 else None
            length = int(answer.headers['Content-Length'])
            found = _etag(answer, int(part.rpartition('/')[2]) if part else length)
            return Body(lambda: answer.raw.read(CHUNK), stack.pop_all().close, found, length, part)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. The service takes up to 5 GiB at once."""
        path = self._path(key)
        start = source.tell()
        if not self._upload(key, path, SourcePart(source, size), accepted={404}):
            # A folder on the way is missing, or the volume: then this fails, too.
            folder = quote(path.rpartition('/')[0])
            with self._answer('Writing', key, 'PUT', FOLDERS + folder):
                pass
            source.seek(start)
            self._upload(key, path, SourcePart(source, size))

    def _upload(self, key: str, path: str, body: SourcePart, *, accepted: Collection[int] = ()) -> bool:
        headers = {'Content-Type': 'application/octet-stream', 'Content-Length': str(len(body))}
        with self._answer(
            'Writing',
            key,
            'PUT',
            FILES + quote(path),
            query={'overwrite': 'true'},
            headers=headers,
            body=body if len(body) else b'',
            accepted=accepted,
        ) as answer:
            return answer is not None

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        doing = 'Looking up', key
        with self._mapped_errors(*doing), self._answer(*doing, 'HEAD', FILES + quote(path)) as answer:
            size = int(answer.headers['Content-Length'])
            return ObjectInfo(key, size, _etag(answer, size))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
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
            page = self._fetch('Listing', prefix, 'GET', FOLDERS + quote(folder), query=query, accepted={404})
            if page is None:
                if self._exists('HEAD', FOLDERS + quote(self.volume)) is False:
                    raise not_found(f'{self.url}/{prefix}', f'{self._why_absent(prefix)}. Check the URL.')
                return  # it was never made, or is deleted meanwhile
            yield page.get('contents', [])
            if not page.get('next_page_token'):
                return
            query['page_token'] = page['next_page_token']

    def delete(self, key: str) -> None:
        with self._answer('Deleting', key, 'DELETE', FILES + quote(self._path(key)), accepted={404}):
            pass

    def _why_absent(self, key: str) -> str:
        exists = self._exists('HEAD', FOLDERS + quote(self.volume))
        return why_absent(exists, f'the volume {self.volume}', self._server(), f'the file {self.root}/{key}')


def _etag(answer: Any, size: int) -> str:
    modified = email.utils.parsedate_to_datetime(answer.headers['Last-Modified'])
    return etag_of(modified.timestamp(), size)
