"""The state of a run, put together from its ranks."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.watching.live import WatchServer, live_text, read_live
from headrace.watching.status import RankStatus
from tests.support.pages.browser import browser, wait_until
from tests.support.trainers.watched_ranks import ODD, Rank


def test_the_ranks_are_put_together(ranks: list[Rank], tmp_path: Path) -> None:
    live = read_live(tmp_path)
    assert [(rank['rank'], rank['step'], rank['state']) for rank in live['ranks']] == [
        (0, 102, 'training'),
        (1, 101, 'training'),
    ]
    assert (live['world_size'], live['missing'], live['total']['step']) == (2, [], 102)
    counts = {stream['stream']: stream['count'] for stream in live['mix']}
    assert sum(counts.values()) == 20  # two steps of ten samples; rank 0 knows those of all ranks
    assert counts.keys() == {'code', ODD}
    waits = [rank['figures']['data/wait_share'] for rank in live['ranks']]
    assert live['total']['wait_share'] == pytest.approx(sum(waits) / 2)
    assert live['total']['slowest_rank'] == waits.index(max(waits))
    assert 'peers' not in live_text(live)
    shared = {**live, 'total': {**live['total'], 'bytes_from_peers': 3 << 20}}
    assert ' in all, and 3 MiB from peers; ' in live_text(shared)
    # A damaged file is a rank that is missing; one of an earlier run on more ranks is left out.
    (tmp_path / 'headrace-status' / 'rank-00001.json').write_text('{"figures"')
    (tmp_path / 'headrace-status' / 'rank-00007.json').write_text(json.dumps({**live['ranks'][0], 'rank': 7}))
    live = read_live(tmp_path)
    assert ([rank['rank'] for rank in live['ranks']], live['missing']) == ([0], [1])
    later = read_live(tmp_path, clock=lambda: live['time'] + 90)
    assert later['ranks'][0]['is_stale']
    assert 'silent for 9' in live_text(later)
    assert 'without a status: rank 1' in live_text(later)


def test_padding_is_shown(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'tokens': 'ndarray:int32'}) as out:
        for length in (1, 3, 2, 6):
            out.write({'tokens': np.zeros(length, np.int32)})
    loader = StreamingDataLoader(StreamingDataset(local=str(tmp_path / 'data'), batch_size=2), pad={'tokens': 0})
    status = RankStatus(tmp_path, every=2, clock=lambda: 0.0)
    status.begin({'': loader}, step=0)
    for _ in loader:
        status.batch_done()
    status.end()
    live = read_live(tmp_path)
    assert live['total']['padding_share'] == (2 + 4) / (2 * 3 + 2 * 6)
    assert '; padding 33.3%' in live_text(live)


def test_the_table(ranks: list[Rank], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['watch', str(tmp_path), '--text', '--once']) == 0
    text = capsys.readouterr().out
    assert f'{tmp_path}: step 102, 2 of 2 ranks' in text
    assert '1.00 s' in text  # from batch to batch
    assert main(['watch', str(tmp_path), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['total']['step'] == 102
    assert main(['watch', str(tmp_path / 'other')]) == 1
    assert 'there is no headrace.record in' in capsys.readouterr().err


def test_what_was_decided_last_is_shown(ranks: list[Rank], tmp_path: Path) -> None:
    for rank in ranks:
        rank.loader.set_proportions({'code': 1, ODD: 3}, by='me')
        rank.train(2.0)
    (decision,) = read_live(tmp_path)['decisions']
    assert (decision['count'], decision['by'], decision['at']) == (1, 'me', 30)
    assert live_text(read_live(tmp_path)).endswith(
        f'decisions: 1, the last by me at sample 30 of the run: {ODD} 0.750, code 0.250'
    )


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
        ranks[0].loader.set_proportions({'code': 1, ODD: 3}, by='me')
        ranks[0].train(2.0, 2.0)  # it follows the run
        wait_until(driver, lambda _: '105\nstep' in text_of('cards'))
        assert f'the last by me at sample 30 of the run: {ODD} 75.0 %, code 25.0 %' in text_of('decisions')
        (tmp_path / 'headrace-status' / 'rank-00001.json').unlink()
        wait_until(driver, lambda _: text_of('about') == 'training, 1 of 2 ranks; nothing heard from rank 1')
        severe = [entry for entry in driver.get_log('browser') if entry['level'] == 'SEVERE']
        assert not severe
