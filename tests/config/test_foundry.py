"""LLM Foundry's YAML: its loaders give MosaicML Streaming's batches, and nothing in it is passed over in silence."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli import main
from headrace.errors import ConfigError
from headrace.mixing import Config, build_loader, config_of_foundry, load_config, to_yaml
from headrace.order import Topology
from headrace.order.families import ALGORITHMS

WriteShards = Callable[..., Path]


FINETUNING = """
variables:
  global_seed: 17
  max_seq_len: 512
  data_local: {root}/one
  data_remote:  # If blank, files must be present in data_local
  run_name:

max_seq_len: ${{variables.max_seq_len}}
run_name: ${{oc.env:NO_SUCH_RUN_NAME}}
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: gpt2

train_loader:
  name: finetuning
  dataset:
    streams:
      my_data:
        remote: ${{variables.data_remote}}
        local: ${{variables.data_local}}
        split: train
    shuffle: true
    max_seq_len: ${{variables.max_seq_len}}
    decoder_only_format: true
  drop_last: true
  num_workers: 0

max_duration: 1ep
eval_first: false
global_train_batch_size: 8
device_eval_batch_size: 8
device_train_microbatch_size: 8
"""


PRETRAINING = """
data_local: {root}/one
data_remote: # If blank, files must be present in data_local
max_seq_len: 2048
global_seed: 17

tokenizer:
  name: EleutherAI/gpt-neox-20b
  kwargs:
    model_max_length: ${{max_seq_len}}

train_loader:
  name: text
  dataset:
    local: ${{data_local}}
    remote: ${{data_remote}}
    split: train
    shuffle: true
    max_seq_len: ${{max_seq_len}}
    shuffle_seed: ${{global_seed}}
  drop_last: true
  num_workers: 0

eval_loader:
  name: text
  dataset:
    local: ${{data_local}}
    remote: ${{data_remote}}
    split: val
    shuffle: false
    max_seq_len: ${{max_seq_len}}
    shuffle_seed: ${{global_seed}}
  drop_last: false
  num_workers: 0

max_duration: 4800ba
eval_subset_num_batches: -1
global_train_batch_size: 12
device_eval_batch_size: 5
"""


UNTOKENISED = 'ignore:headrace hands out samples as they are stored'


@pytest.fixture
def root(tmp_path: Path, write_shards: WriteShards) -> Path:
    """A folder with the data that the examples name, and two streams more."""
    write_shards(tmp_path / 'one' / 'train', samples=203)
    write_shards(tmp_path / 'one' / 'val', samples=53, first=1000)
    write_shards(tmp_path / 'two' / 'train', samples=97, first=2000)
    write_shards(tmp_path / 'three' / 'train', samples=31, first=3000)
    return tmp_path


def written(root: Path, text: str) -> Path:
    path = root / 'foundry.yaml'
    path.write_text(text.format(root=root))
    return path


def foundry(dataset: dict[str, Any], batch_size: int = 8, **loader: Any) -> dict[str, Any]:
    return {'train_loader': {'name': 'text', 'dataset': dataset, **loader}, 'global_train_batch_size': batch_size}


def ids(loader: Any, epochs: int = 2) -> list[list[list[int]]]:
    return [[batch['id'].tolist() for batch in loader] for _ in range(epochs)]


def of_training(config: Config, epochs: int = 2) -> list[list[list[int]]]:
    assert config.train is not None
    return ids(build_loader(config.train, topology=Topology()), epochs)


def refused(document: Any, **arguments: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        config_of_foundry(document, **arguments)
    return [line.strip() for line in str(raised.value).split('\n')[1:]]


class TestOrder:
    """Batches are those of MosaicML Streaming's dataset in torch's loader, as LLM Foundry makes them."""

    @pytest.fixture(autouse=True)
    def _one_rank(self, monkeypatch: pytest.MonkeyPatch, mosaicml_streaming: Any) -> None:
        for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE'):
            monkeypatch.delenv(name, raising=False)

    @staticmethod
    def expected(
        batch_size: int, *, drop_last: bool, num_workers: int = 0, streams: Any = None, **arguments: Any
    ) -> list[list[list[int]]]:
        from streaming import Stream, StreamingDataset
        from torch.utils.data import DataLoader

        made = None if streams is None else [Stream(**stream) for stream in streams.values()]
        dataset = StreamingDataset(streams=made, batch_size=batch_size, **arguments)
        return ids(DataLoader(dataset, batch_size=batch_size, drop_last=drop_last, num_workers=num_workers))

    @pytest.mark.filterwarnings(UNTOKENISED)
    def test_of_the_finetuning_example(self, root: Path) -> None:
        config = config_of_foundry(written(root, FINETUNING))
        streams = {'my_data': {'local': str(root / 'one'), 'split': 'train'}}
        assert of_training(config) == self.expected(8, drop_last=True, streams=streams, shuffle=True)

    @pytest.mark.filterwarnings(UNTOKENISED)
    def test_of_the_pretraining_example(self, root: Path) -> None:
        config = config_of_foundry(written(root, PRETRAINING))
        data = {'local': str(root / 'one'), 'shuffle_seed': 17}
        assert of_training(config) == self.expected(12, drop_last=True, split='train', shuffle=True, **data)
        (evaluation,) = config.eval
        got = ids(build_loader(evaluation, topology=Topology()))
        assert got == self.expected(5, drop_last=False, split='val', **data)
        assert len(got[0][-1]) == 53 % 5

    @pytest.mark.filterwarnings('ignore:Shuffle block size', 'ignore:Using ')
    @pytest.mark.parametrize(
        ('weights', 'dataset'),
        [
            pytest.param([{'proportion': 0.7}, {'proportion': 0.2}, {'proportion': 0.1}], {'epoch_size': '1k'}, id='p'),
            pytest.param([{'repeat': 1.5}, {'choose': 40}, {}], {'sampling_granularity': 4}, id='repeat and choose'),
            pytest.param([{'repeat': 0.5}, {}, {}], {'sampling_method': 'fixed'}, id='fixed'),
            pytest.param([{}, {}, {}], {'shuffle_algo': 'py1br', 'shuffle_block_size': 5e1}, id='float block size'),
            pytest.param([{}, {}, {}], {'shuffle_algo': 'py2s', 'num_canonical_nodes': 4}, id='py2s'),
            pytest.param([{}, {}, {}], {'shuffle_algo': 'py1s', 'partition_algo': 'orig'}, id='py1s'),
            pytest.param([{}, {}, {}], {'shuffle_algo': 'naive', 'shuffle_seed': 3}, id='naive'),
            pytest.param([{}, {}, {}], {'batching_method': 'stratified'}, id='stratified'),
            pytest.param([{}, {}, {}], {'batching_method': 'per_stream'}, id='per_stream'),
            pytest.param([{}, {}, {}], {'batching_method': 'device_per_stream'}, id='device_per_stream'),
            pytest.param([{}, {}, {}], {'shuffle': False}, id='not shuffled'),
        ],
    )
    @pytest.mark.parametrize('drop_last', [True, pytest.param(False, marks=pytest.mark.slow)])
    def test_of_any_mixture(
        self, root: Path, weights: list[dict[str, Any]], dataset: dict[str, Any], drop_last: bool
    ) -> None:
        streams = {
            name: {'local': str(root / name), **weight}
            for name, weight in zip(('one', 'two', 'three'), weights, strict=True)
        }
        keys = {'streams': streams, 'split': 'train', 'shuffle': True, **dataset}
        config = config_of_foundry(foundry(keys, drop_last=drop_last))
        arguments: dict[str, Any] = {**keys}
        if 'shuffle_block_size' in arguments:
            arguments['shuffle_block_size'] = int(arguments['shuffle_block_size'])
        expected = self.expected(8, drop_last=drop_last, **arguments)
        assert of_training(config) == expected
        assert of_training(load_config(yaml.safe_load(to_yaml(config)))) == expected

    def test_of_workers(self, root: Path) -> None:
        streams = {name: {'local': str(root / name), 'split': 'train'} for name in ('one', 'two')}
        for drop_last in (True, False):
            loader: dict[str, Any] = {
                'num_workers': 2,
                'persistent_workers': False,
                'pin_memory': False,
                'drop_last': drop_last,
            }
            config = config_of_foundry(foundry({'streams': streams, 'shuffle': True}, **loader))
            expected = self.expected(8, drop_last=drop_last, num_workers=2, streams=streams, shuffle=True)
            assert of_training(config) == expected

    def test_of_streams_in_a_list(self, root: Path) -> None:
        streams = {name: {'local': str(root / name), 'split': 'train'} for name in ('one', 'two')}
        listed = [streams['one'], {**streams['two'], 'name': 'other'}]
        config = config_of_foundry(foundry({'streams': listed, 'shuffle': True}))
        assert config.train is not None
        assert [stream.name for stream in config.train.streams] == ['stream_0', 'other']
        assert of_training(config) == self.expected(8, drop_last=False, streams=streams, shuffle=True)


@pytest.mark.composer
@pytest.mark.filterwarnings(UNTOKENISED, 'ignore:Composer trains on a headrace loader without')
@pytest.mark.parametrize('text', [FINETUNING, PRETRAINING], ids=['finetuning', 'pretraining'])
def test_composer_takes_the_examples(root: Path, text: str) -> None:
    pytest.importorskip('composer.core', reason='Composer is not installed')
    from headrace.composer import streaming_data_spec, streaming_evaluators

    config = config_of_foundry(written(root, text))
    spec = streaming_data_spec(config)
    batches = [batch['id'].tolist() for batch in itertools.islice(spec.loader, 3)]
    assert batches == of_training(config, 1)[0][:3]
    if config.eval:
        (evaluator,) = streaming_evaluators(config)
        assert evaluator.label == 'eval'
        assert sum(len(batch['id']) for batch in evaluator.dataloader.dataloader) == 53


STREAMING: dict[str, Any] = {
    'remote': 's3://bucket/code',
    'local': '/cache/code',
    'split': 'train',
    'download_retry': 5,
    'download_timeout': 120,
    'validate_hash': 'sha1',
    'keep_zip': True,
}


OF_HEADRACE: dict[str, Any] = {
    'endpoint_url': 'http://127.0.0.1:9000',
    'subset': [[0, 100]],
    'where': {'lang': ['de']},
    'columns': ['text'],
    'on_changed_data': 'refuse',
}


OF_A_STREAM: dict[str, Any] = {**STREAMING, **OF_HEADRACE, 'proportion': 0.5, 'repeat': 2, 'choose': 100}


OF_A_DATASET: dict[str, Any] = {
    **STREAMING,
    'epoch_size': 1000,
    'predownload': 64,
    'cache_limit': '1gb',
    'sampling_method': 'fixed',
    'sampling_granularity': 3,
    'partition_algo': 'orig',
    'num_canonical_nodes': 4,
    'shuffle': True,
    'shuffle_algo': 'py1br',
    'shuffle_seed': 3,
    'shuffle_block_size': 1e6,
    'batching_method': 'per_stream',
    'allow_unsafe_types': True,
    'replication': 2,
    **OF_HEADRACE,
    'skip': [[64, 96], ['20ba', '22ba']],
    'on_mixture_change': 'continue',
    'when_exhausted': 'stop',
    'on_bad_sample': 'skip',
}


OF_WORKERS: dict[str, Any] = {
    'drop_last': True,
    'num_workers': 3,
    'pin_memory': False,
    'prefetch_factor': 5,
    'persistent_workers': False,
    'timeout': 60,
}


REFUSED: dict[str, Any] = {
    'packing_ratio': 'auto',
    'pad_to_longest': True,
    'mlm_probability': 0.15,
    'eos_token_id': 0,
    'bos_token_id': 1,
    'target_prompts': 'all',
    'target_responses': 'all',
    'seq_parallel_replication': 2,
    'hf_name': 'tatsu-lab/alpaca',
    'hf_kwargs': {'data_dir': 'x'},
    'preprocessing_fn': 'my.module:function',
    'stream_name': 'my_stream',
    'stream_config': {'key': 1},
    'max_hard_negatives': 3,
    'prepend_query': 'query: ',
    'prepend_passage': 'passage: ',
    'append_eos_token': True,
    'append_token': '</s>',
    'shuffle_hard_negatives': True,
}


ASKING_FOR_NOTHING: dict[str, Any] = {
    'packing_ratio': 1.0,
    'pad_to_longest': False,
    'target_prompts': 'none',
    'target_responses': 'last',
    'seq_parallel_replication': 1,
    'stream_name': 'stream',
    'stream_config': {},
    'prepend_query': '',
    'append_eos_token': False,
}


WITHOUT_EFFECT: dict[str, Any] = {
    'max_seq_len': 2048,
    'decoder_only_format': True,
    'token_encoding_type': 'uint16',
    'allow_pad_trimming': False,
    'auto_packing_replication': 2,
    'max_leftover_bins_to_keep': 3,
    'override_eos_token_id_mismatch_error': True,
    'override_bos_token_id_mismatch_error': True,
    'safe_load': True,
}


def yaml_of(document: dict[str, Any]) -> dict[str, Any]:
    return yaml.safe_load(to_yaml(config_of_foundry(document)))['train']


class TestKeys:
    """Each key is translated, refused by its name, or named in a warning."""

    @pytest.fixture(autouse=True)
    def _warnings_are_errors(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            yield

    @pytest.mark.parametrize('key', OF_A_DATASET)
    def test_of_the_dataset(self, key: str) -> None:
        value = OF_A_DATASET[key]
        document = foundry({'local': '/cache/code', key: value}, batch_size=16)
        expected = {'cache_limit': 2**30, 'shuffle_block_size': 1_000_000}.get(key, value)
        assert yaml_of(document)[key] == expected

    @pytest.mark.parametrize('key', OF_A_STREAM)
    def test_of_a_stream(self, key: str) -> None:
        streams = {'code': {'local': '/cache/code', key: OF_A_STREAM[key]}}
        assert yaml_of(foundry({'streams': streams}))['streams']['code'][key] == OF_A_STREAM[key]

    @pytest.mark.parametrize('key', OF_WORKERS)
    def test_of_the_workers(self, key: str) -> None:
        config = config_of_foundry(foundry({'local': '/x'}, **{key: OF_WORKERS[key]}))
        assert config.train is not None
        assert getattr(config.train.loader, key) == OF_WORKERS[key]

    @pytest.mark.parametrize('key', [*OF_A_DATASET, *REFUSED, *WITHOUT_EFFECT])
    def test_left_blank_is_left_out(self, key: str) -> None:
        document = foundry({**({} if key == 'local' else {'local': '/x'}), 'remote': '/y', key: None})
        expected = foundry(
            {**({} if key == 'local' else {'local': '/x'}), **({} if key == 'remote' else {'remote': '/y'})}
        )
        assert config_of_foundry(document) == config_of_foundry(expected)

    @pytest.mark.parametrize('key', REFUSED)
    def test_asking_for_what_is_not_there(self, key: str) -> None:
        (line,) = refused(foundry({'local': '/x', key: REFUSED[key]}))
        rule = r'asks for .*, which headrace does not have; remove the key'
        assert re.match(rf'the given mapping: train_loader\.dataset\.{key}: got .*; {rule}', line)

    @pytest.mark.parametrize('key', ASKING_FOR_NOTHING)
    def test_asking_for_nothing(self, key: str) -> None:
        document = foundry({'local': '/x', key: ASKING_FOR_NOTHING[key]})
        assert config_of_foundry(document) == config_of_foundry(foundry({'local': '/x'}))

    @pytest.mark.parametrize('key', WITHOUT_EFFECT)
    def test_without_effect(self, key: str) -> None:
        document = foundry({'local': '/x', key: WITHOUT_EFFECT[key]})
        with pytest.warns(UserWarning, match=rf'So train_loader\.dataset\.{key} have no effect') as caught:
            config = config_of_foundry(document)
        assert caught[0].filename == __file__
        assert config == config_of_foundry(foundry({'local': '/x'}))

    def test_a_packing_ratio_gives_the_samples_that_are_packed(self) -> None:
        dataset = {'local': '/x', 'packing_ratio': 2.5}
        document = {
            **foundry({**dataset, 'replication': 2}, batch_size=16),
            'eval_loader': {'name': 'finetuning', 'dataset': dataset},
            'device_eval_batch_size': 3,
        }
        named = r'By train_loader\.dataset\.packing_ratio, eval_loader\.dataset\.packing_ratio, batches have'
        with pytest.warns(UserWarning, match=named) as caught:
            config = config_of_foundry(document)
        assert caught[0].filename == __file__
        assert config.train is not None
        assert (config.train.global_batch_size, config.eval[0].device_batch_size) == (8 * 2.5, 7)

    @pytest.mark.parametrize(
        ('ratio', 'rule'),
        [
            (0.5, 'must be a number of at least 1'),
            (True, 'must be a number of at least 1'),
            ('much', 'must be a number of at least 1'),
            (1.3, 'must give a whole number of samples for a global batch of 8'),
        ],
    )
    def test_a_packing_ratio_that_is_none(self, ratio: Any, rule: str) -> None:
        (line,) = refused(foundry({'local': '/x', 'packing_ratio': ratio}))
        assert line.endswith(rule)

    def test_defaults_are_foundry_s(self) -> None:
        assert yaml_of(foundry({'local': '/x'})) == {
            'local': '/x',
            'shuffle_algo': 'py1e',
            'global_batch_size': 8,
            'loader': {'persistent_workers': True, 'pin_memory': True},
        }

    def test_no_kind_of_loader_is_a_pipeline(self) -> None:
        for kind in ('text', 'finetuning', 'contrastive_pairs', None):
            assert config_of_foundry(foundry({'local': '/x'}, name=kind)).train is not None

    def test_every_rank_has_foundry_s_share_of_the_batch_replicas_or_not(self, root: Path) -> None:
        for replication in (None, 2):
            dataset = {'local': str(root / 'one'), 'split': 'train', 'replication': replication}
            config = config_of_foundry(foundry(dataset, batch_size=16))
            assert config.train is not None
            assert build_loader(config.train, topology=Topology(rank=1, world_size=4)).batch_size == 16 // 4


def test_evaluation_loaders_have_their_labels() -> None:
    document = {
        'eval_loader': [
            {'label': 'code', 'name': 'text', 'dataset': {'local': '/a', 'split': 'val'}, 'num_workers': 2},
            {'label': 'prose', 'name': 'text', 'dataset': {'local': '/b', 'split': 'val'}},
        ],
        'device_eval_batch_size': 4,
    }
    config = config_of_foundry(document)
    assert config.train is None
    assert [(each.name, each.local, each.device_batch_size) for each in config.eval] == [
        ('code', '/a', 4),
        ('prose', '/b', 4),
    ]
    assert load_config(yaml.safe_load(to_yaml(config))) == config


@pytest.mark.parametrize(
    ('document', 'expected'),
    [
        pytest.param(
            foundry({'local': '/x', 'shufle': True}, num_worker=2),
            [
                'train_loader.dataset.shufle: got true; unknown key; did you mean "shuffle"?',
                'train_loader.num_worker: got 2; unknown key; did you mean "num_workers"?',
            ],
            id='unknown',
        ),
        pytest.param(
            foundry({'streams': {'a': {'local': '/a', 'proporton': 1}}}),
            ['train_loader.dataset.streams.a.proporton: got 1; unknown key; did you mean "proportion"?'],
            id='unknown in a stream',
        ),
        pytest.param(
            foundry({'streams': {'a': {'local': '/a'}}, 'remote': '/b'}),
            [
                (
                    "train_loader.dataset.remote: got remote: '/b'; `streams` and `remote`, `local`, `split` exclude "
                    'each other; move them into the streams'
                )
            ],
            id='streams and remote',
        ),
        pytest.param(
            foundry({'streams': {'a': {'local': '/a', 'proportion': 1, 'choose': 5}}}),
            [
                (
                    'train_loader.dataset.streams.a.proportion: got proportion: 1, choose: 5; a stream has at most one '
                    'of `proportion`, `repeat` and `choose`; keep one'
                )
            ],
            id='two weights',
        ),
        pytest.param(
            foundry({'streams': {'a': {'local': '/a', 'proportion': 1}, 'b': {'local': '/b'}}}),
            ['train_loader.dataset.streams: either all streams have `proportion` or none has; without it: b'],
            id='some proportions',
        ),
        pytest.param(
            foundry({'local': '/x', 'shuffle_algo': 'shuffled', 'epoch_size': -1}),
            [
                (
                    "train_loader.dataset.epoch_size: got -1; must be an integer of at least 1, or text like '100k', "
                    "'64m', '1.5b'"
                ),
                f"train_loader.dataset.shuffle_algo: got 'shuffled'; must be one of {', '.join(ALGORITHMS)}",
            ],
            id='values',
        ),
        pytest.param({'train_loader': {'name': 'text'}}, None, id='no dataset'),
        pytest.param(
            {'train_loader': {'dataset': {'local': '/x'}}},
            ['train_loader: has no batch size; give `global_train_batch_size` at the top level'],
            id='no batch size',
        ),
        pytest.param(
            foundry({'local': '/x', 'replication': 3}),
            ['global_train_batch_size: got 8; must be a multiple of `replication` of the training data, 3'],
            id='replication',
        ),
        pytest.param(
            {'max_duration': '1ep'},
            ['names no loader; give `train_loader`, `eval_loader`, or both'],
            id='no loader',
        ),
        pytest.param(
            {'train_dataloader': {}}, ['train_dataloader: unknown key; did you mean "train_loader"?'], id='misspelt'
        ),
        pytest.param(
            foundry({'local': '/x'}, name='my_loader'),
            ["train_loader.name: got 'my_loader'; must be one of text, finetuning, contrastive_pairs"],
            id='kind',
        ),
        pytest.param(
            {
                'eval_loader': [
                    {'dataset': {'local': '/x'}},
                    {'dataset': {'local': '/x'}, 'label': 'a'},
                    {'dataset': {'local': '/x'}, 'label': 'a'},
                    {'dataset': {'local': '/x'}, 'label': 'local'},
                    3,
                ],
                'device_eval_batch_size': 1,
            },
            [
                'eval_loader[0].label: must be text: each evaluation loader of a list has a label',
                "eval_loader[2].label: got 'a'; is the label of another evaluation loader too; labels must differ",
                (
                    "eval_loader[3].label: got 'local'; is a key of a loader of headrace, which cannot be the name of "
                    'one; choose another'
                ),
                'eval_loader[4]: got 3; must be a mapping with the keys of a loader',
            ],
            id='labels',
        ),
    ],
)
def test_what_is_wrong_is_said_by_name_and_at_once(document: dict[str, Any], expected: list[str] | None) -> None:
    lines = refused(document)
    if expected is None:
        expected = [
            'train_loader: has no batch size; give `global_train_batch_size` at the top level',
            'train_loader: names no data; give `dataset`',
        ]
    assert sorted(lines) == sorted(
        f'the given mapping: {"(top level): " if line.startswith("names no loader") else ""}{line}' for line in expected
    )


@pytest.mark.filterwarnings(UNTOKENISED)
def test_a_mistake_is_named_with_its_line(root: Path) -> None:
    path = written(root, FINETUNING.replace('shuffle: true', 'shuffle: 3'))
    assert refused(path) == [f'{path}:23: train_loader.dataset.shuffle: got 3; must be true or false']


@pytest.mark.filterwarnings(UNTOKENISED)
def test_overrides_are_in_foundry_s_keys(root: Path) -> None:
    path = written(root, FINETUNING)
    config = config_of_foundry(path, overrides=['train_loader.num_workers=3', 'variables.data_local=/elsewhere'])
    assert config.train is not None
    assert (config.train.loader.num_workers, config.train.streams[0].local) == (3, '/elsewhere')
    (line,) = refused(path, overrides={'train_loader.dataset.packing_ratio': 'auto'})
    assert line.startswith(
        "override 'train_loader.dataset.packing_ratio=auto': train_loader.dataset.packing_ratio: got"
    )


def test_our_own_reader_says_what_to_do_with_such_a_file(root: Path) -> None:
    path = written(root, PRETRAINING)
    with pytest.raises(ConfigError, match=r'foundry.yaml:12: train_loader: .*config_of_foundry`.*convert-config`'):
        load_config(path)


@pytest.mark.filterwarnings(UNTOKENISED)
@pytest.mark.parametrize('text', [FINETUNING, PRETRAINING], ids=['finetuning', 'pretraining'])
def test_the_converter_writes_what_reads_back_as_equal(
    root: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(root, text)
    assert main(['convert-config', str(path), 'train_loader.num_workers=1']) == 0
    printed = capsys.readouterr()
    assert 'So train_loader.dataset.max_seq_len, ' in printed.err
    (root / 'mix.yaml').write_text(printed.out)
    config = config_of_foundry(path, overrides=['train_loader.num_workers=1'])
    assert load_config(root / 'mix.yaml') == config
    assert of_training(config, 1) == of_training(config_of_foundry(path), 1)


def test_the_converter_refuses_what_the_reader_refuses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(root, FINETUNING)
    assert main(['convert-config', str(path), 'train_loader.dataset.packing_ratio=auto']) == 1
    printed = capsys.readouterr()
    assert 'asks for a ratio that is searched for, which headrace does not have' in printed.err
    assert not printed.out


def test_the_page_names_every_key() -> None:
    page = (Path(__file__).parents[2] / 'docs' / 'foundry.md').read_text()
    named = set(re.findall(r'`(\w+)(?::[^`]*)?`', page))
    assert named >= {*OF_A_DATASET, *OF_A_STREAM, *OF_WORKERS, *REFUSED, *WITHOUT_EFFECT}


def test_the_command_takes_the_native_order_and_says_what_each_change_means(tmp_path, capsys):
    path = tmp_path / 'foundry.yaml'
    path.write_text(
        'train_loader: {name: text, dataset: {local: /a, shuffle: true, num_canonical_nodes: 128, '
        'shuffle_block_size: 262144, partition_algo: orig}, num_workers: 2}\n'
        'eval_loader: {name: text, dataset: {local: /b, shuffle_algo: native}}\n'
        'global_train_batch_size: 8\ndevice_eval_batch_size: 4\n'
    )
    assert main(['convert-config', str(path), '--native']) == 0
    printed = capsys.readouterr()
    train = load_config(yaml.safe_load(printed.out)).train
    assert train.shuffle_algo == 'native'
    assert (train.num_canonical_nodes, train.shuffle_block_size, train.partition_algo) == (None, None, 'relaxed')
    lines = printed.err.splitlines()
    assert [line.split(',')[0] for line in lines] == [
        'headrace: train: shuffle_algo: native',
        'headrace: train: without num_canonical_nodes: 128',
        'headrace: train: without partition_algo: orig',
        'headrace: train: without shuffle_block_size: 262144',
    ]
    assert main(['convert-config', str(path)]) == 0
    assert 'num_canonical_nodes: 128' in capsys.readouterr().out
