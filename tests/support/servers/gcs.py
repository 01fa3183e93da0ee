"""Google Cloud Storage on the loopback interface.

``gcp-storage-emulator`` (PyPI) speaks the JSON API to Google's SDK, in memory. It asks for no credentials, ignores
preconditions, sends no generation with an object's bytes, and lists everything on one page. `gcs_gate`, a small server
in front of it, does these four things like Google.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
import sys
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from headrace.errors import MissingDependencyError
from headrace.storage.protocol import StoreOptions
from headrace.storage.stores.gcs import GCSStore
from tests.support.servers.in_process import Handler, serving
from tests.support.servers.process import free_port, running, wait_for_http

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ['GCSGate', 'GCSServer', 'gcs_emulator', 'gcs_gate', 'have_gcs_emulator']

AUDIENCE = 'https://oauth2.googleapis.com/token'
"""The audience of all claims of Google's SDK."""
INSTALL = 'pip install gcp-storage-emulator google-cloud-storage'


@dataclass(frozen=True, slots=True)
class GCSServer:
    """A running server without credentials."""

    endpoint_url: str

    def environment(self) -> dict[str, str]:
        """Environment variables for ``gs://`` URLs of this server."""
        return {'STORAGE_EMULATOR_HOST': self.endpoint_url}

    def new_bucket(self) -> str:
        """Make a bucket with a new name."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        name = f'headrace-{secrets.token_hex(6)}'
        settings = {'api_endpoint': self.endpoint_url}
        Client(project='test', credentials=AnonymousCredentials(), client_options=settings).create_bucket(name)
        return name

    def store(self, bucket: str, prefix: str = '', **options: Any) -> GCSStore:
        """A store of this server."""
        how: dict[str, Any] = {'endpoint_url': self.endpoint_url, 'anonymous': True, **options}
        return GCSStore(bucket, prefix, StoreOptions(**how))


def have_gcs_emulator() -> bool:
    """Whether the emulator and Google's SDK are installed."""
    try:
        return all(importlib.util.find_spec(name) for name in ('gcp_storage_emulator', 'google.cloud.storage'))
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def gcs_emulator() -> Generator[GCSServer]:
    """Run ``gcp-storage-emulator`` in a separate process."""
    if not have_gcs_emulator():
        raise MissingDependencyError(f'The emulator of Google Cloud Storage is not installed. Run: {INSTALL}')
    port = free_port()
    command = [sys.executable, '-m', 'gcp_storage_emulator', 'start', '--in-memory', '--quiet']
    with running([*command, '--host', '127.0.0.1', '--port', str(port)]) as process:
        wait_for_http(port, process)
        yield GCSServer(f'http://127.0.0.1:{port}')


@dataclass(slots=True)
class GCSGate:
    """A running gate: its tokens and limits."""

    endpoint_url: str
    emulator: GCSServer
    page_size: int = 1000
    """Maximum objects on one page of a listing."""
    tokens: set[str] = field(default_factory=set[str], repr=False)
    """Valid tokens; clear it to expire all."""
    issued: int = 0
    """Number of tokens issued so far."""
    public_key: bytes = b''
    """Key of the one service account that gets tokens."""

    def new_bucket(self) -> str:
        """Make a bucket with a new name."""
        return self.emulator.new_bucket()

    def store(self, bucket: str, prefix: str = '', **options: Any) -> GCSStore:
        """A store of this server; the credentials come from the options, or from google-auth's places."""
        return GCSStore(
            bucket, prefix, StoreOptions(endpoint_url=options.pop('endpoint_url', self.endpoint_url), **options)
        )

    def write_service_account(self, path: Path) -> None:
        """Make a service account and write its key; the previous one gets no further tokens."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.public_key = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        account = {
            'type': 'service_account',
            'project_id': 'test-project',
            'private_key_id': '1',
            'private_key': private.decode(),
            'client_email': 'reader@test-project.iam.gserviceaccount.com',
            'token_uri': f'{self.endpoint_url}/token',
        }
        path.write_text(json.dumps(account))

    def issue(self, assertion: str) -> str | None:
        """A token for a signed claim, or None if the signature or the claim is wrong."""
        from google.auth import jwt
        from google.auth.exceptions import GoogleAuthError

        try:
            jwt.decode(assertion, certs=self.public_key, audience=AUDIENCE)
        except (GoogleAuthError, ValueError):
            return None
        token = secrets.token_hex(16)
        self.tokens.add(token)
        self.issued += 1
        return token


@contextlib.contextmanager
def gcs_gate(emulator: GCSServer) -> Generator[GCSGate]:
    """Run the gate in front of an emulator in a thread of this process."""
    with serving(_Gatekeeper) as server:
        gate = GCSGate(f'http://127.0.0.1:{server.server_port}', emulator)
        server.gate = gate  # pyright: ignore[reportAttributeAccessIssue]
        yield gate


class _Gatekeeper(Handler):
    """One request."""

    @property
    def gate(self) -> GCSGate:
        return self.server.gate  # pyright: ignore[reportAttributeAccessIssue]

    def handle_any(self, body: bytes) -> None:
        """Answer."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path == '/token':
            self._give_token(parse_qs(body.decode()).get('assertion', [''])[0])
        elif self.headers.get('Authorization', '').removeprefix('Bearer ') not in self.gate.tokens:
            self.answer_json(401, {'error': {'code': 401, 'message': 'Invalid Credentials'}})
        elif query.get('alt') == 'media':
            self._give_object(url.path, query.get('ifGenerationMatch'))
        elif self.command == 'GET' and url.path.endswith('/o'):
            self._give_page(url.path, query)
        else:
            self.answer(*self._ask(self.path, body))

    def _give_token(self, assertion: str) -> None:
        token = self.gate.issue(assertion)
        if token is None:
            self.answer_json(400, {'error': 'invalid_grant', 'error_description': 'Invalid JWT Signature.'})
        else:
            self.answer_json(200, {'access_token': token, 'token_type': 'Bearer', 'expires_in': 3600})

    def _give_object(self, path: str, condition: str | None) -> None:
        status, _, found = self._ask(path.removeprefix('/download'))
        if status != 200:
            self.answer_json(status, {'error': {'code': status, 'message': 'No such object'}})
            return
        known = json.loads(found)
        if condition not in {None, known['generation']}:
            self.answer_json(412, {'error': {'code': 412, 'message': 'At least one of the pre-conditions failed'}})
        elif self._first_byte() >= max(1, int(known['size'])):
            self.answer(416, {'Content-Range': f'bytes */{known["size"]}'}, b'')
        else:
            status, headers, data = self._ask(self.path)
            self.answer(status, {**headers, 'x-goog-generation': known['generation']}, data)

    def _first_byte(self) -> int:
        return int(self.headers.get('Range', 'bytes=0-').removeprefix('bytes=').partition('-')[0])

    def _give_page(self, path: str, query: dict[str, str]) -> None:
        begin = int(query.pop('pageToken', 0))
        end = begin + min(self.gate.page_size, int(query.get('maxResults', self.gate.page_size)))
        status, headers, data = self._ask(f'{path}?{urlencode(query)}')
        if status != 200:
            self.answer(status, headers, data)
            return
        found = json.loads(data)
        page: dict[str, Any] = {**found, 'items': found.get('items', [])[begin:end]}
        if len(found.get('items', [])) > end:
            page['nextPageToken'] = str(end)
        self.answer_json(200, page)

    def _ask(self, path: str, body: bytes = b'') -> tuple[int, dict[str, str], bytes]:
        """The emulator's answer."""
        upstream = HTTPConnection(self.gate.emulator.endpoint_url.removeprefix('http://'), timeout=60)
        kept = {name: value for name, value in self.headers.items() if name.lower() != 'connection'}
        with contextlib.closing(upstream):
            upstream.request(self.command, path, body=body, headers=kept)
            answer = upstream.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
