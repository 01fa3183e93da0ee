"""A Hugging Face Hub on the loopback interface: our server speaks the Hub's protocol to the real SDK.

It supports reading, listing and committing: resolved files with ranges, ETags and error codes; LFS files; trees in
pages; commits with uploads to LFS. LFS files redirect to URLs that refuse a token, like S3. It writes nothing to disk.
Set ``HF_HUB_DISABLE_XET=1`` for the SDK: the server has no Xet.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from headrace.storage.protocol import StoreOptions
from headrace.storage.stores.further.hf import HFStore
from tests.support.servers.in_process import Handler, serving

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ['HFServer', 'Repository', 'hf_server']

KINDS = ('datasets', 'models', 'spaces')
Files = dict[str, tuple[bytes, bool]]


@dataclass(slots=True)
class Repository:
    """A repository: its revisions and visibility."""

    revisions: dict[str, Files] = field(default_factory=lambda: {'main': Files()})
    """The files of each branch and commit: bytes, and whether LFS has them."""
    head: str = ''
    """The last commit of main."""
    private: bool = False
    gated: bool = False

    def commit(self, revision: str, files: Files) -> str:
        """Make a commit on a branch."""
        oid = secrets.token_hex(20)
        self.revisions[revision] = self.revisions[oid] = files
        self.head = oid
        return oid


@dataclass(slots=True)
class HFServer:
    """A running Hub."""

    endpoint_url: str
    token: str = field(default='hf_testtoken', repr=False)
    """It allows to read and write everything; nobody else may write."""
    lfs: bool = False
    """Put uploads into LFS."""
    page_size: int = 1000
    """Entries on one page of a tree."""
    ignored: str = '.ignored'
    """Endings of names that .gitignore excludes."""
    largest: int = 1 << 30
    """Maximum bytes of an object in LFS."""
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict[tuple[str, str], Repository])
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """LFS objects by hash."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self) -> dict[str, str]:
        """Environment variables for ``hf://`` URLs of this server."""
        return {'HF_ENDPOINT': self.endpoint_url, 'HF_TOKEN': self.token, 'HF_HUB_DISABLE_XET': '1'}

    def new_repository(self, kind: str = 'datasets', **how: Any) -> str:
        """Make an empty repository with a new name."""
        name = f'tester/headrace-{secrets.token_hex(6)}'
        self.repositories[kind, name] = Repository(**how)
        return name

    def store(
        self, repo: str, prefix: str = '', *, kind: str = 'datasets', revision: str = 'main', **options: Any
    ) -> HFStore:
        """A store of this server; the token is taken from the environment."""
        how = StoreOptions(endpoint_url=options.pop('endpoint_url', self.endpoint_url), **options)
        return HFStore(repo, prefix, how, kind=kind, revision=revision)


@contextlib.contextmanager
def hf_server(**how: Any) -> Generator[HFServer]:
    """Run a Hub in a thread of this process."""
    with serving(_Handler) as server:
        hub = HFServer(f'http://127.0.0.1:{server.server_port}', **how)
        server.hub = hub  # pyright: ignore[reportAttributeAccessIssue]
        yield hub


class _RefusalError(Exception):
    """An error as an answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(Handler):
    """One request."""

    @property
    def hub(self) -> HFServer:
        """The Hub of this server."""
        return self.server.hub  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def _objects_url(self) -> str:
        """URL of LFS files: another host, and the same port, so that a proxy in between sees them."""
        return f'http://localhost:{self.headers["Host"].rpartition(":")[2]}/lfs'

    def handle_any(self, body: bytes) -> None:
        """Answer."""
        try:
            self._route(body)
        except _RefusalError as error:
            headers = {'X-Error-Message': str(error)} | ({'X-Error-Code': error.code} if error.code else {})
            self.answer_json(error.status, {'error': str(error)}, headers)

    def _route(self, body: bytes) -> None:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip('/').split('/')]
        if parts[0] == 'lfs':
            self._serve_lfs(parts[1], body)
            return
        is_api = parts[0] == 'api'
        parts = parts[is_api:]
        kind = parts.pop(0) if parts[0] in KINDS else 'models'
        name, verb = '/'.join(parts[:2]), parts[2] if len(parts) > 2 else ''
        if name.endswith('.git'):
            self._repository(kind, name.removesuffix('.git'), writes=True)
            self._plan_lfs(json.loads(body), verifies=parts[-1] == 'verify')
            return
        repository = self._repository(kind, name, writes=verb in {'preupload', 'commit'})
        revision = parts[3] if len(parts) > 3 else 'main'
        if revision not in repository.revisions:
            raise _RefusalError(404, 'RevisionNotFound', f'Invalid rev id: {revision}')
        path = '/'.join(parts[4:])
        if verb == 'resolve':
            self._resolve(repository, revision, path)
        elif is_api and verb == 'tree':
            self._list(repository.revisions[revision], path, parse_qs(url.query))
        elif is_api and verb == 'preupload':
            mode = 'lfs' if self.hub.lfs else 'regular'
            files = json.loads(body)['files']
            told = [
                {'path': file['path'], 'uploadMode': mode, 'shouldIgnore': file['path'].endswith(self.hub.ignored)}
                for file in files
            ]
            self.answer_json(200, {'files': told})
        elif is_api and verb == 'commit':
            self._commit(repository, revision, [json.loads(line) for line in body.splitlines()])
        else:
            raise _RefusalError(404, '', 'Sorry, we cannot find the page you are looking for.')

    def _repository(self, kind: str, name: str, *, writes: bool) -> Repository:
        sent = self.headers.get('Authorization')
        known = sent == f'Bearer {self.hub.token}'
        if sent and not known:
            raise _RefusalError(401, '', 'Invalid credentials in Authorization header')
        repository = self.hub.repositories.get((kind, name))
        if repository is None or (repository.private and not known):
            # Like the Hub: anonymous users learn nothing.
            raise _RefusalError(404 if known else 401, 'RepoNotFound', 'Repository not found')
        if repository.gated:
            raise _RefusalError(403, 'GatedRepo', f'Access to {kind} {name} is restricted.')
        if writes and not known:
            raise _RefusalError(401, '', 'Invalid username or password.')
        return repository

    def _resolve(self, repository: Repository, revision: str, path: str) -> None:
        if path not in repository.revisions[revision]:
            raise _RefusalError(404, 'EntryNotFound', 'Entry not found')
        data, in_lfs = repository.revisions[revision][path]
        headers = {'X-Repo-Commit': repository.head, 'ETag': f'"{_git_oid(data)}"'}
        if not in_lfs:
            self._give(data, headers)
            return
        oid = hashlib.sha256(data).hexdigest()
        headers.update({'ETag': '"of the pointer"', 'X-Linked-ETag': f'"{oid}"', 'X-Linked-Size': str(len(data))})
        headers['Location'] = f'{self._objects_url}/{oid}'
        self.answer(302, headers, b'Found. Redirecting to the object.')

    def _serve_lfs(self, oid: str, body: bytes) -> None:
        if 'Authorization' in self.headers:
            raise _RefusalError(400, '', 'Only one auth mechanism allowed')
        if self.command == 'PUT':
            if hashlib.sha256(body).hexdigest() != oid:
                raise _RefusalError(400, '', 'BadDigest')
            self.hub.objects[oid] = body
            self.answer(200, {'ETag': '"of S3"'}, b'')
        elif oid in self.hub.objects:
            self._give(self.hub.objects[oid], {'ETag': '"of S3"'})
        else:
            raise _RefusalError(404, '', 'NoSuchKey')

    def _give(self, data: bytes, headers: dict[str, str]) -> None:
        """A file, or a range of it."""
        wanted = self.headers.get('Range')
        if wanted is None:
            self.answer(200, headers, data)
            return
        begin, _, last = wanted.removeprefix('bytes=').partition('-')
        part = data[int(begin) : int(last) + 1 if last else None]
        if part:
            headers['Content-Range'] = f'bytes {begin}-{int(begin) + len(part) - 1}/{len(data)}'
        self.answer(206 if part else 416, headers, part)

    def _list(self, files: Files, folder: str, query: dict[str, list[str]]) -> None:
        entries: list[dict[str, Any]] = [
            {'type': 'file', 'path': path, 'size': len(data), 'oid': _git_oid(data)}
            | (
                {'lfs': {'oid': hashlib.sha256(data).hexdigest(), 'size': len(data), 'pointerSize': 134}}
                if in_lfs
                else {}
            )
            for path, (data, in_lfs) in sorted(files.items())
            if path.startswith(f'{folder}/' if folder else '')
        ]
        if folder and not entries:
            raise _RefusalError(404, 'EntryNotFound', f'{folder} does not exist on this revision')
        folders = {entry['path'].rpartition('/')[0] for entry in entries} - {''}
        entries = [{'type': 'directory', 'path': path, 'size': 0, 'oid': ''} for path in folders] + entries
        begin = int(query.get('cursor', ['0'])[0])
        end = begin + self.hub.page_size
        headers = {}
        if len(entries) > end:
            path = quote(unquote(urlsplit(self.path).path))
            headers['Link'] = f'<http://{self.headers["Host"]}{path}?recursive=true&cursor={end}>; rel="next"'
        self.answer_json(200, entries[begin:end], headers)

    def _plan_lfs(self, request: dict[str, Any], *, verifies: bool) -> None:
        if verifies:
            arrived = len(self.hub.objects.get(request['oid'], b'')) == request['size']
            self.answer_json(200 if arrived else 404, {})
            return
        if any(wanted['size'] > self.hub.largest for wanted in request['objects']):
            refused = [wanted | {'error': {'code': 422, 'message': 'Too large'}} for wanted in request['objects']]
            self.answer_json(200, {'objects': refused})
            return
        verify = f'http://{self.headers["Host"]}{self.path.removesuffix("objects/batch")}verify'
        objects = [
            wanted
            | {'actions': {'upload': {'href': f'{self._objects_url}/{wanted["oid"]}'}, 'verify': {'href': verify}}}
            if wanted['oid'] not in self.hub.objects
            else wanted
            for wanted in request['objects']
        ]
        self.answer_json(200, {'transfer': 'basic', 'objects': objects})

    def _commit(self, repository: Repository, revision: str, lines: list[dict[str, Any]]) -> None:
        with self.hub.lock:
            files = dict(repository.revisions[revision])
            for line in lines:
                value = line['value']
                if line['key'] == 'file':
                    files[value['path']] = base64.b64decode(value['content']), False
                elif line['key'] == 'lfsFile':
                    files[value['path']] = self.hub.objects[value['oid']], True
                elif line['key'] == 'deletedFile' and files.pop(value['path'], None) is None:
                    raise _RefusalError(404, 'EntryNotFound', "A file with this name doesn't exist")
            oid = repository.commit(revision, files)
        url = f'{self.hub.endpoint_url}{self.path.removeprefix("/api").partition("/commit/")[0]}/commit/{oid}'
        self.answer_json(200, {'success': True, 'commitOid': oid, 'commitUrl': url})


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b'blob %d\0' % len(data) + data, usedforsecurity=False).hexdigest()
