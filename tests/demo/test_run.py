from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from examples.demo.run import run_demo
from headrace.errors import ConfigError, MissingDependencyError
from tests.support.datasets.small_demo import SMALL


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / 'thesis.tex').write_text('years of work')

    with pytest.raises(ConfigError, match='holds something else'):
        run_demo(tmp_path, frameworks=())

    assert (tmp_path / 'thesis.tex').exists()


def test_a_missing_framework_is_named_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('examples.demo.run.find_spec', lambda name: None)

    with pytest.raises(
        MissingDependencyError, match=r"composer is not installed: pip install 'headrace\[demo,composer\]'"
    ):
        run_demo(tmp_path / 'out', frameworks=('composer',))

    assert not (tmp_path / 'out').exists()


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
