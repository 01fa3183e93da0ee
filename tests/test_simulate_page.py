"""The commands of the pages on simulated runs: each runs on a small dataset, and prints the lines of its transcript."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.cli import main

_DOCS = Path(__file__).resolve().parents[1] / 'docs'
_TRANSCRIPT = re.compile(r'^```console\n\$ headrace ((?:simulate|tune) .*?)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r'`headrace ((?:simulate|tune) train\.yaml[^`]*)`')


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with MDSWriter(out='remote', columns={'x': 'ndarray:uint8:100'}, size_limit=27_000) as writer:
        writer.write_batch({'x': np.zeros((4096, 100), np.uint8)})
    Path('train.yaml').write_text('global_batch_size: 64\ntrain: {remote: remote, local: cache, shuffle: true}\n')


def commands(page: str) -> list[tuple[str, str]]:
    """The commands of a page, but those that serve another page, and what the docs say that each prints."""
    text = (_DOCS / page).read_text()
    found = _TRANSCRIPT.findall(text) + [(command, '') for command in _COMMAND.findall(text)]
    return [(command, printed) for command, printed in found if '--ui' not in command]


def labels(lines: list[str]) -> list[str]:
    """What each line is about: its text before a gap."""
    return [re.split(r' {2,}', line.strip())[0] for line in lines]


@pytest.mark.parametrize(('page', 'shown'), [('simulate.md', None), ('tuning.md', 2)])
def test_the_commands_run_and_print_the_lines_of_the_page(page, shown, capsys):
    """The figures and the trials depend on the data, so `shown` says how many lines are the same for all data."""
    found = commands(page)
    assert any(printed for _, printed in found)
    for command, printed in found:
        assert main([*shlex.split(command), '--batches', '4']) in (0, 1)  # 1: the target is out of reach
        assert set(labels(printed.splitlines()[:shown])) <= set(labels(capsys.readouterr().out.splitlines()))
