"""Values of interpolations."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from headrace.errors import ConfigError
from headrace.mixing import WorkerConfig, config_of_foundry, load_config
from tests.support.datasets.refusals import MINIMAL, changed, errors, train, write


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


PLANTED = 'planted-5ecret'

REFUSED = {
    'a number': ('train: {remote: s3://b, global_batch_size: "${oc.env:PLANTED}"}', 'global_batch_size: got'),
    'a choice': ('train: {remote: s3://b, sampling_method: "${oc.env:PLANTED}"}', 'sampling_method: got'),
    'a mapping': ('train: {remote: s3://b, loader: "${oc.env:PLANTED}"}', 'train.loader: got'),
    'a list that holds one': ('train: {remote: s3://b, loader: ["${oc.env:PLANTED}"]}', 'train.loader: got'),
    'an unknown key': ('train: {remote: s3://b, rmote: "${oc.env:PLANTED}"}', 'train.rmote: got'),
    'a key of a secret': ('train: {remote: s3://b, password: "${oc.env:PLANTED}"}', 'train.password: got'),
    'two keys': (
        'train: {streams: {a: {remote: s3://b, proportion: 1, repeat: "${oc.decode:${oc.env:PIN}}"}}}',
        'proportion: 1, repeat: ',
    ),
    'a part of a text': ('train: {remote: s3://b, sampling_method: "x/${oc.env:PLANTED}/y"}', 'sampling_method: got'),
    'through another key': (
        'variables: {v: "${oc.env:PLANTED}"}\ntrain: {remote: s3://b, loader: {num_workers: "${variables.v}"}}',
        'num_workers: got',
    ),
    'in a mapping that is named': (
        'variables: {v: {num_workers: "${oc.env:PLANTED}"}}\ntrain: {remote: s3://b, loader: "${variables.v}"}',
        'num_workers: got',
    ),
    'decoded': ('train: {remote: s3://b, streams: "${oc.decode:\'[${oc.env:PLANTED}\'}"}', 'train.streams: got'),
    'decoded to a number': ('train: {remote: s3://b, shuffle: "${oc.decode:${oc.env:PIN}}"}', 'train.shuffle: got'),
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PLANTED', PLANTED)
    monkeypatch.setenv('PIN', '8251942')


def refusal_of(make) -> str:
    with pytest.raises(ConfigError) as refused:
        make()
    text = ''.join(traceback.format_exception(refused.value))
    assert PLANTED not in text
    assert '8251942' not in text
    return str(refused.value)


@pytest.mark.parametrize('case', REFUSED)
def test_an_error_shows_the_interpolation(tmp_path: Path, case: str) -> None:
    text, place = REFUSED[case]
    (tmp_path / 'train.yaml').write_text(text)

    message = refusal_of(lambda: load_config(tmp_path / 'train.yaml'))

    assert place in message
    assert '${' in message


def test_an_error_about_an_override_shows_the_interpolation() -> None:
    message = refusal_of(
        lambda: load_config({'train': {'remote': 's3://b'}}, overrides=['train.loader.num_workers=${oc.env:PLANTED}'])
    )

    assert "num_workers: got '${oc.env:PLANTED}'" in message


def test_an_error_about_a_part_of_a_larger_configuration_shows_the_interpolation() -> None:
    whole = OmegaConf.create({'data': {'train': {'remote': 's3://b', 'loader': {'num_workers': '${oc.env:PLANTED}'}}}})

    assert '${oc.env:PLANTED}' in refusal_of(lambda: load_config(whole.data))


def test_an_error_about_a_file_of_llm_foundry_shows_the_interpolation() -> None:
    given = {'train_loader': {'name': '${oc.env:PLANTED}', 'dataset': {'remote': 's3://b'}}}

    assert '${oc.env:PLANTED}' in refusal_of(lambda: config_of_foundry(given))


def test_a_file_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / 'train.yaml').write_text(f'train: [\npassword: {PLANTED}: {{')

    assert 'train.yaml:2: not valid YAML' in refusal_of(lambda: load_config(tmp_path / 'train.yaml'))
