"""The commands `config` and `convert-config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from headrace.cli import main
from headrace.config.reference import json_schema


class TestCommand:
    """`headrace config`."""

    @pytest.fixture
    def path(self, tmp_path) -> Path:
        path = tmp_path / 'train.yaml'
        path.write_text('global_batch_size: 8\ntrain: {remote: s3://b/a, local: /a}\neval: {local: /b}\n')
        return path

    def test_check(self, path, capsys) -> None:
        assert main(['config', 'check', str(path), 'train.loader.num_workers=2']) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            '  train: 1 stream, 8 samples a global batch, 2 workers a rank',
            '  eval: 1 stream, 8 samples a global batch, 0 workers a rank',
        ]
        assert main(['config', 'check', str(path), 'train.loader.num_worker=2', 'train.shuffle=3']) == 1
        assert capsys.readouterr().err.startswith('headrace: 2 errors in the configuration:')
        assert main(['config', 'check', str(path), '--json']) == 0
        assert list(json.loads(capsys.readouterr().out)['loaders']) == ['train', 'eval']

    def test_show(self, path, capsys) -> None:
        assert main(['config', 'show', str(path), 'train.shuffle=true']) == 0
        shown = OmegaConf.create(capsys.readouterr().out)
        assert shown.train == {'remote': 's3://b/a', 'local': '/a', 'shuffle': True, 'global_batch_size': 8}

    def test_schema(self, capsys) -> None:
        assert main(['config', 'schema']) == 0
        assert json.loads(capsys.readouterr().out) == json_schema()

    def test_a_file_is_needed(self, capsys) -> None:
        assert main(['config', 'check']) == 2
        assert 'needs the YAML file' in capsys.readouterr().err


def test_convert_config_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'foundry.yaml').write_text(
        'train_loader:\n  name: text\n  dataset: {local: data, shuffle: true, num_canonical_nodes: 128}\n'
        'global_train_batch_size: 8\n'
    )
    assert main(['convert-config', str(tmp_path / 'foundry.yaml'), '--native', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['config']['train']['shuffle']
    assert any('num_canonical_nodes: 128' in note for note in found['notes'])
