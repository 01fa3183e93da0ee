"""Reading files: inclusion, interpolation, the environment, overrides, and writing a configuration back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.mixing import Config, LoaderConfig, StreamConfig, WorkerConfig, load_config
from headrace.storage.cache.peer_options import PeerOptions
from tests.support.datasets.refusals import MINIMAL, changed, errors, train, write


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


def test_errors_survive_a_process_boundary() -> None:
    with pytest.raises(ConfigError) as raised:
        load_config({'train': {}})
    assert str(ConfigError(str(raised.value))) == str(raised.value)


def test_paths_in_messages_are_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, mix='train: {locl: /x}')
    with pytest.raises(ConfigError, match=r'\n  mix\.yaml:1: train\.locl'):
        load_config('mix.yaml')


def test_a_circle_of_files_is_named(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    for name, included in (('a', 'b'), ('b', 'c'), ('c', 'b')):
        (folder / f'{name}.yaml').write_text(f'defaults: [{included}.yaml]\n')
    assert errors(folder / 'a.yaml') == [
        (
            f'{folder}/c.yaml:1: defaults[0]: files include each other: '
            f'{folder}/b.yaml -> {folder}/c.yaml -> {folder}/b.yaml; remove one of these `defaults`'
        )
    ]


@pytest.mark.parametrize(
    ('override', 'expected'),
    [
        pytest.param('train.shuffle', 'has no value; write key=value, or ~key to remove a key', id='no value'),
        pytest.param('=3', 'names no key; write key=value', id='no key'),
        pytest.param('~train.nope', 'there is no key train.nope to remove', id='nothing to remove'),
        pytest.param('global_batch_size.x=1', 'global_batch_size is 512, which holds no keys', id='into a number'),
        pytest.param('train.x={a', "the value is not valid YAML: did not find expected ',' or '}'", id='bad YAML'),
        pytest.param(
            'eval.0.local=/x',
            'eval is an interpolation, ${train}; override what it refers to',
            id='into an interpolation',
        ),
        pytest.param(
            'test.streams.2.local=/x',
            'test.streams is a list of 1; write a position from 0 to 0, or the whole list',
            id='beyond a list',
        ),
        pytest.param(
            'test.streams.a.local=/x',
            'test.streams is a list of 1; write a position from 0 to 0, or the whole list',
            id='a name into a list',
        ),
    ],
)
def test_an_override_that_cannot_be_laid_on(override: str, expected: str) -> None:
    source = changed(eval='${train}', test={'streams': [{'name': 'a', 'local': '/a'}]})
    assert errors(source, [override]) == [f"override '{override}': {expected}"]


def test_nodes_that_share_their_caches(tmp_path: Path) -> None:
    train = {'remote': 's3://b/a', 'local': '/a', 'peers': {'hosts': ['node-1', 'node-2:7300'], 'port': 7301}}
    path = tmp_path / 'config.yaml'
    path.write_text(json.dumps({'global_batch_size': 8, 'train': train}))
    loaded = load_config(path)
    assert loaded.train is not None
    assert loaded.train.peers == PeerOptions(hosts=('node-1', 'node-2:7300'), port=7301)
    path.write_text(str(loaded))
    assert load_config(path) == loaded
    path.write_text(str(loaded).replace('7301', '0'))
    with pytest.raises(ConfigError, match=r'train\.peers: got .*; must be a mapping: {} finds the nodes .* or `hosts`'):
        load_config(path)
    path.write_text(json.dumps({'global_batch_size': 8, 'train': {**train, 'peers': {}}}))
    loaded = load_config(path)
    assert loaded.train is not None
    assert loaded.train.peers == PeerOptions()
    path.write_text(str(loaded))
    assert load_config(path) == loaded
