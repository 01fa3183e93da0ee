"""The code of pages of the docs on datasets and loaders runs as it is pasted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from headrace.mixing import load_config
from tests.support.pages.page_code import DOCS, blocks, run_page

pytestmark = pytest.mark.once


def test_the_code_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page((DOCS / 'samples.md').read_text(), tmp_path, monkeypatch)

    assert names['batch']['tokens'].shape == (20, 64)


def test_the_code_of_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page((DOCS / 'recipes.md').read_text(), tmp_path, monkeypatch)

    assert torch.load('checkpoint.pt')['data'] == names['tracker'].state_dict()
    assert names['tracker'].state_dict()['position']['epoch'] == 1


@pytest.mark.parametrize('page', ['mixtures', 'packing'])
def test_the_yaml_is_a_configuration(page: str) -> None:
    for block in blocks((DOCS / f'{page}.md').read_text(), 'yaml'):
        config = load_config(OmegaConf.create(block))
        assert config.train or config.eval
