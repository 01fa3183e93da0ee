"""``headrace convert-config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import main


def test_convert_config_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'foundry.yaml').write_text(
        'train_loader:\n  name: text\n  dataset: {local: data, shuffle: true, num_canonical_nodes: 128}\n'
        'global_train_batch_size: 8\n'
    )
    assert main(['convert-config', str(tmp_path / 'foundry.yaml'), '--native', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['config']['train']['shuffle']
    assert any('num_canonical_nodes: 128' in note for note in found['notes'])
