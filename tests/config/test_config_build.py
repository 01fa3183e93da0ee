"""From a configuration to a dataset and a loader: arguments, batch size, topology, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from headrace.dataset.dataset import StreamingDataset
from headrace.errors import ConfigError, TopologyError
from headrace.mixing import LoaderConfig, StreamConfig, WorkerConfig, build_dataset, build_loader, load_config, to_yaml
from headrace.order import Topology
from headrace.tensors.decoding import Decode
from headrace.tensors.images import ImageTensor

WriteShards = Callable[..., Path]


@pytest.fixture
def data(tmp_path: Path, write_shards: WriteShards) -> Path:
    return write_shards(tmp_path / 'data', samples=96)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK'):
        monkeypatch.delenv(name, raising=False)


def config(data: Path, **keys: Any) -> LoaderConfig:
    loaded = load_config({'train': {'local': data, 'device_batch_size': 8, **keys}}).train
    assert loaded is not None
    return loaded


class Recorder:
    """In the place of a dataset: keeps what it is made with."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


def recorded(loader: LoaderConfig, **keys: Any) -> dict[str, Any]:
    dataset: Any = build_dataset(loader, dataset_class=cast('Any', Recorder), **keys)
    return dataset.arguments


def test_a_file_gives_the_same_samples_as_the_constructor(data: Path) -> None:
    loader = build_loader(config(data, shuffle=True, shuffle_seed=3))
    direct = StreamingDataset(local=str(data), batch_size=8, shuffle=True, shuffle_seed=3)
    ids = [number for batch in loader for number in batch['id'].tolist()]
    assert len(ids) == 96
    assert ids == [sample['id'] for sample in direct]


def test_every_key_arrives(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        'epoch_size': 10,
        'predownload': 64,
        'cache_limit': '1gb',
        'sampling_method': 'balanced',
        'sampling_granularity': 2,
        'partition_algo': 'orig',
        'num_canonical_nodes': 4,
        'shuffle': True,
        'shuffle_algo': 'native',
        'shuffle_seed': 5,
        'shuffle_block_size': '1k',
        'batching_method': 'stratified',
        'allow_unsafe_types': True,
        'replication': 2,
        'remainder': 'drop',
        'when_exhausted': 'repeat',
        'on_mixture_change': 'continue',
        'on_growth': 'next_pass',
        'growth_wait': 30.0,
        'skip': [[1, 2], ['3sp', '4sp']],
        'on_bad_sample': 'skip',
    }
    arguments = recorded(config(tmp_path, **keys))
    (stream,) = arguments.pop('streams')
    assert stream.local == str(tmp_path)
    assert stream.name is None
    expected = {
        **keys,
        'schedule': [],
        'decisions': (),
        'cache_limit': 2**30,
        'shuffle_block_size': 1000,
        'batch_size': 8,
        'global_batch_size': None,
        'uneven': None,
        'topology': None,
        'bucket': None,
        'peers': None,
        'batch_cost': None,
        'balance': None,
        'loss_weight': None,
    }
    expected['skip'] = ((1, 2), ('3sp', '4sp'))
    assert arguments == expected
    own = {field.name for field in dataclasses.fields(LoaderConfig)} & set(arguments)
    later = {'peers', 'bucket', 'batch_cost', 'balance', 'loss_weight', 'global_batch_size', 'uneven'}
    assert {*keys, 'schedule', 'decisions', *later} == own


def test_keys_that_others_exclude_arrive(tmp_path: Path) -> None:
    keys: dict[str, Any] = {'epoch_size': 10, 'sampling_method': 'fixed', 'skip': [['3ba', '4ba']]}
    arguments = recorded(config(tmp_path, **keys))
    assert (arguments['sampling_method'], arguments['skip']) == ('fixed', (('3ba', '4ba'),))


def test_a_schedule_arrives_as_points(tmp_path: Path) -> None:
    points = [{'at': '0', 'proportions': {'a': 1}}, {'at': '2k', 'proportions': {'a': 1, 'b': 2}, 'change': 'linear'}]
    streams = {'streams': {'a': {'local': tmp_path / 'a'}, 'b': {'local': tmp_path / 'b'}}, 'local': None}
    assert recorded(config(tmp_path, **streams, schedule=points))['schedule'] == [
        {'at': 0, 'proportions': {'a': 1.0}, 'change': 'step'},
        {'at': 2000, 'proportions': {'a': 1.0, 'b': 2.0}, 'change': 'linear'},
    ]


def test_the_default_seed_is_the_dataset_s(tmp_path: Path) -> None:
    assert 'shuffle_seed' not in recorded(config(tmp_path))


def test_what_a_stream_does_not_say_the_loader_says(tmp_path: Path) -> None:
    defaults: dict[str, Any] = {
        'download_retry': 7,
        'download_timeout': 30,
        'validate_hash': 'md5',
        'keep_zip': True,
        'endpoint_url': 'http://a',
        'region': 'r',
        'anonymous': True,
        'requester_pays': True,
        'store_options': {'profile': 'p', 'connect_timeout': 3},
    }
    own: dict[str, Any] = {'download_retry': 0, 'keep_zip': False, 'anonymous': False, 'endpoint_url': 'http://b'}
    streams = {'plain': {'remote': 's3://x/y'}, 'own': {'remote': 's3://x/z', 'repeat': 2, **own}}
    loader = load_config({'train': {'streams': streams, 'device_batch_size': 8, **defaults}}).train
    assert loader is not None
    plain, special = recorded(loader)['streams']
    assert (plain.name, special.name, special.repeat) == ('plain', 'own', 2)
    assert {key: getattr(plain, key) for key in defaults} == defaults
    assert {key: getattr(special, key) for key in defaults} == {**defaults, **own}


def test_decisions_of_a_file_or_a_list_are_repeated(data: Path, tmp_path: Path) -> None:
    streams: dict[str, Any] = {'a': {'local': str(data)}, 'b': {'local': str(data)}}
    loader = build_loader(config(data, local=None, streams=streams, shuffle=True))
    passing = iter(loader)
    batches = [next(passing)]
    decisions = [loader.set_proportions({'a': 1, 'b': 3}, by='test').to_json()]
    batches += passing
    (tmp_path / 'list.json').write_text(json.dumps(decisions))
    (tmp_path / 'state.json').write_text(json.dumps(loader.state_dict()))
    for given in (decisions, str(tmp_path / 'list.json'), str(tmp_path / 'state.json')):
        again = build_loader(config(data, local=None, streams=streams, shuffle=True, decisions=given))
        assert [batch['id'].tolist() for batch in again] == [batch['id'].tolist() for batch in batches]
    (tmp_path / 'broken.json').write_text('{')
    for wrong in ('broken.json', 'none.json', 'data'):  # the last is a folder
        with pytest.raises(ConfigError, match='train.decisions.* must be a list of decisions, or a JSON file of them:'):
            config(data, decisions=str(tmp_path / wrong))
    unnamed = [{**decisions[0], 'what': {'proportions': {'a': 1, 2: 1}}}]
    with pytest.raises(ConfigError, match='a decision must change `proportions` of named streams'):
        config(data, decisions=unnamed)


@pytest.mark.parametrize(
    ('topology', 'replication', 'expected'),
    [
        pytest.param(None, None, 96, id='alone'),
        pytest.param(Topology(rank=1, world_size=4), None, 24, id='four ranks'),
        pytest.param(Topology(rank=1, world_size=4, num_nodes=2, replication=2), None, 48, id='replicas'),
        pytest.param(Topology(rank=1, world_size=4, num_nodes=2), 2, 48, id='replicas by the file'),
        pytest.param(Topology(rank=1, world_size=4, replication=2), 2, 48, id='replicas by both'),
    ],
)
def test_a_global_batch_is_divided(
    data: Path, topology: Topology | None, replication: int | None, expected: int
) -> None:
    loader = config(data, device_batch_size=None, global_batch_size=96, replication=replication)
    built = build_loader(loader, topology=topology)
    assert (built.batch_size, built.dataset.batch_size, built.global_batch_size) == (expected, expected, 96)
    if topology is not None:
        assert built.dataset.topology.replication == (replication or topology.replication)


def test_the_launcher_s_ranks_are_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('RANK', '3')
    monkeypatch.setenv('WORLD_SIZE', '8')
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '4')
    dataset = build_dataset(config(data, device_batch_size=None, global_batch_size=96, replication=2))
    assert dataset.batch_size == 24


def test_a_global_batch_is_shared_by_ranks_that_appear_later(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = build_loader(config(data, device_batch_size=None, global_batch_size=8))
    monkeypatch.setenv('RANK', '1')
    monkeypatch.setenv('WORLD_SIZE', '2')
    assert next(iter(loader))['id'].tolist() == [1, 3, 5, 7]


def test_a_device_batch_needs_no_topology(tmp_path: Path) -> None:
    assert recorded(config(tmp_path))['topology'] is None


@pytest.mark.parametrize(
    ('size', 'topology', 'expected'),
    [
        pytest.param(
            10,
            Topology(rank=0, world_size=4),
            '4 ranks must divide the global batch size of train, but it is 10. The nearest that they divide: 8 and 12. '
            'Or set `uneven: pad`, so that some ranks have a row less.',
            id='ranks',
        ),
        pytest.param(
            3,
            Topology(rank=0, world_size=4),
            '4 ranks must divide the global batch size of train, but it is 3. The nearest that they divide: 4.',
            id='fewer than ranks',
        ),
        pytest.param(
            9,
            Topology(rank=0, world_size=8, replication=2),
            '8 ranks with replication 2 make 4 replicas, which must divide the global batch size of train, '
            'but it is 9. The nearest that they divide: 8 and 12. '
            'Or set `uneven: pad`, so that some ranks have a row less.',
            id='replicas',
        ),
    ],
)
def test_ranks_that_do_not_divide_are_refused(tmp_path: Path, size: int, topology: Topology, expected: str) -> None:
    loader = config(tmp_path, device_batch_size=None, global_batch_size=size)
    with pytest.raises(TopologyError) as raised:
        build_dataset(loader, topology=topology)
    assert str(raised.value) == expected


def test_replication_given_twice_differently_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r'replication=2, but train says replication: 4'):
        build_dataset(config(tmp_path, replication=4), topology=Topology(rank=0, world_size=8, replication=2))


def test_ranks_share_the_batches_of_one_sequence(data: Path) -> None:
    loader = config(data, device_batch_size=None, global_batch_size=12, shuffle=True)
    alone = [set(batch['id'].tolist()) for batch in build_loader(loader, topology=Topology(rank=0, world_size=1))]
    both = [build_loader(loader, topology=Topology(rank=rank, world_size=2)) for rank in range(2)]
    together = [{*a['id'].tolist(), *b['id'].tolist()} for a, b in zip(*both, strict=True)]
    assert together == alone


def test_a_file_deals_uneven_batches_and_their_weights(data: Path) -> None:
    keys: dict[str, Any] = {'global_batch_size': 10, 'uneven': 'ragged', 'loss_weight': 'samples'}
    loaders = [
        build_loader(config(data, device_batch_size=None, **keys), topology=Topology(rank=rank, world_size=3))
        for rank in range(3)
    ]
    first = [next(iter(loader)) for loader in loaders]
    assert sorted(sum((batch['id'].tolist() for batch in first), [])) == list(range(10))
    assert sum(float(batch['loss_weight'].mean()) for batch in first) == pytest.approx(3)


@pytest.mark.parametrize(
    'drop', [{'remainder': 'drop'}, {'loader': {'drop_last': True}}], ids=['remainder', 'drop_last']
)
def test_the_remainder_can_be_dropped_by_either_name(data: Path, drop: dict[str, Any]) -> None:
    sizes = [len(batch['id']) for batch in build_loader(config(data, device_batch_size=10, **drop))]
    assert sizes == [10] * 9
    assert recorded(config(data, **drop))['remainder'] == 'drop'


def test_worker_options_reach_the_loader(data: Path) -> None:
    options = {
        'num_workers': 1,
        'prefetch_factor': 3,
        'persistent_workers': True,
        'timeout': 60,
        'multiprocessing_context': 'fork',
    }
    loader = build_loader(config(data, loader=options), collate_fn=len)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.timeout) == (1, 3, True, 60)
    assert loader.collate_fn is len
    assert sum(loader) == 96


def test_without_workers_their_options_are_ignored(data: Path) -> None:
    options = {'prefetch_factor': 3, 'persistent_workers': True, 'timeout': 60, 'multiprocessing_context': 'spawn'}
    assert sum(build_loader(config(data, loader=options), collate_fn=len)) == 96


def test_a_dataset_of_one_s_own(data: Path) -> None:
    class Doubled(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return 2 * super().__getitem__(index)['id']

    loader = build_loader(config(data), dataset_class=Doubled)
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(0, 192, 2))


@pytest.mark.parametrize(
    ('loader', 'expected'),
    [
        pytest.param(
            LoaderConfig(local='/x'),
            ['loader: has no batch size; give `global_batch_size` or `device_batch_size`'],
            id='no batch size',
        ),
        pytest.param(
            LoaderConfig(name='train', device_batch_size=1, loader=WorkerConfig()),
            ['train: names no data; give `streams`, or `remote` and `local` of a single stream'],
            id='no data',
        ),
        pytest.param(
            LoaderConfig(
                device_batch_size=1,
                global_batch_size=1,
                streams=(StreamConfig(name='a', local='/a', repeat=1, choose=1), StreamConfig(name='b')),
            ),
            [
                'loader: `global_batch_size` and `device_batch_size` exclude each other; keep one',
                'loader: stream a: a stream has at most one of `proportion`, `repeat` and `choose`; keep one',
                'loader: stream b: a stream needs `remote`, `local`, or both',
            ],
            id='several',
        ),
    ],
)
def test_a_configuration_made_in_python_is_held_to_the_same_rules(loader: LoaderConfig, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        build_dataset(loader)
    assert [line.strip() for line in str(raised.value).split('\n')[1:]] == expected


SELECTION: dict[str, Any] = {
    'subset': [['1k', None]],
    'fraction': [0, 0.95],
    'fraction_seed': 3,
    'where': {'lang': ['fr', 'de'], 'id': {'not': {'below': 5}}},
}


def test_a_selection_is_the_stream_s_or_the_loader_s() -> None:
    streams = {'plain': {'local': '/a'}, 'own': {'local': '/b', 'fraction': [0, 1], 'where': {'id': 5}}}
    loaded = load_config({'device_batch_size': 8, 'train': {'streams': streams, **SELECTION}})
    assert load_config(OmegaConf.create(to_yaml(loaded))) == loaded
    assert loaded.train is not None
    arguments = recorded(loaded.train)
    assert not set(SELECTION) & set(arguments)
    plain, own = arguments['streams']
    assert plain.subset.plain == [[1000, None]]
    assert plain.fraction.plain == ['0', '19/20']
    assert plain.where.plain == {'lang': ['de', 'fr'], 'id': {'not': {'below': 5}}}
    assert (own.subset, own.fraction_seed) == (plain.subset, 3)
    assert (own.fraction.plain, own.where.plain) == (['0', '1'], {'id': 5})


def test_a_selection_of_a_file_is_that_of_the_constructor(data: Path) -> None:
    keys: dict[str, Any] = {'subset': [[5, 90]], 'fraction': [0, 0.5], 'where': {'id': {'at_least': 10}}}
    dataset = build_dataset(config(data, **keys))
    direct = StreamingDataset(local=str(data), batch_size=8, **keys)
    assert dataset.streams[0].fingerprint == direct.streams[0].fingerprint
    assert [dataset[i]['id'] for i in range(dataset.size)] == [direct[i]['id'] for i in range(direct.size)]


def test_images_of_a_loader_and_of_a_stream() -> None:
    image = {'size': 224, 'crop': 'random', 'flip': 0.5}
    streams = {'plain': {'local': '/a'}, 'own': {'local': '/b', 'decode': {'picture': image}}}
    loaded = load_config({'device_batch_size': 8, 'train': {'streams': streams, 'decode': 'tensor'}})
    assert load_config(OmegaConf.create(to_yaml(loaded))) == loaded
    assert loaded.train is not None
    plain, own = recorded_streams(loaded.train)
    assert plain.decode == Decode(ImageTensor())
    assert own.decode == Decode(None, (('picture', ImageTensor(size=224, crop='random', flip=0.5)),))


def test_the_page_s_examples_load() -> None:
    page = (Path(__file__).parents[2] / 'docs' / 'selection.md').read_text()
    blocks = re.findall(r'^```yaml\n(.*?)^```$', page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        train = load_config(OmegaConf.create(block)).train
        assert train is not None
        assert all(stream.fraction.plain == ['0', '19/20'] for stream in recorded_streams(train))


def recorded_streams(loader: LoaderConfig) -> list[Any]:
    return recorded(loader, topology=Topology())['streams']
