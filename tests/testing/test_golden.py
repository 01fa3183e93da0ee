"""The runner of reference vectors, on a small set beside this file and on the large one beside the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.testing.golden.__main__ import main

SMALL = Path(__file__).parent / 'golden_small'


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip().splitlines()[-1]


def test_the_small_set_passes(capsys):
    assert main(['order', str(SMALL)]) == 0
    assert last_line(capsys) == '249 passed, 0 failed'


@pytest.mark.slow
def test_the_whole_set_passes(capsys, golden):
    assert main(['order', str(golden)]) == 0
    assert last_line(capsys).endswith(' 0 failed')


def test_a_difference_is_named_and_fails(capsys, tmp_path):
    shutil.copytree(SMALL / 'pure', tmp_path / 'pure')
    path = tmp_path / 'pure' / 'get_shuffle.json'
    content = json.loads(path.read_text())
    broken = next(case for case in content['cases'] if 'raises' not in case)
    broken['sha256'] = '0' * 64
    path.write_text(json.dumps(content))
    assert main(['order', str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f'FAILED pure {broken["id"]}: the values differ' in out
    assert out.endswith(' passed, 1 failed\n')


def test_a_folder_without_vectors_fails(capsys, tmp_path):
    assert main(['order', str(tmp_path)]) == 1
    assert last_line(capsys) == '0 passed, 1 failed'
