"""Repositories of the Hugging Face Hub: ``hf://datasets/ORG/REPO[@REVISION]/path``, or ``models`` or ``spaces``.

A revision is a branch (``main`` by default), a tag or a commit; ``refs/pr/N`` and ``refs/convert/NAME`` are written as
they are, other slashes as ``%2F``. Only a commit stays the same while somebody else writes: name one for a long run.

Each request takes the token where huggingface_hub finds it: ``HF_TOKEN`` (or ``HUGGING_FACE_HUB_TOKEN``), else the file
that ``hf auth login`` wrote (``HF_TOKEN_PATH``, ``HF_HOME``); none if ``StoreOptions.anonymous``. The server is
``StoreOptions.endpoint_url``, else ``HF_ENDPOINT``. Bytes come over plain HTTP with ranges. A version (etag) is the
hash of the object's content, by git or LFS.

`put` and `delete` make a commit each. The Hub allows about a hundred commits an hour, so upload a dataset as a whole
folder (``hf upload-large-folder``). ``StoreOptions.extra`` is not supported.

The requests are our own. huggingface_hub 0.36 has no time-outs for listings and commits, and repeats some requests for
half a minute before anybody hears of a failure. Its `HfFileSystem` asks the Hub's API, whose rate limit is a fifth of
that of files, about each file that it opens, holds a range in memory, and does not notice a file that is replaced.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from headrace.errors import ConfigError, StorageError, import_optional
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.bucket import Body, BucketStore
from headrace.storage.transfer.answer_bounds import items_of
from headrace.storage.transfer.http import (
    CHUNK,
    ReadRequest,
    SourcePart,
    described,
    error_of_status,
    new_session,
    read_json,
    unchanged,
)
from headrace.storage.transfer.retry import BrokenTransferError
from headrace.storage.transfer.sealed_errors import sealed

REDIRECTS = 5
LINKED_ETAG = 'x-linked-etag'  # The header with which the Hub names the version of an object that lies elsewhere.

KINDS: Final = {'datasets': 'dataset', 'models': 'model', 'spaces': 'space'}

LFS: Final = {'Accept': 'application/vnd.git-lfs+json', 'Content-Type': 'application/vnd.git-lfs+json'}

CONFLICTS: Final = {409, 412}  # Statuses of a commit that another one came before.

URL: Final = re.compile(
    r'(?P<kind>datasets|models|spaces)/(?P<repo>[\w.-]+/[\w.-]+)'
    r'(?:@(?P<revision>refs/(?:convert/[^/]+|pr/\d+)|[^/]+))?(?:/(?P<prefix>.*))?'
)

SAMPLE: Final = 512  # Bytes of a file by which the Hub tells whether it is text.


def etag_of(answer: Any) -> str:
    """The version of an object. The Hub's redirection to where the object is describes it."""
    hub = next((each.headers for each in (*answer.history, answer) if LINKED_ETAG in each.headers), answer.headers)
    return (hub.get(LINKED_ETAG) or hub.get('etag', '')).removeprefix('W/').strip('"')


def retry_after(headers: Mapping[str, str]) -> str | None:
    """The seconds to wait, if an answer says so; ``RateLimit: "api";r=0;t=55`` means that none are left for 55."""
    limit = re.search(r';\s*t=(\d+)', headers.get('ratelimit', ''))
    return headers.get('retry-after') or (limit[1] if limit else None)


def lacks_entry(answer: Any) -> bool:
    """Whether it says that the repository and its revision are there, but not the file or folder."""
    return answer.status_code == 404 and answer.headers.get('x-error-code') == 'EntryNotFound'


class _Hub(NamedTuple):
    """The server, as a process reaches it."""

    endpoint: str
    session: Any


def open_hf_store(url: str, options: StoreOptions) -> HFStore:
    """The store for ``hf://datasets/ORG/REPO@REVISION/prefix``."""
    found = URL.fullmatch(split_url(url)[1])
    if not found:
        raise ConfigError(
            f'A URL of the Hugging Face Hub names a kind, an owner and a repository, as in '
            f'hf://datasets/ORG/REPO/path or hf://datasets/ORG/REPO@REVISION/path; kinds are {sorted(KINDS)}; '
            f'got {url!r}. Correct it.'
        )
    revision = unquote(found['revision'] or 'main')
    return HFStore(found['repo'], (found['prefix'] or '').strip('/'), options, kind=found['kind'], revision=revision)


@sealed
class HFStore(BucketStore):
    """Files of one revision of a repository, below a folder."""

    def __init__(
        self,
        repo: str,
        prefix: str = '',
        options: StoreOptions | None = None,
        *,
        kind: str = 'datasets',
        revision: str = 'main',
    ) -> None:
        self.repo = repo
        super().__init__(prefix, options, extra=(), title='a store of the Hugging Face Hub')
        self.kind = kind
        self.revision = revision

    @property
    def url(self) -> str:
        revision = '' if self.revision == 'main' else f'@{self.revision}'
        return f'hf://{self.kind}/{self.repo}{revision}/{self.prefix}'.rstrip('/')

    def _open(self, name: str, wanted: ReadRequest) -> Body | None:
        headers = {'Range': wanted.range} if wanted.range else {}
        with contextlib.ExitStack() as stack:
            answer = stack.enter_context(
                self._ask(
                    'Reading', self._key(name), 'GET', self._where(name), headers=headers, accepted={200, 206, 416}
                )
            )
            if answer.status_code == 416:
                return None
            close = stack.pop_all().close
        return Body(
            lambda: answer.raw.read(CHUNK, decode_content=False),
            close,
            # The name of a version is the hash of its bytes, so what a redirection leads to cannot be another one.
            etag_of(answer),
            answer.headers.get('content-length'),
            answer.headers.get('content-range', '') if answer.status_code == 206 else None,
        )

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`; it makes a commit. A file that the Hub does not keep in LFS is held in memory."""
        path = self._name(key)
        body = SourcePart(source, size)
        sample = body.read(SAMPLE)
        digest = hashlib.sha256(sample)
        while chunk := body.read(CHUNK):
            digest.update(chunk)
        body.seek(0)
        file = {'path': path, 'size': size, 'sample': base64.b64encode(sample).decode()}
        plan = self._post('Writing', key, f'{self._api()}/preupload/{self._quoted_revision}', {'files': [file]})
        if plan['files'][0].get('shouldIgnore'):
            raise StorageError(f'{self.url}/{key} is a file that .gitignore of the repository excludes. Change that.')
        # The Hub keeps no empty files in LFS.
        if plan['files'][0]['uploadMode'] == 'lfs' and size:
            self._upload(key, body, digest.hexdigest())
            value = {'path': path, 'algo': 'sha256', 'oid': digest.hexdigest(), 'size': size}
            self._commit('Writing', key, f'Upload {path}', 'lfsFile', value)
        else:
            content = base64.b64encode(body.read()).decode()
            self._commit(
                'Writing', key, f'Upload {path}', 'file', {'path': path, 'encoding': 'base64', 'content': content}
            )

    def head(self, key: str) -> ObjectInfo:
        where = self._where(self._name(key))
        for _ in range(REDIRECTS + 1):
            with self._ask('Looking up', key, 'HEAD', where, accepted={200, 301, 302, 303, 307, 308}) as answer:
                if LINKED_ETAG in answer.headers or answer.status_code == 200:
                    size = answer.headers.get('x-linked-size') or answer.headers.get('content-length')
                    return described(key, f'{self.url}/{key}', size, etag_of(answer))
                target = urljoin(where, answer.headers.get('location', ''))
            if urlsplit(target)[:2] != urlsplit(where)[:2]:
                break
            where = target
        raise StorageError(f'{self.url}/{key} is redirected, and no answer describes it. Check the endpoint.')

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        where = self._name_prefix(prefix)
        folder = where.rpartition('/')[0]
        tree = f'{self._api()}/tree/{self._quoted_revision}' + (f'/{quote(folder)}' if folder else '')

        def pages() -> Iterator[list[dict[str, Any]]]:
            query = 'recursive=true&expand=false'
            while query:
                with self._ask('Listing', prefix, 'GET', f'{tree}?{query}', accepted={200}, absent_ok=True) as answer:
                    if lacks_entry(answer):
                        return
                    page = self._json('Listing', prefix, answer)
                    following = re.search(r'<([^>]*)>;\s*rel="next"', answer.headers.get('link', ''))
                yield page
                # The pages of a mirror may name the Hub: what counts is where they continue.
                query = urlsplit(following[1]).query if following else ''

        found = [
            ObjectInfo(self._key(item['path']), item['size'], (item.get('lfs') or item)['oid'])
            for item in items_of(f'{self.url}/{prefix}', pages(), lambda item: item['path'])
            if item['type'] == 'file' and item['path'].startswith(where)
        ]
        # The Hub's order is git's, in which the folder "a" comes after the file "a.b".
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """See `Store.delete`; it makes a commit."""
        path = self._name(key)
        self._commit('Deleting', key, f'Delete {path}', 'deletedFile', {'path': path})

    def _where(self, name: str) -> str:
        return f'{self._site()}/resolve/{self._quoted_revision}/{quote(name)}'

    def _site(self) -> str:
        """The repository's page, below which its files are."""
        folder = '' if self.kind == 'models' else f'{self.kind}/'
        return f'{self._connection.get().endpoint}/{folder}{self.repo}'

    def _api(self) -> str:
        return f'{self._connection.get().endpoint}/api/{self.kind}/{self.repo}'

    @property
    def _quoted_revision(self) -> str:
        return quote(self.revision, safe='')

    def _connect(self) -> _Hub:
        import_optional('huggingface_hub', f'{self.url} needs huggingface_hub', 'hf')
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise ConfigError(
                f'{self.url} needs the network, and HF_HUB_OFFLINE forbids it. Unset it, or give a local copy instead '
                f'of the URL.'
            )
        endpoint = self.options.endpoint_url or os.environ.get('HF_ENDPOINT') or constants.ENDPOINT
        if not re.fullmatch(r'https?://[^/\s]+(/\S*)?', endpoint):
            raise ConfigError(
                f'An endpoint of the Hugging Face Hub is a URL such as https://huggingface.co; got {endpoint!r}. '
                f'Correct it (options, HF_ENDPOINT).'
            )
        session = new_session(self.options, self._pool)
        session.max_redirects = REDIRECTS
        return _Hub(endpoint.rstrip('/'), session)

    def _headers(self) -> dict[str, str]:
        from huggingface_hub.utils import build_hf_headers  # pyright: ignore[reportPrivateImportUsage]

        return build_hf_headers(token=False if self.options.anonymous else None, user_agent='headrace')

    def _credentials(self) -> str:
        """Which token the requests are made with, without saying what it is."""
        from huggingface_hub import constants

        if self.options.anonymous:
            return 'no token (anonymous)'
        if 'authorization' not in self._headers():
            return f'no token (none in HF_TOKEN, none in {constants.HF_TOKEN_PATH})'
        for name in ('HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'):
            if os.environ.get(name):
                return f'the token in {name}'
        return f'the token in {constants.HF_TOKEN_PATH}'

    @contextlib.contextmanager
    def _ask(
        self,
        doing: str,
        key: str,
        method: str,
        url: str,
        *,
        accepted: set[int],
        headers: Mapping[str, str] | None = None,
        body: SourcePart | bytes | None = None,
        signed: bool = True,
        absent_ok: bool = False,
    ) -> Generator[Any]:
        """The answer to one request, with one of the statuses that are accepted, or that says that no file is there.

        Its body has not been read. The token does not go to another server that the Hub redirects to.
        """
        with contextlib.ExitStack() as stack:
            with self._mapped_errors(doing, key):
                # Bytes are wanted as they are stored, and their number as it is.
                sent = {**(self._headers() if signed else {}), 'Accept-Encoding': 'identity', **(headers or {})}
                answer = self._connection.get().session.request(
                    method,
                    url,
                    headers=sent,
                    data=body,
                    auth=unchanged,
                    stream=True,
                    allow_redirects=method == 'GET',
                    timeout=(self.options.connect_timeout, self.options.read_timeout),
                )
                stack.callback(answer.close)
                if answer.status_code not in accepted and not (absent_ok and lacks_entry(answer)):
                    raise self._from_answer(doing, key, answer)
            yield answer

    def _json(self, doing: str, key: str, answer: Any) -> Any:
        with self._mapped_errors(doing, key):
            return read_json(answer, f'{doing} {self.url}/{key}: {answer.url}', 'Check the endpoint.')

    def _post(self, doing: str, key: str, url: str, content: object, headers: Mapping[str, str] | None = None) -> Any:
        body = json.dumps(content).encode()
        headers = {'Content-Type': 'application/json', **(headers or {})}
        with self._ask(doing, key, 'POST', url, headers=headers, body=body, accepted={200}) as answer:
            return self._json(doing, key, answer)

    def _commit(self, doing: str, key: str, summary: str, action: str, value: Mapping[str, object]) -> None:
        lines = (
            {'key': 'header', 'value': {'summary': summary, 'description': ''}},
            {'key': action, 'value': value},
        )
        url, headers = f'{self._api()}/commit/{self._quoted_revision}', {'Content-Type': 'application/x-ndjson'}
        body = b''.join(json.dumps(line).encode() + b'\n' for line in lines)
        absent_ok = action == 'deletedFile'
        with (
            self._ask(
                doing, key, 'POST', url, headers=headers, body=body, accepted={200, 201}, absent_ok=absent_ok
            ) as answer,
            self._mapped_errors(doing, key),
        ):
            _ = answer.content

    def _upload(self, key: str, body: SourcePart, oid: str) -> None:
        """Give the bytes to LFS; a commit names them afterwards."""
        wanted = {
            'operation': 'upload',
            'transfers': ['basic'],
            'objects': [{'oid': oid, 'size': len(body)}],
            'hash_algo': 'sha256',
            'ref': {'name': self.revision},
        }
        plan = self._post('Writing', key, f'{self._site()}.git/info/lfs/objects/batch', wanted, LFS)['objects'][0]
        actions = plan.get('actions') or {}
        header = actions.get('upload', {}).get('header') or {}
        if 'error' in plan or 'chunk_size' in header:
            reason = plan['error'].get('message') if 'error' in plan else 'it is too large for one request'
            raise StorageError(
                f'Writing {self.url}/{key}: the Hub takes no {len(body)} bytes: {reason}. Write smaller shards, or '
                f'upload the folder with "hf upload-large-folder".'
            )
        if 'upload' in actions:
            # Signed in itself, and not the Hub's: it does not get the token.
            href = actions['upload']['href']
            with self._ask('Writing', key, 'PUT', href, headers=header, body=body, accepted={200, 201}, signed=False):
                pass
        if 'verify' in actions:
            url, content = actions['verify']['href'], json.dumps({'oid': oid, 'size': len(body)}).encode()
            with self._ask('Writing', key, 'POST', url, headers=LFS, body=content, accepted={200}):
                pass

    def _server(self) -> str:
        return self._connection.get().endpoint

    def _explained(self, doing: str, key: str, error: Exception, connection: _Hub) -> None: ...

    def _from_answer(self, doing: str, key: str, answer: Any) -> Exception:
        code, text = answer.headers.get('x-error-code', ''), answer.headers.get('x-error-message', '')
        if not text:
            with contextlib.suppress(*self._network_errors()):
                text = answer.text.strip()[:500]
        endpoint, kind = self._connection.get().endpoint, KINDS[self.kind]
        url, what = f'{self.url}/{key}', f'{doing} {self.url}/{key} at {endpoint}: {answer.status_code} {code} {text}'

        def absent() -> str:
            reason = f'{endpoint} does not say whether the {kind} {self.repo!r} exists: {text}'
            if code == 'RepoNotFound':
                reason = (
                    f'the {kind} {self.repo!r} does not exist at {endpoint}, or it is private and hidden from '
                    f'requests with {self._credentials()}'
                )
            elif code == 'RevisionNotFound':
                reason = f'the {kind} {self.repo!r} exists at {endpoint}, but not its revision {self.revision!r}'
            elif code == 'EntryNotFound':
                reason = f'the {kind} {self.repo!r} exists at {endpoint}, but {self.revision!r} has no such file'
            return f'{reason}. Check the URL and the endpoint (options, HF_ENDPOINT).'

        if answer.status_code in CONFLICTS:
            return BrokenTransferError.at(f'{what}. Another commit came before it.')
        remedy = (
            f'Accept its conditions at {self._site()}.'
            if code == 'GatedRepo'
            else f'The {kind} is private or does not exist, or the token may not do this: set HF_TOKEN, or run '
            f'"hf auth login", and check the URL.'
        )
        return error_of_status(
            answer.status_code,
            what.rstrip('. '),
            url=url,
            absent=absent,
            credentials=self._credentials,
            remedy=remedy,
            retry_after=retry_after(answer.headers),
        )
