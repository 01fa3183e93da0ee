"""The arguments of a rank program, and its newest checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.demo.assignment import Assignment, newest_checkpoint, read_assignment


def test_an_assignment_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = Assignment(
        mix='mix.yaml',
        overrides={'variables.cache': '/cache', 'train.loader.num_workers': 2},
        folder=str(tmp_path / 'run'),
        ranks=2,
        epochs=3,
        checkpoint_every=20,
        checkpoint=None,
    )
    monkeypatch.setattr('sys.argv', ['program', str(assignment.write())])

    assert read_assignment() == assignment


def test_the_newest_checkpoint_has_the_highest_step(tmp_path: Path) -> None:
    for name in ('step20.ckpt', 'step100.ckpt', 'step40.ckpt', 'last.ckpt'):
        torch.save({'weight': torch.ones(100)}, tmp_path / name)

    assert newest_checkpoint(tmp_path).name == 'step100.ckpt'


def test_a_checkpoint_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    for name in ('step20.ckpt', 'step40.ckpt'):
        torch.save({'weight': torch.ones(100)}, tmp_path / name)
    whole = (tmp_path / 'step40.ckpt').read_bytes()
    for size in range(0, len(whole) - 1, 50):
        (tmp_path / 'step40.ckpt').write_bytes(whole[:size])

        assert newest_checkpoint(tmp_path).name == 'step20.ckpt'


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='no whole checkpoint in'):
        newest_checkpoint(tmp_path)
