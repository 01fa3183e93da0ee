"""The figures of docs/appendix/figures.md: numbers say what they say, and the pictures are drawn from them."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs.processes import run_well

pytest.importorskip('matplotlib')

from benchmarks.figures.__main__ import NAMES, main
from benchmarks.figures.results import Made, digest, save_picture

REPOSITORY = Path(__file__).parents[1]
FIGURES = REPOSITORY / 'docs' / 'figures'
NEEDS = {
    'ranks': ['torch'],
    'resume': ['lightning', 'streaming', 'litdata'],
    'convergence': ['sklearn', 'torchvision', 'webdataset', 'PIL'],
    'shuffle': ['sklearn'],
    'egress': ['torch'],
    'lengths': ['transformers'],
}


def made(name: str) -> Made:
    return importlib.import_module(f'benchmarks.figures.{name}').FIGURE


def numbers(name: str) -> dict[str, Any]:
    return json.loads((FIGURES / f'{name}.json').read_text(encoding='utf-8'))


def broken(name: str, result: dict[str, Any]) -> list[str]:
    return [claim for claim, holds in made(name).claims(result).items() if not holds]


@pytest.mark.parametrize('name', NAMES)
def test_the_numbers_say_what_the_figure_says(name: str) -> None:
    assert broken(name, numbers(name)) == []


@pytest.mark.parametrize('name', NAMES)
def test_a_picture_is_drawn_from_its_numbers_alone(name: str, tmp_path: Path) -> None:
    file = FIGURES / f'{name}.json'
    save_picture(made(name), file, tmp_path / 'drawn.svg')
    # Bytes differ between versions of matplotlib, so the published picture says which numbers it is of.
    for picture in (tmp_path / 'drawn.svg', FIGURES / f'{name}.svg'):
        assert digest(file) in picture.read_text(encoding='utf-8'), f'run python -m benchmarks.figures {name} --draw'


def test_a_picture_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    for picture in ('1.svg', '2.svg'):
        save_picture(made('egress'), FIGURES / 'egress.json', tmp_path / picture)
    assert (tmp_path / '1.svg').read_bytes() == (tmp_path / '2.svg').read_bytes()


def test_another_loss_breaks_a_claim() -> None:
    changed = copy.deepcopy(numbers('ranks'))
    changed['runs']['4']['loss'][7] += 1e-3
    assert 'the stated differences are those of the curves' in broken('ranks', changed)


def test_a_batch_that_moved_breaks_claims() -> None:
    changed = copy.deepcopy(numbers('resume'))
    ids = changed['libraries']['headrace']['legs'][1]['ids']
    ids[0], ids[1] = ids[1], ids[0]
    assert broken('resume', changed) == ['the verdicts are those of the ids']
    changed['libraries']['headrace']['verdict']['batches with the same samples'] -= 2
    assert broken('resume', changed) == [next(iter(made('resume').claims(changed)))]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures('mosaicml_streaming_lock')
@pytest.mark.parametrize('name', NAMES)
def test_the_smallest_runs_give_numbers_and_a_picture(name: str, tmp_path: Path) -> None:
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f'{package} is not installed')
    command = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.figures', name, '--small', '--out', str(tmp_path)]
    run_well(command, cwd=REPOSITORY, timeout=800)
    assert (tmp_path / f'{name}.svg').exists()
    if name not in ('convergence', 'lengths', 'shuffle'):  # which are of chance in runs so small
        assert broken(name, json.loads((tmp_path / f'{name}.json').read_text())) == []


def test_a_picture_without_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, 'argv', ['figures', 'ranks', '--draw', '--out', str(tmp_path)])
    with pytest.raises(SystemExit, match='--draw needs the numbers of ranks, but there is no .*ranks.json'):
        main()
