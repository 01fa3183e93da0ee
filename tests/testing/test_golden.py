"""The runner of reference vectors, on a small set beside this file and on the large one beside the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.golden.__main__ import main

SMALL = Path(__file__).parent / 'golden_small'
FORMATS = Path(__file__).parents[1] / 'data'


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip().splitlines()[-1]


def test_the_small_set_passes(capsys):
    assert main(['order', str(SMALL)]) == 0
    assert last_line(capsys) == '249 passed, 0 failed'


@pytest.mark.slow
def test_the_whole_set_passes(capsys, golden):
    assert main(['order', str(golden)]) == 0
    assert last_line(capsys).endswith(' 0 failed')


def test_the_small_set_of_formats_passes(capsys):
    assert main(['formats', str(FORMATS)]) == 0
    assert int(last_line(capsys).split()[0]) > 300


@pytest.mark.slow
def test_the_whole_set_of_formats_passes(capsys, golden):
    assert main(['formats', str(golden)]) == 0
    assert last_line(capsys).endswith(' 0 failed')


def test_other_samples_and_files_are_named_and_fail(capsys, tmp_path):
    formats = tmp_path / 'formats'
    formats.mkdir()
    for name in ('json_basic', 'json_basic.expected.json', 'manifest.json'):
        source = FORMATS / 'formats' / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, formats / name)
    manifest = json.loads((formats / 'manifest.json').read_text())
    manifest['cases'] = [case for case in manifest['cases'] if case['id'] == 'json_basic']
    manifest['cases'][0]['files'][-1]['sha256'] = '0' * 64
    (formats / 'manifest.json').write_text(json.dumps(manifest))
    expected = json.loads((formats / 'json_basic.expected.json').read_text())
    column = next(iter(expected['samples'][1]))
    expected['samples'][1][column] = {'t': 'str', 'v': 'another'}
    (formats / 'json_basic.expected.json').write_text(json.dumps(expected))
    assert main(['formats', str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"FAILED read json_basic: sample 1 differs in ['{column}']" in out
    assert 'FAILED write json_basic' in out
    assert out.endswith('1 passed, 2 failed\n')


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
