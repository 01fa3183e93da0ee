"""Repositories of the Hugging Face Hub: ``hf://datasets/ORG/REPO[@REVISION]/path``, or ``models`` or ``spaces``.

A revision is a branch (``main`` by default), a tag or a commit; ``refs/pr/N`` and ``refs/convert/NAME`` are written as
they are, other slashes as ``%2F``. Only a commit stays the same while somebody else writes: name one for a long run.

The token is found as huggingface_hub finds it, anew for each request: ``HF_TOKEN`` (or ``HUGGING_FACE_HUB_TOKEN``),
else the file that ``hf auth login`` wrote (``HF_TOKEN_PATH``, ``HF_HOME``); none if ``StoreOptions.anonymous``. The
server is ``StoreOptions.endpoint_url``, else ``HF_ENDPOINT``. Bytes come over plain HTTP with ranges, through the
session of huggingface_hub and its proxies. A version (etag) is the hash of the object's content, by git or LFS.

`put` and `delete` make a commit each. The Hub allows about a hundred commits an hour, so upload a dataset as a whole
folder (``hf upload-large-folder``). There are no ``StoreOptions.extra``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from headrace.errors import ConfigError, StorageError
from headrace.storage.protocol import ObjectInfo, StoreOptions
from headrace.storage.resolve import split_url
from headrace.storage.stores.hf_http import LINKED_ETAG, UploadBody
from headrace.storage.stores.hf_repository import KINDS, HubRepository
from headrace.storage.transfer.answer_bounds import items_of
from headrace.storage.transfer.http_body import ReadRequest, described
from headrace.storage.transfer.sealed_errors import sealed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

__all__ = ['HFStore', 'open_hf_store']

URL: Final = re.compile(
    r'(?P<kind>datasets|models|spaces)/(?P<repo>[\w.-]+/[\w.-]+)'
    r'(?:@(?P<revision>refs/(?:convert/[^/]+|pr/\d+)|[^/]+))?(?:/(?P<prefix>.*))?'
)
SAMPLE: Final = 512
"""Bytes of a file by which the Hub tells whether it is text."""


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
    return HFStore(found['repo'], found['prefix'] or '', options, kind=found['kind'], revision=revision)


@sealed
class HFStore(HubRepository):
    """Files of one revision of a repository, below a folder."""

    def get(self, key: str, out: BinaryIO, *, offset: int = 0, size: int | None = None, etag: str | None = None) -> str:
        """See `Store.get`."""
        where, wanted = self._where(key), ReadRequest(f'{self.url}/{key}', offset, size, etag)
        if size == 0:
            return ''
        headers = {'Range': wanted.range} if wanted.range else {}
        with self._ask('Reading', key, 'GET', where, headers=headers, accepted={200, 206, 416}) as answer:
            if answer.status == 416:
                return wanted.nothing_left(self.head(key))
            chunks = answer.chunks()
            return wanted.receive(
                lambda: next(chunks, b''),
                out,
                # The name of a version is the hash of its bytes, so what a redirection leads to cannot be another one.
                etag=answer.etag,
                length=answer.headers.get('content-length'),
                part=answer.headers.get('content-range', '') if answer.status == 206 else None,
                mapped_errors=lambda: self._mapped_errors('Reading', key, etag=answer.etag or None),
            )

    def put(self, key: str, source: BinaryIO, *, size: int) -> None:
        """See `Store.put`; it makes a commit. A file that the Hub does not keep in LFS is held in memory."""
        path = self._names.of_key(key)
        body = UploadBody(source, size)
        sample = body.read(SAMPLE)
        digest = hashlib.sha256(sample)
        for chunk in body:
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
        """See `Store.head`."""

        def describes(headers: Mapping[str, str]) -> bool:
            return LINKED_ETAG in headers

        accepted = {200, 301, 302, 303, 307, 308}
        with self._ask('Looking up', key, 'HEAD', self._where(key), accepted=accepted, until=describes) as answer:
            size = answer.headers.get('x-linked-size') or answer.headers.get('content-length')
            return described(key, f'{self.url}/{key}', size, answer.etag)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Store.list`."""
        where = self._names.of_prefix(prefix)
        folder = where.rpartition('/')[0]
        tree = f'{self._api()}/tree/{self._quoted_revision}' + (f'/{quote(folder)}' if folder else '')

        def pages() -> Iterator[list[dict[str, Any]]]:
            query = 'recursive=true&expand=false'
            while query:
                with self._ask('Listing', prefix, 'GET', f'{tree}?{query}', accepted={200}, absent_ok=True) as answer:
                    if answer.lacks_entry:
                        return
                    page = self._read_json('Listing', prefix, answer)
                    following = re.search(r'<([^>]*)>;\s*rel="next"', answer.headers.get('link', ''))
                yield page
                # The pages of a mirror may name the Hub: what counts is where they continue.
                query = urlsplit(following[1]).query if following else ''

        found = [
            ObjectInfo(self._names.key(item['path']), item['size'], (item.get('lfs') or item)['oid'])
            for item in items_of(f'{self.url}/{prefix}', pages(), lambda item: item['path'])
            if item['type'] == 'file' and item['path'].startswith(where)
        ]
        # The Hub's order is git's, in which the folder "a" comes after the file "a.b".
        yield from sorted(found, key=lambda info: info.key)

    def delete(self, key: str) -> None:
        """See `Store.delete`; it makes a commit."""
        path = self._names.of_key(key)
        self._commit('Deleting', key, f'Delete {path}', 'deletedFile', {'path': path})

    def _where(self, key: str) -> str:
        return f'{self._site()}/resolve/{self._quoted_revision}/{quote(self._names.of_key(key))}'
