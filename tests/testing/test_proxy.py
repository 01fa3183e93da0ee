import gc
import http.client
import socket
import time
from urllib.parse import urlsplit

import pytest

from headrace.testing.proxy import Fault, FaultProxy
from tests.support.programs.waiting import until
from tests.support.servers.in_process import Handler, serving


class Keeping(Handler):
    """Says that it keeps the connection."""

    def handle_any(self, body):
        self.send_response(200)
        for name, value in {'Connection': 'keep-alive', 'Keep-Alive': 'timeout=5', 'Content-Length': '100000'}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b'x' * 100_000)


@pytest.fixture
def url():
    with serving(Keeping) as server:
        yield f'http://127.0.0.1:{server.server_port}'


def test_an_answer_ends_its_connection(url):
    with FaultProxy(url) as proxy:
        client = http.client.HTTPConnection(proxy.endpoint_url.removeprefix('http://'))
        for _ in range(2):  # on a new connection each
            client.request('GET', '/')
            answer = client.getresponse()
            assert answer.headers.get_all('Connection') == ['close']
            assert answer.headers.get_all('Keep-Alive') is None
            assert len(answer.read()) == 100_000
        client.close()


def test_a_fault_of_some_seconds_begins_with_the_first_request_that_it_hits(url):
    def status() -> int:
        client = http.client.HTTPConnection(proxy.endpoint_url.removeprefix('http://'))
        client.request('GET', '/')
        answer = client.getresponse()
        answer.read()
        client.close()
        return answer.status

    with FaultProxy(url, [Fault(status=503, seconds=0.5, skip=1)]) as proxy:
        time.sleep(0.6)
        assert status() == 200
        begin = time.monotonic()
        assert status() == 503
        while status() == 503:
            assert time.monotonic() - begin < 100
        assert time.monotonic() - begin >= 0.45


@pytest.mark.parametrize('fault', [Fault(latency=60), Fault(stall_after=100), Fault(rate=100), Fault()])
def test_it_ends_quietly_whatever_is_pending(url, fault, capfd, caplog):
    with FaultProxy(url, [fault]) as proxy:
        clients = [socket.create_connection(('127.0.0.1', urlsplit(proxy.endpoint_url).port)) for _ in range(3)]
        for client, request in zip(clients, (b'GET / HTTP/1.1\r\nHost: x\r\n\r\n', b'GET / HT', b''), strict=True):
            client.sendall(request)
        until(lambda: proxy.requests)
    for client in clients:
        client.close()
    gc.collect()
    assert capfd.readouterr() == ('', '')
    assert not caplog.records


def test_it_ends_quietly_while_it_accepts(url, capfd, caplog):
    for _ in range(100):
        with FaultProxy(url) as proxy:
            clients = [socket.create_connection(('127.0.0.1', urlsplit(proxy.endpoint_url).port)) for _ in range(3)]
        for client in clients:
            client.close()
    gc.collect()
    assert capfd.readouterr() == ('', '')
    assert not caplog.records
