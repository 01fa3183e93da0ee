from __future__ import annotations

import io
import sys

import pytest

from examples.demo.progress import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(total: int) -> None:
    with Bar('shards', total=total, unit='rows') as bar:
        for done in range(1, total + 1):
            bar.show(done, f'loss {done}')


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, 'stdout', Terminal())

    work(7)

    assert 'shards: 100%' in sys.stdout.getvalue()
    assert '7/7' in sys.stdout.getvalue()


def test_a_log_gets_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr('examples.demo.progress.time.monotonic', lambda: 4 * next(seconds))

    work(7)

    assert capsys.readouterr().out.splitlines() == [
        'shards: 3/7 rows, loss 3, 16 s',
        'shards: 6/7 rows, loss 6, 32 s',
        'shards: 7/7 rows, loss 7, 40 s',
    ]
