"""Reading files: inclusion, interpolation, the environment, overrides, and writing a configuration back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.errors import ConfigError
from headrace.mixing import Config, LoaderConfig, StreamConfig, WorkerConfig, load_config, to_yaml

MINIMAL: dict[str, Any] = {'device_batch_size': 4, 'train': {'local': '/data'}}


def write(folder: Path, **files: str) -> Path:
    """Write `name.yaml` for each keyword; returns the last one's path."""
    path = folder
    for name, text in files.items():
        path = folder / f'{name}.yaml'
        path.write_text(text)
    return path


def train(source: Any, *overrides: str) -> LoaderConfig:
    config = load_config(source, overrides=overrides).train
    assert config is not None
    return config


def test_a_whole_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        mix="""
            shuffle_seed: 7
            global_batch_size: 512
            train:
              streams:
                code: {remote: s3://b/code, local: /c/code, split: train, proportion: 0.7}
                prose: {remote: s3://b/prose, local: /c/prose, proportion: 1, endpoint_url: http://localhost:9000}
              epoch_size: 1.5m
              cache_limit: 100gb
              shuffle: true
              loader: {num_workers: 4, timeout: 30}
            """,
    )
    expected = LoaderConfig(
        name='train',
        streams=(
            StreamConfig(name='code', remote='s3://b/code', local='/c/code', split='train', proportion=0.7),
            StreamConfig(
                name='prose',
                remote='s3://b/prose',
                local='/c/prose',
                proportion=1,
                endpoint_url='http://localhost:9000',
            ),
        ),
        epoch_size=1_500_000,
        cache_limit=100 * 2**30,
        shuffle=True,
        shuffle_seed=7,
        global_batch_size=512,
        loader=WorkerConfig(num_workers=4, timeout=30),
    )
    assert load_config(path) == Config(shuffle_seed=7, global_batch_size=512, train=expected)
    assert load_config(str(path)) == load_config(path)


def test_a_list_of_streams_is_a_mapping_with_the_names_inside() -> None:
    mapping = {**MINIMAL, 'train': {'streams': {'a': {'local': '/a'}, 'b': {'local': '/b', 'repeat': 2}}}}
    listed = {
        **MINIMAL,
        'train': {'streams': [{'name': 'a', 'local': '/a'}, {'name': 'b', 'local': '/b', 'repeat': 2}]},
    }
    assert load_config(mapping) == load_config(listed)


def test_evaluation_is_one_loader_or_several_by_name() -> None:
    one = load_config({**MINIMAL, 'eval': {'local': '/val'}})
    several = load_config({**MINIMAL, 'eval': {'c4': {'local': '/c4'}, 'pile': {'streams': {'x': {'local': '/x'}}}}})
    assert [loader.name for loader in one.eval] == ['eval']
    assert [loader.name for loader in several.eval] == ['c4', 'pile']


@pytest.mark.parametrize(
    ('own', 'expected'),
    [
        pytest.param({}, (512, None), id='inherited'),
        pytest.param({'global_batch_size': 8}, (8, None), id='own global'),
        pytest.param({'device_batch_size': 2}, (None, 2), id='own of the other kind'),
    ],
)
def test_the_batch_size_of_the_top_level_is_for_loaders_that_give_none(
    own: dict[str, int], expected: tuple[int | None, int | None]
) -> None:
    config = train({'global_batch_size': 512, 'train': {'local': '/data', **own}})
    assert (config.global_batch_size, config.device_batch_size) == expected


def test_the_seed_of_the_top_level_is_for_loaders_that_give_none() -> None:
    eval_sets = {'a': {'local': '/a'}, 'b': {'local': '/b', 'shuffle_seed': 0}}
    config = load_config({**MINIMAL, 'shuffle_seed': 17, 'eval': eval_sets})
    assert config.train is not None
    assert [config.train.shuffle_seed, *(each.shuffle_seed for each in config.eval)] == [17, 17, 0]


def test_null_is_the_same_as_leaving_out() -> None:
    blank = {**MINIMAL, 'eval': None, 'train': {'local': '/data', 'shuffle': None, 'loader': None, 'streams': None}}
    assert load_config(blank) == load_config(MINIMAL)


def test_loading_needs_neither_torch_nor_a_cloud() -> None:
    # `import headrace` brings in the dataset, and so torch; the modules that load and validate must not need it.
    code = (
        'import sys, types, importlib.util\n'
        "spec = importlib.util.find_spec('headrace')\n"
        "bare = sys.modules['headrace'] = types.ModuleType('headrace')\n"
        'bare.__path__ = spec.submodule_search_locations\n'
        'from headrace.mixing import load_config\n'
        "load_config({'global_batch_size': 4, 'train': {'remote': 's3://no-such-bucket/x'}})\n"
        "loaded = {'torch', 'boto3', 'lightning', 'composer'} & set(sys.modules)\n"
        'assert not loaded, loaded\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=120)


# -- inclusion ---------------------------------------------------------------------------------------------------------


def test_later_files_win_and_the_including_file_wins_over_all(tmp_path: Path) -> None:
    first = 'train: {local: /first, split: first, predownload: 1, epoch_size: 1}'
    second = 'train: {local: /second, split: second, predownload: 2}'
    path = write(
        tmp_path,
        first=first,
        second=second,
        mix='defaults: [first.yaml, second.yaml]\ndevice_batch_size: 4\ntrain: {local: /mix}\n',
    )
    config = train(path)
    assert (config.local, config.split, config.predownload, config.epoch_size) == ('/mix', 'second', 2, 1)


def test_mappings_of_streams_merge_and_lists_replace(tmp_path: Path) -> None:
    base = 'device_batch_size: 4\ntrain: {streams: {a: {local: /a}, b: {local: /b}}}'
    path = write(tmp_path, base=base, more='defaults: [base.yaml]\ntrain: {streams: {b: {split: x}, c: {local: /c}}}')
    assert [(each.name, each.local, each.split) for each in train(path).streams] == [
        ('a', '/a', None),
        ('b', '/b', 'x'),
        ('c', '/c', None),
    ]
    path = write(tmp_path, other='defaults: [base.yaml]\ntrain: {streams: [{name: c, local: /c}]}')
    assert [each.name for each in train(path).streams] == ['c']


def test_included_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / 'site').mkdir()
    write(tmp_path / 'site', cluster='defaults: [../common.yaml]\ntrain: {cache_limit: 1gb}')
    path = write(
        tmp_path, common='device_batch_size: 4\ntrain: {local: /data}', mix='defaults:\n  - site/cluster.yaml\n'
    )
    assert train(path).cache_limit == 2**30


def test_a_file_may_be_included_twice(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        root='device_batch_size: 4\ntrain: {local: /data}',
        left='defaults: [root.yaml]',
        right='defaults: [root.yaml]',
        mix='defaults: [left.yaml, right.yaml]',
    )
    assert train(path).local == '/data'


def test_an_included_name_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('SITE', 'here')
    path = write(tmp_path, here='device_batch_size: 4\ntrain: {local: /here}', mix="defaults: ['${oc.env:SITE}.yaml']")
    assert train(path).local == '/here'


def test_a_mapping_may_include_files(tmp_path: Path) -> None:
    base = write(tmp_path, base='device_batch_size: 4\ntrain: {local: /base, split: x}')
    config = train({'defaults': [str(base)], 'train': {'local': '/own'}})
    assert (config.local, config.split) == ('/own', 'x')


# -- interpolation -----------------------------------------------------------------------------------------------------


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


# -- overrides ---------------------------------------------------------------------------------------------------------

STREAMS: dict[str, Any] = {
    'device_batch_size': 4,
    'train': {'streams': {'a': {'local': '/a'}, 'c4.en': {'local': '/b'}}},
}


@pytest.mark.parametrize(
    ('overrides', 'expected'),
    [
        pytest.param([], [('a', '/a', None), ('c4.en', '/b', None)], id='none'),
        pytest.param(['train.streams.a.local=/x'], [('a', '/x', None), ('c4.en', '/b', None)], id='set'),
        pytest.param(['train.streams.a.split=x y'], [('a', '/a', 'x y'), ('c4.en', '/b', None)], id='space'),
        pytest.param(['train.streams.a.split=k=v'], [('a', '/a', 'k=v'), ('c4.en', '/b', None)], id='equals sign'),
        pytest.param(['train.streams.a={split: x}'], [('a', '/a', 'x'), ('c4.en', '/b', None)], id='merge'),
        pytest.param(['train.streams[c4.en].local=/x'], [('a', '/a', None), ('c4.en', '/x', None)], id='dot in name'),
        pytest.param(
            ['train.streams.d.local=/d', '~train.streams.a'], [('c4.en', '/b', None), ('d', '/d', None)], id='~'
        ),
        pytest.param(['train.streams=[{name: z, local: /z}]'], [('z', '/z', None)], id='list replaces'),
        pytest.param(
            ['train.streams=[{name: z, local: /z}]', 'train.streams.0.local=/y'], [('z', '/y', None)], id='item by dot'
        ),
        pytest.param(
            ['train.streams=[{name: z, local: /z}]', 'train.streams[0].local=/y'], [('z', '/y', None)], id='item'
        ),
        pytest.param(
            ['train.streams.a.local=/x', 'train.streams.a.local=/y'],
            [('a', '/y', None), ('c4.en', '/b', None)],
            id='the later wins',
        ),
        pytest.param(
            ['train.streams.a.local=${variables.x}', 'variables.x=/v'],
            [('a', '/v', None), ('c4.en', '/b', None)],
            id='interpolation',
        ),
    ],
)
def test_overrides(overrides: list[str], expected: list[tuple[str, str, str | None]]) -> None:
    config = train(STREAMS, *overrides)
    assert [(each.name, each.local, each.split) for each in config.streams] == expected


def test_overrides_win_over_every_file(tmp_path: Path) -> None:
    path = write(
        tmp_path, base='device_batch_size: 4\ntrain: {local: /base}', mix='defaults: [base.yaml]\ntrain: {local: /m}'
    )
    assert train(path, 'train.local=/o', 'train.loader.num_workers=8').local == '/o'


def test_overrides_as_a_mapping_keep_their_types() -> None:
    config = load_config(
        MINIMAL, overrides={'train.local': Path('/x'), 'train.loader.num_workers': 2, 'eval': None}
    ).train
    assert config is not None
    assert (config.local, config.loader.num_workers) == ('/x', 2)


def test_a_null_override_takes_a_value_back(tmp_path: Path) -> None:
    config = train({**MINIMAL, 'train': {'local': '/data', 'cache_limit': '1gb'}}, 'train.cache_limit=null')
    assert config.cache_limit is None


def test_the_mapping_given_is_left_as_it_is() -> None:
    source = {'device_batch_size': 4, 'train': {'streams': {'a': {'local': '/a'}}}}
    load_config(source, overrides=['train.streams.a.local=/x', '~device_batch_size', 'global_batch_size=2'])
    assert source == {'device_batch_size': 4, 'train': {'streams': {'a': {'local': '/a'}}}}


def test_one_text_in_the_place_of_overrides_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match='list of texts'):
        load_config(MINIMAL, overrides='train.local=/x')


# -- writing -----------------------------------------------------------------------------------------------------------

names = st.text('abcdefgh.-_ 0123456789', min_size=1, max_size=8)
texts = st.text(min_size=1, max_size=12).filter(
    lambda text: '\\$' not in text and not text.endswith('\\') and text != '???'
)
streams = st.builds(
    StreamConfig,
    name=names,
    local=texts,
    split=st.none() | texts,
    repeat=st.none() | st.floats(0, 1e6),
    keep_zip=st.none() | st.booleans(),
    columns=st.none() | st.lists(texts, min_size=1, max_size=2).map(tuple),
    download_timeout=st.none() | st.floats(1e-3, 1e6),
)
loaders = st.builds(
    LoaderConfig,
    streams=st.lists(streams, min_size=1, max_size=3, unique_by=(lambda each: each.name, lambda each: each.local)),
    shuffle=st.booleans(),
    shuffle_seed=st.none() | st.integers(0, 2**32),
    cache_limit=st.none() | st.integers(1, 2**60),
    device_batch_size=st.integers(1, 4096),
    loader=st.builds(WorkerConfig, num_workers=st.integers(0, 64), timeout=st.floats(0, 1e4)),
)


@given(loader=loaders, several=st.lists(st.sampled_from(['c4', 'eval', 'test', 'x.y']), max_size=3, unique=True))
def test_what_is_written_reads_back_as_the_same(loader: LoaderConfig, several: list[str]) -> None:
    def named(name: str) -> LoaderConfig:
        fields = {key: getattr(loader, key) for key in LoaderConfig.__dataclass_fields__}
        return LoaderConfig(**{**fields, 'name': name, 'streams': tuple(loader.streams)})

    config = Config(train=named('train'), eval=tuple(named(name) for name in several))
    text = to_yaml(config)
    assert load_config(OmegaConf.create(text)) == config
    assert load_config(OmegaConf.create(to_yaml(load_config(OmegaConf.create(text))))) == config


def test_what_is_written_is_short() -> None:
    written = yaml.safe_load(to_yaml(load_config({**MINIMAL, 'eval': {'local': '/val'}})))
    assert written == {
        'device_batch_size': 4,
        'train': {'local': '/data', 'device_batch_size': 4},
        'eval': {'local': '/val', 'device_batch_size': 4},
    }


def test_errors_survive_a_process_boundary() -> None:
    with pytest.raises(ConfigError) as raised:
        load_config({'train': {}})
    assert str(ConfigError(str(raised.value))) == str(raised.value)


def test_paths_in_messages_are_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, mix='train: {locl: /x}')
    with pytest.raises(ConfigError, match=r'\n  mix\.yaml:1: train\.locl'):
        load_config('mix.yaml')
