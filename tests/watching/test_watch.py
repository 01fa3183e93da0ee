"""The status of ranks, and the table and the page that show it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import browser, wait_until
from headrace import Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.watching.live import read_live
from headrace.watching.server import WatchServer
from headrace.watching.status import RankStatus
from headrace.watching.table import live_text

ODD = '<b>odd</b>'


class Rank:
    """A rank that writes its status, by a clock of the test's own."""

    def __init__(self, data: Path, folder: Path, rank: int, ranks: int = 2) -> None:
        streams = [Stream(local=str(data / name), name=title) for name, title in (('a', 'code'), ('b', ODD))]
        dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=5)
        self.loader = StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks))
        self.now = 0.0
        self.status = RankStatus(folder, every=2, clock=lambda: self.now)
        self.status.begin({'': self.loader}, step=100)
        self.batches = iter(self.loader)

    def train(self, *seconds: float) -> None:
        for each in seconds:
            next(self.batches)
            self.now += each
            self.status.batch_done()


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory, make_dataset_in: Any) -> Path:
    root = tmp_path_factory.mktemp('data')
    for name, size in (('a', 40), ('b', 60)):
        make_dataset_in(root, name, size)
    return root


@pytest.fixture
def ranks(data: Path, tmp_path: Path) -> list[Rank]:
    found = [Rank(data, tmp_path, rank) for rank in range(2)]
    found[0].train(1.0, 1.0, 1.0)
    found[1].train(2.0, 1.0)
    return found


def test_a_status_is_written_seldom_and_whole(data: Path, tmp_path: Path) -> None:
    rank = Rank(data, tmp_path, 0, 1)
    path = tmp_path / 'headrace-status' / 'rank-00000.json'
    assert json.loads(path.read_text())['state'] == 'starting'
    steps = []
    for _ in range(6):
        rank.train(0.75)
        steps.append(json.loads(path.read_text())['step'])
    assert steps == [100, 100, 103, 103, 103, 106]
    assert json.loads(path.read_text())['figures']['data/samples_per_second'] == pytest.approx(15 / 2.25)
    rank.status.end()
    assert json.loads(path.read_text())['state'] == 'ended'
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_an_evaluation_is_not_silent_and_keeps_the_rates(data: Path, tmp_path: Path) -> None:
    rank = Rank(data, tmp_path, 0, 1)
    rank.train(3.0, 1.0)
    rank.status.pause()
    figures = read_live(tmp_path)['ranks'][0]['figures']
    assert figures['data/batch_seconds_p50'] == 1.0
    later = read_live(tmp_path, clock=lambda: read_live(tmp_path)['time'] + 600)
    assert (later['ranks'][0]['state'], later['ranks'][0]['is_stale']) == ('evaluating', False)
    rank.now += 600
    rank.status.resume()
    (after,) = read_live(tmp_path)['ranks']
    assert (after['state'], after['figures']) == ('training', figures)
    rank.train(2.0)
    (after,) = read_live(tmp_path)['ranks']
    assert after['figures']['data/samples_per_second'] == pytest.approx(5 / 2)
    (tmp_path / 'headrace-status' / 'rank-00001.json').write_text('{"figures": {}}')  # of another version
    assert [one['rank'] for one in read_live(tmp_path)['ranks']] == [0]


def test_a_full_disk_ends_no_training(data: Path, tmp_path: Path) -> None:
    (tmp_path / 'headrace-status').write_text('in the way of the folder')
    rank = Rank(data, tmp_path, 0, 1)
    rank.train(3.0, 3.0)
    rank.status.end()


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
    # A damaged file is a rank that is missing; one of an earlier run on more ranks is left out.
    (tmp_path / 'headrace-status' / 'rank-00001.json').write_text('{"figures"')
    (tmp_path / 'headrace-status' / 'rank-00007.json').write_text(json.dumps({**live['ranks'][0], 'rank': 7}))
    live = read_live(tmp_path)
    assert ([rank['rank'] for rank in live['ranks']], live['missing']) == ([0], [1])
    later = read_live(tmp_path, clock=lambda: live['time'] + 90)
    assert later['ranks'][0]['is_stale']
    assert 'silent for 9' in live_text(later)
    assert 'without a status: ranks 1' in live_text(later)


def test_the_table(ranks: list[Rank], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['watch', str(tmp_path), '--text', '--once']) == 0
    text = capsys.readouterr().out
    assert f'{tmp_path}: step 102, 2 of 2 ranks' in text
    assert '1.00 s' in text  # from batch to batch
    assert main(['watch', str(tmp_path), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['total']['step'] == 102
    assert main(['watch', str(tmp_path / 'other')]) == 1
    assert 'there is no headrace.record in' in capsys.readouterr().err


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


@pytest.mark.slow
def test_real_processes_are_watched_until_they_end(data: Path, tmp_path: Path) -> None:
    program = Path(__file__).with_name('watched_run.py')
    processes = [
        subprocess.Popen([sys.executable, program, str(rank), '2', tmp_path, data / 'a', data / 'b'])
        for rank in range(2)
    ]
    try:
        with WatchServer(_started(tmp_path, processes)) as serving, browser() as driver:
            thread = threading.Thread(target=serving.serve_forever, daemon=True)
            thread.start()
            driver.get(serving.url)
            wait_until(driver, lambda found: found.find_element('id', 'about').text == 'training, 2 of 2 ranks')
            processes[1].kill()  # its last status stays
            (tmp_path / 'stop').touch()
            wait_until(driver, lambda found: 'ended' in found.find_element('id', 'about').text)
            serving.shutdown()
        assert [process.wait() for process in processes] == [0, -9]
    finally:
        for process in processes:
            process.kill()
    live = read_live(tmp_path)
    assert [rank['state'] for rank in live['ranks']] == ['ended', 'training']
    assert 0 < live['ranks'][0]['figures']['data/cache_fill'] <= 1


def _started(folder: Path, processes: list[subprocess.Popen[bytes]]) -> Path:
    """Wait until each rank has written its status."""
    event = threading.Event()
    while len(list(folder.glob('headrace-status/rank-*.json'))) < len(processes):
        assert all(process.poll() is None for process in processes)
        event.wait(0.1)
    return folder
