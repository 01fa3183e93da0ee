"""File systems of fsspec as stores: ``webhdfs://``, SFTP, and those that users register `resolve.fsspec_store` for.

Libraries of fsspec differ in what they bound, cache and share. So each call is made in the thread of its connection,
and given up after `Connection.seconds`. A connection serves one caller at a time and is made in the process that uses
it, since threads and sessions do not survive a fork. A broken one is never used again.

An etag is made of the time of change and the size. A file that replaces one of the
same size within the resolution of that time counts as the same version.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, TypeVar

from headrace.errors import AccessDeniedError, ConfigError, MissingDependencyError, StorageError
from headrace.errors.redaction import keep_secret, logger_of
from headrace.storage.protocol import ObjectInfo, StoreOptions, check_extra, check_key, count_option, is_blocking
from headrace.storage.resolve import split_url
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.stores.local import TEMPORARY, temporary_keys, temporary_name, walk
from headrace.storage.transfer.answer_bounds import bound_session
from headrace.storage.transfer.http import ReadRequest, SourcePart, changed, error_of_status, not_found
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar('T')

_log = logger_of(__name__)

MAX_CONNECTIONS: Final = 4
CHANGES: Final = (
    *('mtime', 'modificationTime', 'last_modified', 'LastModified', 'modified', 'modifiedTime', 'modify', 'updated'),
    *('created', 'ETag', 'etag', 'sha'),
)
"""Names under which file systems tell the version of a file."""
REFUSALS: Final = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors that leave a connection as good as before."""


class Connection:
    """A file system, and the thread that calls it, for one caller at a time."""

    def __init__(self, make: Callable[[], AbstractFileSystem], seconds: float) -> None:
        """Make the file system. `seconds`: those that a call may take."""
        self.seconds = seconds
        self.is_usable = True
        self._is_stuck = False
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name='headrace-files', daemon=True).start()
        weakref.finalize(self, self._calls.put, None)
        self.files: Any = self.call(make)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self._is_stuck:
            raise TimeoutError('an earlier call was given up')
        answer: Future[T] = Future()
        self._calls.put((answer, partial(function, *args, **kwargs)))
        try:
            return answer.result(self.seconds)
        except BaseException as error:
            self._is_stuck = not answer.done()
            stands = getattr(getattr(self, 'files', None), 'is_usable', None)
            is_refusal = isinstance(error, REFUSALS) or (type(error) is OSError and stands is True)
            self.is_usable = self.is_usable and is_refusal and not self._is_stuck
            if self._is_stuck and isinstance(error, FutureTimeoutError):
                raise TimeoutError(f'no answer for {self.seconds:g} s') from None
            if (
                stands is False
                and isinstance(error, OSError)
                and not isinstance(error, (ConnectionError, TimeoutError))
            ):
                raise ConnectionError(f'it ended: {error}') from error
            raise

    def close(self) -> None:
        """Let go of the file system; of one that does not answer, what it waits for."""
        self.is_usable = False
        with contextlib.suppress(Exception):
            self.files.close()  # which only some have


def _serve(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        answer, function = call
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)
        del answer, function, call  # with the files that they hold


class Connections:
    """The connections of a process. One of several is kept for urgent reads."""

    def __init__(self, connect: Callable[[], Connection], limit: int, root: str) -> None:
        self._connect = connect
        self.root = root  # The path of the store's folder, without a slash at its end.
        self._free = threading.Semaphore(limit)
        self._free_ahead = threading.Semaphore(max(1, limit - 1))
        self.idle: list[Connection] = []
        weakref.finalize(self, _close_all, self.idle, os.getpid())

    @contextlib.contextmanager
    def borrow(self) -> Generator[Connection]:
        """The connection that was used last, which its server is the least likely to have ended; or a new one."""
        with contextlib.nullcontext() if is_blocking.get() else self._free_ahead, self._free:
            connection = self._take() or self._connect()
            try:
                yield connection
            finally:
                if connection.is_usable:
                    self.idle.append(connection)
                else:
                    connection.close()

    def _take(self) -> Connection | None:
        with contextlib.suppress(IndexError):  # each turn takes one away
            while not getattr((connection := self.idle.pop()).files, 'is_usable', True):
                connection.close()
            return connection
        return None


def _close_all(connections: list[Connection], process: int) -> None:
    if process == os.getpid():  # a forked child has let go of them
        for connection in connections:
            connection.close()


NOT_OPTIONS: Final = {'self', 'args', 'kwargs', 'fo', 'host', 'port', 'user', 'username', 'password', 'token'}
"""Arguments of implementations that the URL or the environment gives."""
SECRETS: Final = ('password', 'token')
"""Arguments that come from ``HEADRACE_SCHEME_ARGUMENT`` in the environment."""


def open_fsspec_store(url: str, options: StoreOptions) -> FsspecStore:
    """The store for a URL as fsspec has it, such as ``webhdfs://[user@]host:port/absolute/path``."""
    return FsspecStore(url, options, title=f'a store of {split_url(url)[0]}://', extra=options.extra)


@sealed
class FsspecStore(BucketStore):
    """Files below a folder of a file system."""

    BLOCK: ClassVar[int] = 4 << 20
    """Bytes of a read. Each may be a request, and each must come in the seconds of a call."""

    def __init__(
        self,
        url: str,
        options: StoreOptions | None = None,
        *,
        extra: Iterable[str],
        title: str,
    ) -> None:
        """Take a URL. `extra`, `title`: as `BucketStore` has them."""
        super().__init__('', options, extra=extra, title=title)
        self._limit = count_option(self.options, 'max_connections', MAX_CONNECTIONS)
        self.scheme, place = split_url(url)
        self._url = f'{self.scheme}://{place.rstrip("/")}'

    @property
    def url(self) -> str:
        return self._url

    def _connect(self) -> Connections:
        make, root = self._maker()
        seconds = self.options.connect_timeout + 2 * self.options.read_timeout
        return Connections(lambda: Connection(make, seconds), self._limit, root.rstrip('/'))

    def _maker(self) -> tuple[Callable[[], AbstractFileSystem], str]:
        """Return the function that makes the file system, which a connection calls in its thread, and its folder."""
        try:
            import fsspec

            implementation: Any = fsspec.get_filesystem_class(self.scheme)
        except ImportError as error:
            raise _missing(self.url, error) from error
        except ValueError as error:
            raise ConfigError(f'fsspec knows no scheme {self.scheme!r}, as in {self.url}: {error}.') from error
        names = sorted({*inspect.signature(implementation.__init__).parameters, 'max_connections'} - NOT_OPTIONS)
        check_extra(self.options, names, f'a store of {self.scheme}://')
        settings = {name: value for name, value in self.options.extra.items() if name != 'max_connections'}
        for name, variable in self._secrets().items():
            keep_secret(secret := os.environ[variable])
            settings[name] = secret
        settings |= implementation._get_kwargs_from_urls(self.url)
        return partial(_make, implementation, settings, self.url, self.options), implementation._strip_protocol(
            self.url
        )

    @contextlib.contextmanager
    def _files(self, doing: str, key: str) -> Generator[Connection]:
        """A connection for one operation, whose failures become headrace's exceptions."""
        with self._mapped_errors(doing, key), self._connection.get().borrow() as connection:
            yield connection

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(self._connection.get().borrow())
            path = self._path(name)
            file = connection.call(_opened, connection.files, path)
            stack.callback(_close, connection, file)
            info = self._info(name, file.details)
            if wanted.etag and wanted.etag != info.etag:
                raise changed(wanted.url, wanted.etag, info.etag)
            left, begin = wanted.check(info), wanted.offset
            if not left:
                return None
            blocks: Iterator[bytes] = getattr(file, 'blocks', partial(_blocks, file, self.BLOCK))(begin, left)

            def read() -> bytes:
                try:
                    block = connection.call(next, blocks, b'')
                    # Blocks that are requests of their own may be of two versions.
                    if block or getattr(file, 'is_pinned', False):
                        return block
                    now = self._info(info.key, connection.call(connection.files.info, path))
                except FileNotFoundError as error:
                    raise changed(wanted.url) from error
                if now.etag != info.etag:
                    raise changed(wanted.url, info.etag, now.etag)
                return b''

            part = f'bytes {begin}-{begin + left - 1}/{info.size}'
            return Body(read, stack.pop_all().close, info.etag, left, part)

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`. A connection that breaks meanwhile leaves a hidden file ``.headrace-put-*`` behind."""
        path = self._path(key)
        folder = path.rpartition('/')[0] or '/'
        temporary = f'{folder.rstrip("/")}/{temporary_name()}'
        body = SourcePart(source, size)
        with self._files('Writing', key) as connection:
            files, call = connection.files, connection.call
            try:
                file = call(files.open, temporary, 'wb')
            except FileNotFoundError:
                _make_folders(connection, folder)
                file = call(files.open, temporary, 'wb')
            try:
                while block := body.read(self.BLOCK):
                    call(file.write, block)
                call(file.close)
                self._replace(connection, temporary, path, size)
            except BaseException as error:
                if not isinstance(error, (*self._network_errors(), ConnectionError, TimeoutError)):
                    with contextlib.suppress(Exception):
                        call(_discard, files, file, temporary)
                raise

    def _replace(self, connection: Connection, temporary: str, path: str, size: int) -> None:
        """Give a file its name. While it replaces another one, a reader may find none."""
        files, call, before = connection.files, connection.call, None
        with contextlib.suppress(FileNotFoundError):
            call(files.info, path)
            before = f'{path.rpartition("/")[0]}/{temporary_name()}'
            call(_rename, files, path, before)
        try:
            call(_rename, files, temporary, path)
            if call(files.info, path)['size'] != size:
                raise StorageError(
                    f'{path} at {self._server()} was written, but is not what was sent. Another writer may be at it.'
                )
        except BaseException:
            if before is not None:
                with contextlib.suppress(Exception):
                    call(_rename, files, before, path)
            raise
        if before is not None:
            call(files.rm_file, before)

    def _path(self, key: str) -> str:
        return f'{self._connection.get().root}/{check_key(key)}'

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._files('Looking up', key) as connection:
            return self._info(key, connection.call(connection.files.info, path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`. Links to files are followed. Those to folders get a warning: a loop would never end."""
        with self._files('Listing', prefix) as connection:
            infos = walk(prefix, lambda folder: self._children(connection, folder, prefix))
        yield from infos

    def remove_unfinished(self, folders: Iterable[str]) -> None:
        """See `LocalStore.remove_unfinished`."""
        with self._files('Listing', '') as connection:
            keys = temporary_keys(
                folders, lambda folder: self._children(connection, folder, f'{folder}/{TEMPORARY}'.lstrip('/'))
            )
        for key in keys:
            self.delete(key)

    def _children(self, connection: Connection, folder: str, prefix: str) -> Iterator[ObjectInfo | str]:
        path = f'{self._connection.get().root}/{folder}'.rstrip('/') or '/'
        try:
            entries = connection.call(connection.files.ls, path, detail=True)
        except FileNotFoundError:  # it was never made, or is deleted meanwhile
            return
        for entry in entries:
            place, _, name = str(entry['name']).rstrip('/').rpartition('/')
            if (place or '/') != path:  # a file lists itself
                continue
            key = f'{folder}/{name}' if folder else name
            if entry['type'] == 'directory':
                yield key
            elif key.startswith(prefix):  # to look at others would cost requests
                is_link = entry['type'] == 'link'
                try:
                    target = connection.call(connection.files.info, entry['name']) if is_link else entry
                    yield self._info(key, target)
                except FileNotFoundError:
                    if is_link:
                        _log.warning('%s/%s is a link to no file. It is left out.', self.url, key)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._files('Deleting', key) as connection, contextlib.suppress(FileNotFoundError):
            connection.call(connection.files.rm_file, path)

    def _info(self, key: str, details: Mapping[str, Any]) -> ObjectInfo:
        if details['type'] != 'file':
            raise not_found(f'{self.url}/{key}', f'it is no regular file, but a {details["type"]}.')
        size = details.get('size')
        if size is None:
            raise StorageError(f'{self._server()} does not say how large {self.url}/{key} is. Use a server that does.')
        told = next((details[name] for name in CHANGES if details.get(name) is not None), None)
        if told is None:
            raise StorageError(
                f'{self._server()} does not say when {self.url}/{key} was changed, so that a new version of it would '
                f'not be noticed. Use a server that does.'
            )
        told = told.timestamp() if isinstance(told, datetime) else told
        return ObjectInfo(key, int(size), f'{told:x}-{size:x}' if isinstance(told, int) else f'{told}-{size:x}')

    def _server(self) -> str:
        return split_url(self.url)[1].partition('/')[0].rpartition('@')[2] or f'{self.scheme}://'

    def _credentials(self) -> str:
        """Which credentials are used, without saying what they are."""
        return f'the user of the URL and {" and ".join(self._secrets().values()) or "no secret"}'

    def _secrets(self) -> dict[str, str]:
        """Secret arguments, and the variables that have them."""
        variables = {name: f'HEADRACE_{self.scheme}_{name}'.upper() for name in SECRETS}
        return {name: variable for name, variable in variables.items() if os.environ.get(variable)}

    def _network_errors(self) -> tuple[type[Exception], ...]:
        from requests import RequestException

        return EOFError, RequestException

    def _explained(self, doing: str, key: str, error: Exception, connection: Connections) -> Exception | None:
        what = f'{doing} {self.url}/{key} at {self._server()}'
        text = self._told(error).rstrip('.')
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return not_found(
                f'{self.url}/{key}', f'{self._why_absent(key, connection)} at {self._server()}. Check the URL.'
            )
        if isinstance(error, PermissionError):
            return AccessDeniedError(
                f'{what}: {text}. The request was made with {self._credentials()}. Use a user who may do this, or '
                f"change the file's mode."
            )
        answer = getattr(error, 'response', None)
        if status := getattr(answer, 'status_code', None):
            return error_of_status(
                status,
                f'{what}: {text}',
                url=f'{self.url}/{key}',
                absent=lambda: f'{self._server()} has no such file. Check the URL.',
                credentials=self._credentials,
                remedy='Use credentials that may do this.',
                retry_after=answer.headers.get('Retry-After') if answer is not None else None,
            )
        is_network = isinstance(error, (*self._network_errors(), ConnectionError, TimeoutError))
        if is_network or not isinstance(error, (OSError, RuntimeError)):
            return None
        # An exception of a server of HDFS is a RuntimeError, such as that of a name node on standby.
        if doing == 'Reading' or (doing != 'Writing' and isinstance(error, RuntimeError)):
            return BrokenTransferError.at(f'{what} broke: {text}.')
        return StorageError(f'{what}: {text}. A full disk, a quota and an I/O error may look like this: see its log.')

    def _why_absent(self, key: str, connections: Connections) -> str:
        """The highest folder that is missing, if the server says so."""
        missing, folder = '', f'{connections.root}/{key}'.rpartition('/')[0]
        try:
            with connections.borrow() as connection:
                while folder and not connection.call(connection.files.exists, folder):
                    missing, folder = folder, folder.rpartition('/')[0]
        except Exception:  # a look that fails must not hide what it was to explain
            return 'there is no such file'
        return f'the folder {missing} does not exist' if missing else 'its folder exists, but holds no such file'


def _make(implementation: Any, settings: Mapping[str, Any], url: str, options: StoreOptions) -> AbstractFileSystem:
    try:
        files: Any = implementation(**settings, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:  # such as requests_kerberos, for `kerberos`
        raise _missing(url, error) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'fsspec makes no file system for {url}: {error}. Correct the URL, `store_options`, or the environment.'
        ) from error
    if session := getattr(files, 'session', None):  # of requests, without time-outs
        session.request = partial(session.request, timeout=(options.connect_timeout, options.read_timeout))
        bound_session(session, options.answer_seconds)
        session.get = partial(_successful, session.get)
    return files


def _successful(get: Any, *args: Any, **kwargs: Any) -> Any:
    """The answer of a session. fsspec takes the text of a data node's error for the bytes of the file."""
    answer = get(*args, **kwargs)
    answer.raise_for_status()
    return answer


def _missing(url: str, error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        f'{url} needs packages that are not installed: {error}. Install them, such as by pip install '
        f"'headrace[fsspec]'."
    )


def _opened(files: Any, path: str) -> Any:
    """A file to read, with its ``details``."""
    from fsspec.caching import BaseCache
    from fsspec.spec import AbstractBufferedFile

    file = files.open(path, 'rb')
    if isinstance(file, AbstractBufferedFile):
        file.cache = BaseCache(int(file.blocksize), file._fetch_range, file.size)  # without reading ahead
    elif not hasattr(file, 'details'):
        file.details = files.info(path)
    return file


def _blocks(file: Any, size: int, offset: int, left: int) -> Iterator[bytes]:
    file.seek(offset)
    while left and (block := file.read(min(size, left))):
        yield block
        left -= len(block)


def _rename(files: Any, old: str, new: str) -> None:
    from fsspec import AbstractFileSystem

    if type(files).mv is not AbstractFileSystem.mv:
        files.mv(old, new)
    else:  # fsspec's own takes patterns
        files.cp_file(old, new)
        files.rm_file(old)


def _close(connection: Connection, file: Any) -> None:
    with contextlib.suppress(Exception):
        if connection.is_usable:
            connection.call(file.close)


def _discard(files: Any, file: Any, path: str) -> None:
    with contextlib.suppress(Exception):
        file.close()
    files.rm_file(path)


def _make_folders(connection: Connection, path: str) -> None:
    """Make a folder and those above it; another writer may be doing the same."""
    for _ in path.split('/'):
        with contextlib.suppress(Exception):
            connection.call(connection.files.makedirs, path, exist_ok=True)
        if connection.call(connection.files.isdir, path):
            return
    connection.call(connection.files.makedirs, path, exist_ok=True)
