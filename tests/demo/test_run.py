from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from headrace.demo.assignment import Assignment, newest_checkpoint, read_assignment
from headrace.demo.run import run_demo
from headrace.demo.settings import Settings
from headrace.errors import ConfigError, MissingDependencyError
from headrace.mixing import load_config

REPOSITORY = Path(__file__).parents[2]
SMALL = Settings(rows=320, checkpoint_every=5, kill_after=38)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / 'thesis.tex').write_text('years of work')

    with pytest.raises(ConfigError, match='holds something else'):
        run_demo(tmp_path, frameworks=())

    assert (tmp_path / 'thesis.tex').exists()


def test_a_missing_framework_is_named_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('headrace.demo.run.find_spec', lambda name: None)

    with pytest.raises(
        MissingDependencyError, match=r"composer is not installed: pip install 'headrace\[demo,composer\]'"
    ):
        run_demo(tmp_path / 'out', frameworks=('composer',))

    assert not (tmp_path / 'out').exists()


def test_the_mix_is_what_the_settings_say() -> None:
    config = load_config(str(files('headrace.demo').joinpath('mix.yaml'))).train
    settings = Settings()

    assert config is not None
    assert config.global_batch_size == settings.global_batch_size
    assert {stream.name: stream.repeat or 1 for stream in config.streams} == settings.repeats


def test_the_example_configuration_is_the_mix_of_the_demo() -> None:
    packaged = files('headrace.demo').joinpath('mix.yaml').read_text()

    assert (REPOSITORY / 'configs' / 'demo.yaml').read_text() == packaged


def test_global_batches_divide_the_epochs_and_the_kill_is_between_checkpoints() -> None:
    for settings in (Settings(), SMALL):
        assert settings.samples_per_epoch % settings.global_batch_size == 0
        per_epoch = settings.steps // settings.epochs
        checkpoint = settings.kill_after // settings.checkpoint_every * settings.checkpoint_every
        assert settings.kill_after % settings.checkpoint_every
        assert checkpoint % per_epoch, 'a checkpoint within an epoch'
        assert checkpoint + settings.compared_steps <= settings.steps


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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    'framework', [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ('lightning', 'composer')]
)
def test_a_small_demo_holds_and_may_be_run_again(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f'{framework} is not installed')
    for _ in range(2):
        trainings = run_demo(tmp_path / 'out', frameworks=[framework], settings=SMALL)
        assert [training.proof.holds for training in trainings] == [True]

    assert 'The proof holds' in capsys.readouterr().out
    assert (tmp_path / 'out' / 'loss.png').exists()
