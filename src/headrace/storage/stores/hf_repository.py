"""A repository of the Hugging Face Hub: its address, requests to it, and the errors among its answers.

Commits are requests of our own: those of `HfApi.create_commit` have no time-outs, and some are repeated for half a
minute before anybody hears of a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from headrace.error_mapping import mapping_errors
from headrace.errors import ConfigError, MissingDependencyError, StorageError
from headrace.storage.protocol import Names, StoreOptions, check_extra
from headrace.storage.stores.hf_http import Answer, UploadBody, network_errors, send
from headrace.storage.transfer.http_errors import error_of_status
from headrace.storage.transfer.process_local import PerProcess
from headrace.storage.transfer.retry import BrokenTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

__all__ = ['KINDS', 'HubRepository']

KINDS: Final = {'datasets': 'dataset', 'models': 'model', 'spaces': 'space'}
LFS: Final = {'Accept': 'application/vnd.git-lfs+json', 'Content-Type': 'application/vnd.git-lfs+json'}
CONFLICTS: Final = {409, 412}
"""Statuses of a commit that another one came before."""


class _Hub(NamedTuple):
    """The server, as a process reaches it."""

    endpoint: str
    network_errors: tuple[type[Exception], ...]


class HubRepository:
    """One revision of a repository, and a folder of it."""

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
        self._names = Names(prefix)
        self.prefix = self._names.prefix
        self.options = options or StoreOptions()
        self.kind = kind
        self.revision = revision
        check_extra(self.options, (), 'a store of the Hugging Face Hub')
        self._connection = PerProcess(self._connect)

    @property
    def url(self) -> str:
        """The root."""
        revision = '' if self.revision == 'main' else f'@{self.revision}'
        return f'hf://{self.kind}/{self.repo}{revision}/{self.prefix}'.rstrip('/')

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.url!r})'

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
        try:
            from huggingface_hub import constants
        except ImportError as error:
            raise MissingDependencyError(
                f'{self.url} needs huggingface_hub, which is not installed. Run: pip install "headrace[hf]"'
            ) from error
        endpoint = self.options.endpoint_url or os.environ.get('HF_ENDPOINT') or constants.ENDPOINT
        if not re.fullmatch(r'https?://[^/\s]+(/\S*)?', endpoint):
            raise ConfigError(
                f'An endpoint of the Hugging Face Hub is a URL such as https://huggingface.co; got {endpoint!r}. '
                f'Correct it (options, HF_ENDPOINT).'
            )
        return _Hub(endpoint.rstrip('/'), network_errors())

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
        body: UploadBody | bytes | None = None,
        until: Callable[[Mapping[str, str]], bool] = lambda _: False,
        signed: bool = True,
        absent_ok: bool = False,
    ) -> Generator[Answer]:
        """The answer to one request, with one of the statuses that are accepted, or that says that no file is there."""
        timeout = self.options.connect_timeout, self.options.read_timeout
        with contextlib.ExitStack() as stack:
            with self._mapped_errors(doing, key):
                headers = {**(self._headers() if signed else {}), **(headers or {})}
                seconds = self.options.answer_seconds
                answer = stack.enter_context(
                    send(method, url, headers, timeout=timeout, seconds=seconds, body=body, until=until)
                )
                if answer.status not in accepted and not (absent_ok and answer.lacks_entry):
                    raise self._from_answer(doing, key, answer)
            yield answer

    def _read_json(self, doing: str, key: str, answer: Answer) -> Any:
        with self._mapped_errors(doing, key):
            data = answer.read()
        try:
            return json.loads(data)
        except ValueError as error:
            raise StorageError(
                f'{doing} {self.url}/{key}: {answer.url} answered with something else than JSON. Check the endpoint.'
            ) from error

    def _post(self, doing: str, key: str, url: str, content: object, headers: Mapping[str, str] | None = None) -> Any:
        body = json.dumps(content).encode()
        headers = {'Content-Type': 'application/json', **(headers or {})}
        with self._ask(doing, key, 'POST', url, headers=headers, body=body, accepted={200}) as answer:
            return self._read_json(doing, key, answer)

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
            answer.read()

    def _upload(self, key: str, body: UploadBody, oid: str) -> None:
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

    @mapping_errors
    def _mapped_errors(self, doing: str, key: str, *, etag: str | None = None) -> Generator[None]:
        """Turn what the session's library raises into headrace's exceptions."""
        hub = self._connection.get()
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            yield
        except StorageError:
            raise
        except OfflineModeIsEnabled as error:
            raise ConfigError(
                f'{doing} {self.url}/{key} needs the network, and HF_HUB_OFFLINE forbids it. Unset it, or give a '
                f'local copy instead of the URL.'
            ) from error
        except hub.network_errors as error:
            raise BrokenTransferError.at(
                f'{doing} {self.url}/{key} at {hub.endpoint} broke: {type(error).__name__}: {error}.', etag=etag
            ) from error

    def _from_answer(self, doing: str, key: str, answer: Answer) -> Exception:
        code, text = answer.headers.get('x-error-code', ''), answer.headers.get('x-error-message', '')
        if not text:
            with contextlib.suppress(*self._connection.get().network_errors):
                text = answer.read(2000).decode(errors='replace').strip()[:500]
        endpoint, kind = self._connection.get().endpoint, KINDS[self.kind]
        url, what = f'{self.url}/{key}', f'{doing} {self.url}/{key} at {endpoint}: {answer.status} {code} {text}'

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

        if answer.status in CONFLICTS:
            return BrokenTransferError.at(f'{what}. Another commit came before it.')
        remedy = (
            f'Accept its conditions at {self._site()}.'
            if code == 'GatedRepo'
            else f'The {kind} is private or does not exist, or the token may not do this: set HF_TOKEN, or run '
            f'"hf auth login", and check the URL.'
        )
        return error_of_status(
            answer.status,
            what.rstrip('. '),
            url=url,
            absent=absent,
            credentials=self._credentials,
            remedy=remedy,
            retry_after=answer.retry_after,
        )
