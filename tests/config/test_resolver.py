"""Values of interpolations."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from refusals import MINIMAL, changed, errors, train, write

from headrace.mixing import WorkerConfig, load_config


def test_a_mapping_that_contains_itself_by_interpolation_ends() -> None:
    (line,) = errors(changed(train__streams__code='${train.streams}'))
    assert 'train.streams.code' in line
    assert 'cannot be resolved' in line or 'unknown key' in line or 'nested too deeply' in line


def test_interpolation_sees_the_merged_whole(tmp_path: Path) -> None:
    base = 'variables: {root: /base, half: 2}\ndevice_batch_size: 4\ntrain: {local: "${variables.root}/x"}'
    path = write(tmp_path, base=base, mix='defaults: [base.yaml]\nvariables: {root: /mix}')
    assert train(path).local == '/mix/x'
    assert train(path, 'variables.root=/override').local == '/override/x'


def test_the_environment_fills_in_and_has_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ROOT', '/root/of/data')
    monkeypatch.delenv('ABSENT', raising=False)
    loader = {'num_workers': '${oc.decode:${oc.env:ABSENT,3}}'}
    config = train(
        {**MINIMAL, 'train': {'local': '${oc.env:ROOT}/x', 'split': '${oc.env:ABSENT,val}', 'loader': loader}}
    )
    assert (config.local, config.split, config.loader.num_workers) == ('/root/of/data/x', 'val', 3)


def test_a_whole_section_may_be_an_interpolation() -> None:
    loader = {'num_workers': 3}
    config = load_config(
        {
            **MINIMAL,
            'train': {'local': '/data', 'loader': loader},
            'eval': '${train}',
            'test': {'local': '/t', 'loader': '${train.loader}'},
        }
    )
    assert [(each.name, each.local) for each in config.eval] == [('eval', '/data')]
    assert [each.loader for each in config.test] == [WorkerConfig(num_workers=3)]


def test_variables_that_nothing_uses_are_not_resolved() -> None:
    train({**MINIMAL, 'variables': {'unused': '${oc.env:NOT_SET}', 'anything': [{'at': 'all'}]}})


def test_an_omegaconf_mapping_and_a_part_of_a_larger_one() -> None:
    whole = OmegaConf.create({'root': '/data', 'data': {'device_batch_size': 4, 'train': {'local': '${root}'}}})
    assert load_config(whole.data) == load_config(MINIMAL)
    assert load_config(OmegaConf.create(MINIMAL)) == load_config(MINIMAL)
    assert load_config({**MINIMAL, 'train': {'local': Path('/data')}}) == load_config(MINIMAL)
