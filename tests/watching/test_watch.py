"""The status of ranks, and the table and the page that show it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.watching.live import WatchServer, read_live
from tests.support import support_file
from tests.support.pages.browser import browser, wait_until


@pytest.mark.slow
def test_real_processes_are_watched_until_they_end(data: Path, tmp_path: Path) -> None:
    program = support_file('trainers/watched_run.py')
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
