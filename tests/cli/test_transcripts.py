"""docs/appendix/transcripts.md shows what each command prints."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import COMMANDS
from tests.support.pages.transcripts import comparable, with_transcripts, without_numbers

DOCS = Path(__file__).parents[2] / 'docs'
PAGE = (DOCS / 'appendix' / 'transcripts.md').read_text()
DEMO = 'headrace demo'


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(sys.path))  # of the programs that commands start


def test_every_command_is_there() -> None:
    assert set(re.findall(r'^\$ headrace ([a-z-]+)', PAGE, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.once
def test_the_transcripts_are_of_today(tmp_path: Path) -> None:
    """If not, write them anew: make transcripts."""
    assert comparable(with_transcripts(PAGE, tmp_path, without=DEMO)) == comparable(PAGE)


@pytest.mark.slow
@pytest.mark.lightning
@pytest.mark.timeout(900)
def test_the_demo_is_of_today(tmp_path: Path) -> None:
    (block,) = re.findall(r'^```console\n\$ headrace demo .*?^```$', PAGE, re.MULTILINE | re.DOTALL)
    assert comparable(with_transcripts(block, tmp_path)) == comparable(block)


@pytest.mark.parametrize('name', ['command_line', 'tuning', 'watching'])
def test_other_pages_show_parts_of_it(name: str) -> None:
    """`...` stands for lines that are left out; numbers may be of another run. Copy them from transcripts.md."""
    excerpts = re.findall(
        r'^```(?:console|text)\n(\$ .*?)^```$', (DOCS / f'{name}.md').read_text(), re.MULTILINE | re.DOTALL
    )
    assert excerpts
    for excerpt in excerpts:
        lines = iter(PAGE.splitlines())
        missing = [line for line in excerpt.splitlines() if line != '...' and not _skip_to(line, lines)]
        assert missing == []


def _skip_to(wanted: str, lines: Iterator[str]) -> bool:
    """Whether one of the lines to come is the wanted one, with any numbers."""
    text = without_numbers(wanted)
    return any(without_numbers(line) == text for line in lines)


def test_what_varies_is_left_out_and_nothing_else() -> None:
    page = """
$ headrace bench x
workers  samples/s
0        194,941    0.06 ms
2        32,996     0.33 s
The processors are the limit: reading.
For headrace simulate and tune: --read-seconds 9.5e-05, if a rank has batches of 8.
For headrace simulate and tune: --read-seconds 0.00012, if a rank has batches of 8.
$ headrace tune x
   setting  waiting
*  predownload  3.1 %

No change is proposed.
$ headrace warm x
Fetched 8 shards (14.1 KiB), 0 were there.
$ headrace doctor x
ok      python: 3.11
note    open files: 1024
        -> ulimit -n 524288
ok      web: mds, 3 samples
note    nodes: 2 of 2
        -> set it
"""
    assert comparable(page) == [
        '',
        '$ headrace bench x',
        'workers samples/s',
        'N N N',
        'For headrace simulate and tune: --read-seconds N if a rank has batches of N',
        '$ headrace tune x',
        'setting waiting',
        '$ headrace warm x',
        'Fetched 8 shards (14.1 KiB), 0 were there.',
        '$ headrace doctor x',
        'ok web: mds, N samples',
        'note nodes: N of N',
        '-> set it',
    ]
