"""The page of a run."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.watching.server import WatchServer
from tests.support.pages.browser import browser, wait_until
from tests.support.trainers.watched_ranks import ODD, Rank


@pytest.fixture
def server(ranks: list[Rank], tmp_path: Path) -> Iterator[WatchServer]:
    with WatchServer(tmp_path) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={'poll_interval': 0.05})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def test_only_this_machine_is_answered(server: WatchServer) -> None:
    def get(path: str, **headers: str) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(urllib.request.Request(server.url + path, headers=headers))

    assert server.server_address[0] == '127.0.0.1'
    assert json.load(get('status.json'))['world_size'] == 2
    with pytest.raises(urllib.error.HTTPError, match='403'):
        get('status.json', Host='attacker.example')
    with pytest.raises(urllib.error.HTTPError, match='403'):
        get('status.json', Host='[')
    with pytest.raises(urllib.error.HTTPError, match='404'):
        get('../../etc/passwd')
    page = get('').read().decode()
    assert 'http://' not in page.replace('http://www.w3.org', '')  # it needs no network
    with pytest.raises(ConfigError, match='must be a free port'):
        WatchServer(server.folder, server.server_address[1])


def test_a_browser_that_goes_away_prints_nothing(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Rank(data, tmp_path, 0, 1)
    with WatchServer(tmp_path) as serving:
        for error in (ConnectionResetError(), BrokenPipeError()):
            try:
                raise error
            except OSError:
                serving.handle_error(None, ('127.0.0.1', 1))
        assert capfd.readouterr().err == ''
        try:
            raise ValueError('a bug')
        except ValueError:
            serving.handle_error(None, ('127.0.0.1', 1))
    assert 'a bug' in capfd.readouterr().err


def test_the_page_in_a_browser(server: WatchServer, ranks: list[Rank], tmp_path: Path) -> None:
    with browser() as driver:
        driver.get(server.url)
        wait_until(driver, lambda found: found.execute_script('return document.body.dataset.shown'))

        def text_of(name: str) -> str:
            return driver.find_element('id', name).text

        assert text_of('run') == str(tmp_path)
        assert text_of('about') == 'training, 2 of 2 ranks'
        assert '102\nstep' in text_of('cards')
        rows = "return [...document.querySelectorAll('#ranks td:first-child')].map(cell => cell.textContent)"
        assert driver.execute_script(rows) == ['0', '1']
        assert ODD in text_of('mix')  # as text
        ranks[0].train(2.0, 2.0)  # it follows the run
        wait_until(driver, lambda _: '105\nstep' in text_of('cards'))
        (tmp_path / 'headrace-status' / 'rank-00001.json').unlink()
        wait_until(driver, lambda _: text_of('about') == 'training, 1 of 2 ranks; nothing heard from rank 1')
        severe = [entry for entry in driver.get_log('browser') if entry['level'] == 'SEVERE']
        assert not severe
