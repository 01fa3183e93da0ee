"""A page for the user of this machine, and for no page of another site."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator

import pytest

from headrace.errors import ConfigError
from headrace.inspect.local_page import PageHandler, PageServer


class Page(PageHandler):
    def answer_path(self) -> None:
        self.answer(200, 'text/plain', self.path)


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(0, Page) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def status(server: PageServer, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection('127.0.0.1', server.server_port)
    connection.request('GET', path, headers=headers)
    answer = connection.getresponse()
    assert answer.read() == (path.encode() if answer.status == 200 else b'This page is for this machine only.')
    connection.close()
    return answer.status


@pytest.mark.parametrize(('host', 'expected'), [('localhost:1', 200), ('127.0.0.1', 200), ('evil.example', 403)])
def test_another_name_of_this_machine_is_refused(server: PageServer, host: str, expected: int) -> None:
    assert status(server, '/run', Host=host) == expected


def test_of_another_site_only_a_link_to_the_page_is_followed(server: PageServer) -> None:
    link = {'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Dest': 'document'}
    assert status(server, '/', **link) == 200
    assert status(server, '/run', **link) == 403
    assert status(server, '/', **{**link, 'Sec-Fetch-Dest': 'iframe'}) == 403
    assert status(server, '/run', **{'Sec-Fetch-Site': 'same-origin'}) == 200


def test_a_port_that_is_taken_is_named(server: PageServer) -> None:
    with pytest.raises(ConfigError, match=f'--port must be a free port .* got {server.server_port}'):
        PageServer(server.server_port, Page)
