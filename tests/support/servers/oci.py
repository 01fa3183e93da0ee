"""Oracle's Object Storage on the loopback interface.

No emulator exists, so this is our own server, in memory. It answers a store's few requests as the service is
documented. It verifies the RSA signatures of the real SDK: signer, content and time.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import secrets
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from headrace.storage.protocol import StoreOptions
from headrace.storage.stores.further.oci import OCIStore
from tests.support.servers.in_process import Handler, serving

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ['OCIServer', 'oci_server']

TENANCY = 'ocid1.tenancy.oc1..headrace'
USER = 'ocid1.user.oc1..headrace'
SECONDS_OF_SKEW = 300


class _Object(NamedTuple):
    data: bytes
    etag: str
    encoding: str | None


@dataclass(slots=True)
class OCIServer:
    """A running server and its content."""

    port: int = 0
    namespace: str = 'headracespace'
    page: int = 1000
    """Maximum objects on one page of a listing."""
    keys: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Public keys by key id."""
    buckets: dict[str, dict[str, _Object]] = field(default_factory=dict[str, dict[str, _Object]])
    public: set[str] = field(default_factory=set[str])
    """Buckets that anybody may read."""

    @property
    def endpoint_url(self) -> str:
        """The URL at which it listens."""
        return f'http://127.0.0.1:{self.port}'

    def new_bucket(self, *, public: bool = False) -> str:
        """Make a bucket with a new name."""
        name = f'headrace-{secrets.token_hex(6)}'
        self.buckets[name] = {}
        if public:
            self.public.add(name)
        return name

    def new_key(self, folder: Path, *, name: str = '', passphrase: str = '') -> tuple[Path, str]:
        """Make a private key that the server accepts.

        Args:
            folder: The folder of the key's file.
            name: Its name in signatures; '' for a user's API key, whose name is its fingerprint.
            passphrase: The file's passphrase.

        Returns:
            The file, and the fingerprint.
        """
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        lock = form.BestAvailableEncryption(passphrase.encode()) if passphrase else form.NoEncryption()
        file = folder / f'{secrets.token_hex(4)}.pem'
        file.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock))
        file.chmod(0o600)
        public = key.public_key().public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
        digest = hashlib.md5(public, usedforsecurity=False).hexdigest()
        fingerprint = ':'.join(digest[i : i + 2] for i in range(0, 32, 2))
        self.keys[name or f'{TENANCY}/{USER}/{fingerprint}'] = key.public_key()
        return file, fingerprint

    def write_profile(self, folder: Path, profile: str = 'DEFAULT', **entries: str) -> Path:
        """Write a file of profiles with a key that this server knows; ``entries`` replace its own."""
        key, fingerprint = self.new_key(folder)
        own = {'user': USER, 'tenancy': TENANCY, 'fingerprint': fingerprint, 'key_file': str(key)}
        own['region'] = 'us-ashburn-1'
        file = folder / f'config-{secrets.token_hex(4)}'
        file.write_text(f'[{profile}]\n' + ''.join(f'{name}={value}\n' for name, value in {**own, **entries}.items()))
        file.chmod(0o600)
        return file

    def store(self, bucket: str, prefix: str = '', *, namespace: str | None = None, **options: Any) -> OCIStore:
        """A store of this server; with the configured credentials."""
        endpoint = options.pop('endpoint_url', self.endpoint_url)
        place = self.namespace if namespace is None else namespace
        return OCIStore(bucket, prefix, StoreOptions(endpoint_url=endpoint, **options), namespace=place)


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Handler(Handler):
    """Objects, listings and the namespace."""

    state: ClassVar[OCIServer]

    def handle_any(self, body: bytes) -> None:
        try:
            self._route(body)
        except _RefusedError as refused:
            self.answer_json(refused.status, {'code': refused.code, 'message': refused.message})

    def _route(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        found = re.fullmatch(r'/n/?(?:([^/]+)(?:/b/([^/]+)(?:/o(?:/(.+))?)?)?)?', parts.path)
        if found is None:
            raise _RefusedError(404, 'NotFound', f'no such path: {parts.path}')
        namespace, bucket, name = (text and unquote(text) for text in found.groups())
        reading = self.command in {'GET', 'HEAD'}
        if not (reading and bucket in self.state.public and 'Authorization' not in self.headers):
            self._verify()
        if bucket is None:
            return self.answer_json(200, self.state.namespace)
        objects = self.state.buckets.get(bucket)
        if namespace != self.state.namespace or objects is None:
            message = f"Either the bucket named '{bucket}' does not exist in the namespace '{namespace}' or you are not"
            raise _RefusedError(404, 'BucketNotFound', f'{message} authorized to access it')
        if name is None:
            if parts.path.endswith('/o'):
                return self._list(objects, {key: value[0] for key, value in parse_qs(parts.query).items()})
            return self.answer(200, {'ETag': 'bucket'}, b'')
        if self.command == 'PUT':
            version = _Object(body, secrets.token_hex(8), self.headers.get('Content-Encoding'))
            objects[name] = version
            return self.answer(200, {'ETag': version.etag}, b'')
        if name not in objects:
            raise _RefusedError(404, 'ObjectNotFound', f"The object '{name}' was not found in the bucket '{bucket}'")
        if self.command == 'DELETE':
            objects.pop(name, None)
            return self.answer(204, {}, b'')
        return self._read(objects[name])

    def _read(self, version: _Object) -> None:
        if self.headers.get('If-Match', version.etag) != version.etag:
            raise _RefusedError(412, 'IfMatchFailed', 'The If-Match header does not match the ETag of the object')
        headers = {'ETag': version.etag, 'Content-Type': 'application/octet-stream'}
        if version.encoding:
            headers['Content-Encoding'] = version.encoding
        asked = re.fullmatch(r'bytes=(\d+)-(\d*)', self.headers.get('Range', ''))
        size = len(version.data)
        if asked is None:
            return self.answer(200, headers, version.data)
        first, last = int(asked[1]), min(int(asked[2] or size), size - 1)
        if first >= size:
            raise _RefusedError(416, 'InvalidRange', f'The range does not lie inside the {size} bytes of the object')
        headers['Content-Range'] = f'bytes {first}-{last}/{size}'
        return self.answer(206, headers, version.data[first : last + 1])

    def _list(self, objects: dict[str, _Object], query: dict[str, str]) -> None:
        names = sorted(name for name in list(objects) if name.startswith(query.get('prefix', '')))
        names = [name for name in names if name >= query.get('start', '')]
        limit = min(int(query.get('limit', self.state.page)), self.state.page)
        fields = query.get('fields', 'name').split(',')
        told = [{'name': name, 'size': len(objects[name].data), 'etag': objects[name].etag} for name in names[:limit]]
        page: dict[str, Any] = {'objects': [{key: item[key] for key in fields} for item in told]}
        if len(names) > limit:
            page['nextStartWith'] = names[limit]
        self.answer_json(200, page)

    def _verify(self) -> None:
        """Check the signature by Oracle's documentation of request signatures, version 1."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        def refuse(why: str) -> _RefusedError:
            return _RefusedError(401, 'NotAuthenticated', f'The required information is missing or wrong: {why}')

        fields = dict(re.findall(r'(\w+)="([^"]*)"', self.headers.get('Authorization', '')))
        names = fields.get('headers', '').split()
        if not {'date', '(request-target)', 'host'} <= set(names):
            raise refuse('no signature')
        key = self.state.keys.get(fields['keyId'])
        if key is None:
            raise refuse('an unknown key')
        lines = [
            f'{name}: {self.command.lower()} {self.path}'
            if name == '(request-target)'
            else f'{name}: {self.headers.get(name, "")}'
            for name in names
        ]
        try:
            key.verify(base64.b64decode(fields['signature']), '\n'.join(lines).encode(), PKCS1v15(), SHA256())
        except InvalidSignature:
            raise refuse('another signature') from None
        if abs(time.time() - parsedate_to_datetime(self.headers['Date']).timestamp()) > SECONDS_OF_SKEW:
            raise refuse('another time')


@contextlib.contextmanager
def oci_server() -> Generator[OCIServer]:
    """Run the server in a thread of this process."""
    state = OCIServer()
    handler = type('Handler', (_Handler,), {'state': state})
    with serving(handler) as server:
        state.port = server.server_port
        yield state
