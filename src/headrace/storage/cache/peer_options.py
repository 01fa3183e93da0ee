"""The key `peers` of a dataset, and the addresses that its hosts have."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.errors.redaction import keep_secret, logger_of
from headrace.storage.cache.ownership import text_of

RULE: Final = (
    'must be a mapping: {} finds the nodes through torch.distributed; or `hosts`, a list of all nodes, such as '
    '["node-1", "node-2:7300"], or of one name with all their addresses; and if need be `port`, from 1 to 65535, '
    '`interface` and `token_env`'
)
PORT: Final = 7207
TOKEN_ENV: Final = 'HEADRACE_PEERS_TOKEN'  # noqa: S105 - the name of a variable
SHORTEST_TOKEN: Final = 16
"""Characters of a token at least."""

_ELSEWHERE: Final = ('192.0.2.1', '2001:db8::1')
"""Addresses for documentation: nobody has them, so the default route leads there."""


_log = logger_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """The key `peers` of a dataset."""

    hosts: tuple[str, ...] = ()
    """Names or addresses of all nodes, ``host`` or ``host:port``. A name may have several addresses, as a headless
    service of Kubernetes has. Empty: ranks tell each other."""
    port: int = PORT
    """Of hosts that name none."""
    interface: str | None = None
    """The address that this node serves on, one of the hosts'. None: the one of them that this machine has; without
    hosts, that on the way to the first rank."""
    token_env: str | None = None
    """The environment variable that holds the token of the run, the same on all nodes. None: `TOKEN_ENV` with hosts;
    else a rank draws a token."""

    @classmethod
    def of(cls, raw: PeerOptions | Mapping[str, Any] | None) -> PeerOptions | None:
        """Read an argument `peers`.

        Raises:
            ConfigError: it is not such a mapping.
        """
        if raw is None or isinstance(raw, PeerOptions):
            return raw
        given: Any = dict(cast('Any', raw)) if isinstance(raw, Mapping) else {'hosts': None}  # pyright: ignore[reportUnnecessaryIsInstance] - the user's
        named: Any = given.get('hosts')
        hosts = tuple(named) if isinstance(named, Sequence) and not isinstance(named, str) else ()
        port = given.setdefault('port', PORT)
        texts = [*hosts, given.get('token_env', TOKEN_ENV), given.get('interface') or 'found']
        is_right = (hosts or 'hosts' not in given) and type(port) is int and 0 < port < 1 << 16
        is_right = is_right and set(given) <= set(cls.__slots__)
        if not is_right or not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f'`peers` {RULE}, got {raw!r:.200}.')
        given['hosts'] = hosts
        return cls(**given)

    @property
    def plain(self) -> dict[str, Any]:
        """The value that YAML has."""
        found = {'hosts': list(self.hosts), 'port': self.port, 'interface': self.interface, 'token_env': self.token_env}
        return {name: value for name, value in found.items() if value}

    def token(self) -> bytes:
        """The run's token, hidden in messages from now on; ConfigError if it is missing or short."""
        name = self.token_env or TOKEN_ENV
        found = os.environ.get(name, '')
        if len(found) < SHORTEST_TOKEN:
            raise ConfigError(
                f'`peers` needs a token of at least {SHORTEST_TOKEN} characters in the environment variable '
                f'{name}, the same on all nodes, but it has {len(found)}. Make one for each run, such as '
                f'with `openssl rand -hex 16`; `token_env` names another variable.'
            )
        keep_secret(found)
        return found.encode()

    def addresses(self) -> list[tuple[str, int]]:
        """The numeric addresses of all hosts, in one order on all nodes. One that no name server knows is left out."""
        found = set[tuple[str, int]]()
        for host in self.hosts:
            name, port = _split(host)
            try:
                infos = socket.getaddrinfo(name, port or self.port, type=socket.SOCK_STREAM)
            except OSError as error:
                _log.warning('`peers` leaves %s out, which has no address: %s', host, error)
                continue
            # A machine with addresses of both families is one node.
            family = min(info[0] for info in infos)
            found.update((cast('str', info[4][0]), port or self.port) for info in infos if info[0] == family)
        return sorted(found)

    def own(self, addresses: list[tuple[str, int]]) -> tuple[str, int]:
        """The address of this node among those of all; ConfigError if there is none."""
        if self.interface is not None:
            wanted = _addresses_of(self.interface)
            own = [address for address in addresses if address[0] in wanted]
        else:
            own = [address for address in addresses if is_of_this_machine(address[0])]
        if not own:
            raise ConfigError(
                f'`hosts` of `peers` must name this node, too, but none of {[text_of(one) for one in addresses]} is '
                f'{self.interface or "an address of this machine"}. Add it, or correct `interface`.'
            )
        others = [address for address in addresses if not is_loopback(address[0])]
        found = next((address for address in own if address in others), own[0])
        if ipaddress.ip_address(found[0]).is_unspecified or (others and found not in others):
            raise ConfigError(
                f'`peers` would serve on {text_of(found)}, by which no other machine reaches this one. Name the nodes '
                f'by their addresses in `hosts`: a line of /etc/hosts may give a node another one on itself.'
            )
        return found

    def own_host(self) -> str:
        """The address of this node without `hosts`; ConfigError if `interface` does not belong to this machine's."""
        if self.interface is not None:
            found = next(filter(is_of_this_machine, _addresses_of(self.interface)), None)
            if found is None:
                raise ConfigError(
                    f'`interface` of `peers` must be an address of this machine, got {self.interface!r}. Correct it, '
                    f'or leave it out.'
                )
            return found
        for name in (os.environ.get('MASTER_ADDR', 'localhost'), *_ELSEWHERE):
            with contextlib.suppress(OSError):  # there is no such route
                family, kind, _, _, address = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
                with socket.socket(family, kind) as unsent:  # it only looks up the route
                    unsent.connect(address)
                    found = cast('str', unsent.getsockname()[0])
                if not is_loopback(found):  # as that of the first rank's own name may be
                    return found
        return '127.0.0.1'


def _addresses_of(name: str) -> list[str]:
    """None, if no name server knows it."""
    with contextlib.suppress(OSError):
        return [cast('str', info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    return []


def _split(host: str) -> tuple[str, int | None]:
    if host.count(':') > 1 and not host.startswith('['):  # an IPv6 address without a port
        return host, None
    parts = urlsplit(f'//{host}')
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f'A host of `peers` is a name or an address, and a port; got {host!r}: {error}.') from error
    return parts.hostname or '', port


def is_of_this_machine(address: str) -> bool:
    try:
        with socket.create_server((address, 0), family=family_of(address)):
            return True
    except OSError:
        return False


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ':' in address else socket.AF_INET
