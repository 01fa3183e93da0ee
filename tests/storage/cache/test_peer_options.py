"""The key `peers`: the token, this node, and the addresses of all."""

from __future__ import annotations

import socket

import pytest

from headrace.errors import ConfigError
from headrace.storage.cache import peer_options
from headrace.storage.cache.peer_options import PeerOptions


def test_the_address_of_a_node_is_on_the_way_to_the_first_rank(monkeypatch):
    monkeypatch.setenv('MASTER_ADDR', '127.0.0.1')
    monkeypatch.setattr(peer_options, '_ELSEWHERE', ('192.0.2.1', '127.0.0.9'))
    monkeypatch.setattr(peer_options, 'is_loopback', lambda address: address == '127.0.0.1')
    asked = []

    class Socket:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def connect(self, address):
            asked.append(address[0])
            if address[0] == '192.0.2.1':
                raise OSError('no route')

        def getsockname(self):
            return asked[-1], 7

    monkeypatch.setattr(socket, 'socket', Socket)
    assert PeerOptions().own_host() == '127.0.0.9'
    assert asked == ['127.0.0.1', '192.0.2.1', '127.0.0.9']
    monkeypatch.setattr(peer_options, '_ELSEWHERE', ())
    assert PeerOptions().own_host() == '127.0.0.1'


def test_a_token_is_needed(monkeypatch):
    options = PeerOptions(hosts=('127.0.0.1',), token_env='RUN')
    for found in ('', 'short'):
        monkeypatch.setenv('RUN', found)
        with pytest.raises(ConfigError, match='at least 16 characters in the environment variable RUN'):
            options.token()


def test_this_node_must_be_a_host():
    options = PeerOptions(hosts=('127.0.0.3', '[::1]:80', '192.0.2.7'))
    addresses = options.addresses()
    assert ('::1', 80) in addresses
    assert options.own([('127.0.0.3', 7207), ('127.0.0.4', 7207)]) == ('127.0.0.3', 7207)
    with pytest.raises(ConfigError, match=r'would serve on 127.0.0.3:7207, by which no other machine'):
        options.own([('127.0.0.3', 7207), ('192.0.2.7', 7207)])  # as /etc/hosts of Debian names a machine
    with pytest.raises(ConfigError, match=r'would serve on 0.0.0.0:7207, by which no other machine'):
        options.own([('0.0.0.0', 7207), ('192.0.2.7', 7207)])
    with pytest.raises(ConfigError, match='must name this node'):
        options.own([('192.0.2.7', 7207)])
    with pytest.raises(ConfigError, match='none of .* is nowhere.invalid'):
        PeerOptions(hosts=('192.0.2.7',), interface='nowhere.invalid').own([('192.0.2.7', 7207)])
    with pytest.raises(ConfigError, match='a name or an address, and a port'):
        PeerOptions(hosts=('a:b',)).addresses()


def test_a_machine_with_addresses_of_both_families_is_one_node(monkeypatch):
    def known(host, port, **_):
        found = {'dual': ('192.0.2.1', '2001:db8::1'), 'six': ('2001:db8::2',), 'pods': ('192.0.2.2', '192.0.2.3')}[
            host
        ]
        return [(peer_options.family_of(one), socket.SOCK_STREAM, 6, '', (one, port)) for one in found]

    monkeypatch.setattr(socket, 'getaddrinfo', known)
    found = {host for host, _ in PeerOptions(hosts=('dual', 'six', 'pods')).addresses()}
    assert found == {'192.0.2.1', '2001:db8::2', '192.0.2.2', '192.0.2.3'}
