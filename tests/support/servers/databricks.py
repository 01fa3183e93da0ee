"""A Databricks workspace on the loopback interface: Files API, DBFS API, and OAuth.

This is our own server, in memory, not Databricks software. It answers databricks-sdk and our backend as the APIs are
documented. It checks bearer tokens.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import itertools
import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.servers.in_process import Handler, serving

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['DatabricksServer', 'databricks_server']

FILES, FOLDERS, DBFS = '/api/2.0/fs/files', '/api/2.0/fs/directories', '/api/2.0/dbfs/'
PAGE = 1000
LARGEST_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    modified: float


class _RefusalError(Exception):
    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


def _absent(path: str) -> _RefusalError:
    return _RefusalError(404, 'RESOURCE_DOES_NOT_EXIST', f'No file or directory exists on path {path}.')


class DatabricksServer:
    """The workspace's state and address."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.folders: set[str] = {'/', '/Volumes'}
        self.handles: dict[int, tuple[str, bytearray]] = {}
        self._numbers = itertools.count(1)
        self.host = ''
        self.token = secrets.token_hex(8)
        self.client_secret = secrets.token_hex(8)
        """Secret of the service principal ``a-client``, for OAuth."""
        self.tokens: set[str] = {self.token}
        """Valid tokens."""
        self.token_seconds = 3600.0
        """Announced lifetime of OAuth tokens in seconds. They stay valid until `expire_tokens`."""
        self.tokens_made = 0

    def environment(self) -> dict[str, str]:
        """Environment variables for ``dbfs:`` URLs of this workspace."""
        return {'DATABRICKS_HOST': self.host, 'DATABRICKS_TOKEN': self.token}

    def expire_tokens(self) -> None:
        """Refuse all existing tokens of OAuth."""
        self.tokens = {self.token}

    def new_volume(self) -> str:
        """Make a volume with a new name; returns its path."""
        path = f'/Volumes/main/default/v{secrets.token_hex(6)}'
        self._make_folders(path)
        return path

    def new_folder(self) -> str:
        """Make a folder of DBFS with a new name; returns its path."""
        path = f'/headrace/{secrets.token_hex(6)}'
        self._make_folders(path)
        return path

    def _make_folders(self, path: str) -> None:
        parts = path.strip('/').split('/')
        made = {'/' + '/'.join(parts[: i + 1]) for i in range(len(parts))}
        if not made.isdisjoint(self.files):
            raise _RefusalError(400, 'RESOURCE_ALREADY_EXISTS', 'A file is in the way.')
        self.folders |= made

    def _store(self, path: str, data: bytes) -> None:
        if path in self.folders:
            raise _RefusalError(400, 'INVALID_PARAMETER_VALUE', f'{path} is a directory.')
        self._require_folder(path.rpartition('/')[0] or '/')
        self.files[path] = _File(data, time.time())

    def _require_folder(self, path: str) -> None:
        if path not in self.folders:
            raise _absent(path)

    def _file(self, path: str) -> _File:
        if path not in self.files:
            raise _absent(path)
        return self.files[path]

    def _names(self, folder: str) -> list[str]:
        """Paths right below a folder."""
        self._require_folder(folder)
        base = folder.rstrip('/') + '/'
        inside = (path for path in (*list(self.files), *list(self.folders)) if path.startswith(base) and path != '/')
        return sorted(path for path in inside if '/' not in path[len(base) :])

    def entries(self, folder: str) -> list[dict[str, Any]]:
        """Entries in the form of the Files API."""
        found: list[dict[str, Any]] = []
        for path in self._names(folder):
            entry: dict[str, Any] = {'path': path, 'name': path.rpartition('/')[2], 'is_directory': True}
            if path in self.files:
                file = self.files[path]
                entry |= {
                    'is_directory': False,
                    'file_size': len(file.data),
                    'last_modified': int(file.modified * 1000),
                }
            found.append(entry)
        return found

    def status(self, path: str) -> dict[str, Any]:
        """An entry in the form of the DBFS API."""
        if path in self.folders:
            return {'path': path, 'is_dir': True, 'file_size': 0, 'modification_time': 0}
        file = self._file(path)
        return {
            'path': path,
            'is_dir': False,
            'file_size': len(file.data),
            'modification_time': int(file.modified * 1000),
        }

    def dbfs(self, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the DBFS API."""
        path = str(fields.get('path', ''))
        if verb == 'get-status':
            return self.status(path)
        if verb == 'list':
            return {'files': [self.status(name) for name in ([path] if path in self.files else self._names(path))]}
        if verb == 'read':
            offset, length = int(fields.get('offset', 0)), int(fields.get('length', 1 << 19))
            file = self._file(path)
            if length > LARGEST_BLOCK or offset > len(file.data):
                raise _RefusalError(400, 'INVALID_PARAMETER_VALUE', 'The offset or the length is too large.')
            data = file.data[offset : offset + length]
            return {'bytes_read': len(data), 'data': base64.b64encode(data).decode()}
        if verb == 'create':
            if path in self.files and not fields.get('overwrite'):
                raise _RefusalError(400, 'RESOURCE_ALREADY_EXISTS', f'{path} exists.')
            self._store(path, b'')
            handle = next(self._numbers)
            self.handles[handle] = path, bytearray()
            return {'handle': handle}
        if verb == 'add-block':
            block = base64.b64decode(fields['data'])
            if len(block) > LARGEST_BLOCK:
                raise _RefusalError(400, 'MAX_BLOCK_SIZE_EXCEEDED', 'The block is larger than 1 MiB.')
            self.handles[fields['handle']][1].extend(block)
        elif verb == 'close':
            path, data = self.handles[fields['handle']]
            self._store(path, bytes(data))
        elif verb == 'mkdirs':
            self._make_folders(path)
        elif verb == 'move':
            target = str(fields['destination_path'])
            if target in self.files or target in self.folders:
                raise _RefusalError(400, 'RESOURCE_ALREADY_EXISTS', f'{target} exists.')
            self._store(target, self._file(str(fields['source_path'])).data)
            del self.files[str(fields['source_path'])]
        elif verb == 'delete':
            self._file(path)
            del self.files[path]
        else:
            raise _RefusalError(404, 'ENDPOINT_NOT_FOUND', f'No API found for {verb}.')
        return {}


class _Handler(Handler):
    workspace: DatabricksServer

    def handle_any(self, body: bytes) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.body = body
        acts = {'GET': self._get, 'HEAD': self._head, 'PUT': self._put, 'DELETE': self._delete, 'POST': self._post}
        try:
            if path.startswith('/api/'):
                self._require_token()
            acts[self.command](path, query)
        except _RefusalError as error:
            self.answer_json(error.status, {'error_code': error.code, 'message': str(error)})

    def _require_token(self) -> None:
        token = (self.headers.get('Authorization') or '').removeprefix('Bearer ')
        if token not in self.workspace.tokens:
            raise _RefusalError(403, 'PERMISSION_DENIED', 'Invalid access token.')

    def _get(self, path: str, query: dict[str, str]) -> None:
        if path.startswith(FILES):
            self._send_file(self.workspace._file(path[len(FILES) :]))
        elif path.startswith(FOLDERS):
            entries = self.workspace.entries(path[len(FOLDERS) :])
            start = int(query.get('page_token', 0))
            end = start + min(PAGE, int(query.get('page_size', PAGE)))
            more = {'next_page_token': str(end)} if end < len(entries) else {}
            self.answer_json(200, {'contents': entries[start:end], **more})
        elif path.startswith(DBFS):
            self.answer_json(200, self.workspace.dbfs(path[len(DBFS) :], dict(query)))
        elif path == '/.well-known/databricks-config':
            self.answer_json(200, {'oidc_endpoint': f'{self.workspace.host}/oidc', 'workspace_id': '1'})
        elif path == '/oidc/.well-known/oauth-authorization-server':
            base = f'{self.workspace.host}/oidc'
            self.answer_json(
                200, {'authorization_endpoint': f'{base}/v1/authorize', 'token_endpoint': f'{base}/v1/token'}
            )
        else:
            raise _RefusalError(404, 'ENDPOINT_NOT_FOUND', f'No API found for {path}.')

    def _head(self, path: str, query: dict[str, str]) -> None:
        del query
        if path.startswith(FOLDERS):
            self.workspace._require_folder(path[len(FOLDERS) :])
            self.answer(200, {}, b'')
        else:
            self._send_file(self.workspace._file(path[len(FILES) :]))

    def _send_file(self, file: _File) -> None:
        when = email.utils.formatdate(file.modified, usegmt=True)
        since = self.headers.get('If-Unmodified-Since')
        if since and email.utils.parsedate_to_datetime(since).timestamp() < int(file.modified):
            raise _RefusalError(412, 'PRECONDITION_FAILED', 'The file was modified.')
        headers = {'Last-Modified': when, 'Content-Type': 'application/octet-stream'}
        wanted = self.headers.get('Range')
        if not wanted:
            self.answer(200, headers, file.data)
            return
        first, _, last = wanted.removeprefix('bytes=').partition('-')
        data = file.data[int(first) : int(last) + 1 if last else None]
        if not data:
            raise _RefusalError(416, 'INVALID_RANGE', 'The range is outside of the file.')
        span = f'bytes {first}-{int(first) + len(data) - 1}/{len(file.data)}'
        self.answer(206, {**headers, 'Content-Range': span}, data)

    def _put(self, path: str, query: dict[str, str]) -> None:
        if path.startswith(FOLDERS):
            target = path[len(FOLDERS) :]
            self.workspace._require_folder('/'.join(target.split('/')[:5]))  # a volume cannot be made like this
            self.workspace._make_folders(target)
        else:
            target = path[len(FILES) :]
            if target in self.workspace.files and query.get('overwrite') != 'true':
                raise _RefusalError(409, 'ALREADY_EXISTS', f'{target} exists.')
            self.workspace._store(target, self.body)
        self.answer(204, {}, b'')

    def _delete(self, path: str, query: dict[str, str]) -> None:
        del query
        self.workspace._file(path[len(FILES) :])
        del self.workspace.files[path[len(FILES) :]]
        self.answer(204, {}, b'')

    def _post(self, path: str, query: dict[str, str]) -> None:
        del query
        if path == '/oidc/v1/token':
            self._send_token()
        else:
            self.answer_json(200, self.workspace.dbfs(path.removeprefix(DBFS), json.loads(self.body)))

    def _send_token(self) -> None:
        known = base64.b64encode(f'a-client:{self.workspace.client_secret}'.encode()).decode()
        if self.headers.get('Authorization') != f'Basic {known}':
            self.answer_json(401, {'error': 'invalid_client', 'error_description': 'Unknown client.'})
            return
        token = secrets.token_hex(8)
        seconds = self.workspace.token_seconds
        self.workspace.tokens.add(token)
        self.workspace.tokens_made += 1
        self.answer_json(200, {'access_token': token, 'token_type': 'Bearer', 'expires_in': int(seconds)})


@contextlib.contextmanager
def databricks_server() -> Generator[DatabricksServer]:
    """Run the server in a thread of this process."""
    workspace = DatabricksServer()
    handler = type('Handler', (_Handler,), {'workspace': workspace})
    with serving(handler) as server:
        workspace.host = f'http://127.0.0.1:{server.server_port}'
        yield workspace
