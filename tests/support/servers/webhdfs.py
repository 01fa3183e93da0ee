"""WebHDFS on the loopback interface, in memory: our own server, as Hadoop documents the interface.

It sends reads and writes to a data node, which is the same server, and renames onto no file.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.servers.in_process import Handler, serving

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['WebHdfsServer', 'webhdfs_server']

ROOT, DATA = '/webhdfs/v1', '/data'


@dataclass
class _File:
    data: bytearray
    modified: int


@dataclass
class WebHdfsServer:
    """The name node's state and address."""

    port: int = 0
    files: dict[str, _File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {'/'})
    token: str = ''
    """The delegation token that each request must have, if any."""
    lock: Any = field(default_factory=threading.RLock)

    def new_folder(self) -> str:
        """Make an empty folder with a new name; returns its path."""
        path = f'/{secrets.token_hex(6)}'
        self.folders.add(path)
        return path

    def url(self, folder: str) -> str:
        """The URL of a folder."""
        return f'webhdfs://someone@127.0.0.1:{self.port}{folder}'

    def status(self, path: str, suffix: str = '') -> dict[str, Any]:
        """The FileStatus of a file or folder."""
        if path in self.folders:
            return {'type': 'DIRECTORY', 'length': 0, 'modificationTime': 0, 'pathSuffix': suffix}
        if path not in self.files:
            raise FileNotFoundError(f'File does not exist: {path}')
        file = self.files[path]
        return {
            'type': 'FILE',
            'length': len(file.data),
            'modificationTime': file.modified,
            'accessTime': time.time_ns() // 1_000_000,
            'pathSuffix': suffix,
        }

    def children(self, path: str) -> list[dict[str, Any]]:
        """What LISTSTATUS tells; of a file, itself."""
        if path in self.files:
            return [self.status(path)]
        self.status(path)
        base = path.rstrip('/') + '/'
        names = [name[len(base) :] for name in (*self.files, *self.folders) if name.startswith(base) and name != base]
        return [self.status(base + name, name) for name in sorted(names) if '/' not in name]

    def make_folders(self, path: str) -> None:
        """MKDIRS."""
        while path != '/':
            self.folders.add(path)
            path = path.rpartition('/')[0] or '/'

    def create(self, path: str, data: bytes) -> None:
        """CREATE, which makes folders, too."""
        self.make_folders(path.rpartition('/')[0] or '/')
        self.files[path] = _File(bytearray(data), time.time_ns() // 1_000_000)

    def rename(self, old: str, new: str) -> bool:
        """RENAME; False if it is refused."""
        if new in self.files or old not in self.files:
            return False
        self.files[new] = self.files.pop(old)
        return True

    def delete(self, path: str) -> bool:
        """DELETE; False if there is nothing."""
        return self.files.pop(path, None) is not None


@contextlib.contextmanager
def webhdfs_server() -> Generator[WebHdfsServer]:
    """Run the server in a thread."""
    state = WebHdfsServer()

    class NameNode(Handler):
        def handle_any(self, body: bytes) -> None:
            where = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(where.query).items()}
            try:
                with state.lock:
                    if state.token and query.get('delegation') != state.token:
                        raise PermissionError('Invalid token')
                    self.act(unquote(where.path), query, body)
            except (FileNotFoundError, PermissionError) as error:
                is_absent = isinstance(error, FileNotFoundError)
                kind = 'FileNotFoundException' if is_absent else 'AccessControlException'
                told = {'RemoteException': {'exception': kind, 'message': str(error)}}
                self.answer_json(404 if is_absent else 403, told)

        def act(self, place: str, query: dict[str, str], body: bytes) -> None:
            path, operation = place.removeprefix(ROOT).removeprefix(DATA) or '/', query['op']
            if place.startswith(ROOT) and operation in {'OPEN', 'CREATE', 'APPEND'}:
                if operation != 'CREATE':
                    state.status(path)
                location = f'http://{self.headers["Host"]}{DATA}{quote(path)}?{urlsplit(self.path).query}'
                self.answer(307, {'Location': location}, b'')
            elif operation == 'OPEN':
                begin = int(query.get('offset', 0))
                data = bytes(state.files[path].data[begin:])
                self.answer(200, {}, data[: int(query.get('length', len(data)))])
            elif operation == 'CREATE':
                state.create(path, body)
                self.answer(201, {}, b'')
            elif operation == 'APPEND':
                state.files[path].data += body
                self.answer(200, {}, b'')
            else:
                told: dict[str, Any] = {
                    'GETFILESTATUS': lambda: {'FileStatus': state.status(path)},
                    'LISTSTATUS': lambda: {'FileStatuses': {'FileStatus': state.children(path)}},
                    'MKDIRS': lambda: {'boolean': state.make_folders(path) is None},
                    'RENAME': lambda: {'boolean': state.rename(path, query['destination'])},
                    'DELETE': lambda: {'boolean': state.delete(path)},
                }[operation]()
                self.answer_json(200, told)

    with serving(NameNode) as server:
        state.port = server.server_port
        yield state
