"""Downloads from a server on loopback, which answers in every bad way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.servers.image_server import ImageServer, image_server, jpeg

pytest.importorskip('aiohttp')

from headrace.errors import ConfigError
from headrace.originals.downloads import AnswerError, DownloadError, Limits, download_all

LIMITS = Limits(user_agent='headrace-tests/1 (+https://example.org)', private_hosts=True, max_bytes=50_000, seconds=60)


@pytest.fixture
def server() -> Iterator[ImageServer]:
    with image_server() as server:
        yield server


def test_files_come_in_the_order_of_their_urls(server: ImageServer) -> None:
    numbers = [*range(100), 7, 7]
    found = list(download_all((f'{server.url}/image/{i}' for i in numbers), replace(LIMITS, connections=8, per_host=4)))
    assert found == [jpeg(i) for i in numbers]
    assert server.agents == {LIMITS.user_agent}
    assert server.most <= 4


def test_a_host_gets_no_more_requests_at_a_time_than_it_may(server: ImageServer) -> None:
    # Pairs of requests wait for one another, so two are there at the same time; the server has counted the most.
    urls = [f'{server.url}/together/{i}' for i in range(10)]
    assert list(download_all(urls, replace(LIMITS, per_host=2, seconds=60))) == [jpeg(i) for i in range(10)]
    assert server.most == 2


@pytest.mark.parametrize(
    ('path', 'message', 'answered'),
    [
        ('/status/404', 'answered 404', True),
        ('/status/500', 'answered 500', True),
        ('/circle/0', 'redirected at most 4 times', True),
        ('/file/', r"begins with http:// or https:// and a host, but this one is 'file:", False),
        ('/nowhere/', 'The request failed: ValueError', False),
        ('/nonsense/', 'The request failed', False),
        ('/refused/noai', "X-Robots-Tag 'noai'", True),
        ('/refused/otherbot:%20noimageai,%20nofollow', 'refuses to have it', True),
        ('/packed/', 'compressed', True),
        ('/large/50001', 'at most 50000 bytes', True),
        ('/endless/large', 'at most 50000 bytes', True),
        ('/cut/', 'The request failed: ClientPayloadError', False),
        ('gopher://example.org/', 'begins with http', False),
        ('http://', 'begins with http', False),
        ('http://[::1', 'begins with http', False),
        ('', 'begins with http', False),
        ('http://127.0.0.1:1/', 'The request failed: ClientConnector', False),
        ('http://a b/', 'no URL|request failed', False),
    ],
)
def test_a_file_that_cannot_be_had_says_why_and_others_come(
    server: ImageServer, path: str, message: str, answered: bool
) -> None:
    limits = replace(LIMITS, longest_wait=0.001)
    url = f'{server.url}{path}' if path.startswith('/') else path
    first, second = download_all([url, f'{server.url}/image/3'], limits)
    assert isinstance(first, DownloadError)
    with pytest.raises(DownloadError, match=message):
        raise first
    assert isinstance(first, AnswerError) == answered
    assert second == jpeg(3)


@pytest.mark.parametrize('path', ['/silent/', '/endless/slow'])
def test_a_server_that_is_too_slow_is_left(server: ImageServer, path: str) -> None:
    limits = replace(LIMITS, seconds=0.2, attempts=1)
    (found,) = download_all([f'{server.url}{path}'], limits)
    assert 'did not send it within 0.2 s' in str(found)


def test_a_failure_that_passes_and_a_redirect_cost_no_file(server: ImageServer) -> None:
    found = list(download_all([f'{server.url}/once/5', f'{server.url}/redirect/6'], LIMITS))
    assert found == [jpeg(5), jpeg(6)]
    assert server.asked['/once/5'] == 2


@pytest.mark.parametrize(
    'host',
    ['127.0.0.1', 'localhost', '169.254.169.254', '10.1.2.3', '[::1]', '0.0.0.0', '[64:ff9b::a00:1]', '[2002:a00:1::]',
     '[::ffff:10.0.0.1]'],
)  # fmt: skip
def test_addresses_that_are_not_public_are_not_asked(server: ImageServer, host: str) -> None:
    limits = replace(LIMITS, private_hosts=False, longest_wait=0.001)
    (found,) = download_all([f'http://{host}:{server.server_port}/image/1'], limits)
    assert isinstance(found, DownloadError)
    assert 'is no public address' in str(found)
    assert not server.asked


def test_an_early_end_leaves_nothing_running(server: ImageServer) -> None:
    import threading

    downloads = download_all([f'{server.url}/image/1', *[f'{server.url}/silent/'] * 30], LIMITS)
    assert next(downloads) == jpeg(1)
    downloads.close()
    assert not [thread for thread in threading.enumerate() if thread.name == 'headrace-downloads']


def test_downloads_run_where_an_event_loop_runs_already(server: ImageServer) -> None:
    async def cell() -> list[object]:
        return list(download_all([f'{server.url}/image/1'], LIMITS))

    assert asyncio.run(cell()) == [jpeg(1)]


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match='`per_host` of downloads is above 0'):
        replace(LIMITS, per_host=0)
    with pytest.raises(ConfigError, match='`user_agent` is a line of ASCII'):
        replace(LIMITS, user_agent='a\r\nHost: b')
