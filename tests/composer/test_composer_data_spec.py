from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from composer.core import DataSpec, State
from composer.devices import DeviceCPU
from composer.utils.parallelism import FSDPConfig, ParallelismConfig, TPConfig

from composer import Trainer
from headrace import MDSWriter
from headrace.composer import StreamingPosition, streaming_data_spec, streaming_evaluators
from headrace.composer.position import composer_topology
from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError, TopologyError
from headrace.mixing import load_config
from headrace.order import Topology
from tests.support.trainers.composer_legs import Linear
from tests.support.trainers.fake_world import fake_world

pytestmark = [
    pytest.mark.composer,
    pytest.mark.filterwarnings('ignore:Composer trains on a headrace loader without'),
]


@pytest.fixture
def file(data: str, uneven: str, tmp_path: Path) -> Path:
    path = tmp_path / 'mix.yaml'
    path.write_text(f"""
global_batch_size: 16
train:
  shuffle: true
  streams:
    one: {{local: {data}}}
    two: {{local: {uneven}}}
eval:
  first: {{local: {data}, device_batch_size: 5}}
  second: {{local: {uneven}, loader: {{num_workers: 1}}}}
predict:
  local: {data}
""")
    return path


@pytest.fixture
def four_ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    def be(rank: int) -> None:
        for name, value in {'RANK': rank, 'WORLD_SIZE': 4, 'LOCAL_WORLD_SIZE': 2, 'GROUP_RANK': rank // 2}.items():
            monkeypatch.setenv(name, str(value))

    monkeypatch.setenv('NODE_RANK', '0')  # restored afterwards
    monkeypatch.delenv('NODE_RANK')
    return be


def test_a_file_a_configuration_and_its_content_give_the_same(file: Path) -> None:
    config = load_config(file)
    for source in (str(file), file, config, config.train):
        spec = streaming_data_spec(source)
        assert isinstance(spec, DataSpec)
        assert isinstance(spec.dataloader, StreamingDataLoader)
        assert (spec.dataloader.batch_size, spec.num_samples, len(spec.dataloader)) == (16, 197, 13)
    changed = streaming_data_spec(file, overrides=['train.loader.num_workers=2', 'global_batch_size=8'])
    assert (changed.loader.num_workers, changed.loader.batch_size) == (2, 8)


def test_sections_are_named(file: Path) -> None:
    assert streaming_data_spec(file, 'eval.first').loader.batch_size == 5
    assert streaming_data_spec(file, 'predict').loader.batch_size == 16
    with pytest.raises(ConfigError, match=r"got 'eval'; of eval there are: eval.first, eval.second"):
        streaming_data_spec(file, 'eval')
    with pytest.raises(ConfigError, match='of test there are: none'):
        streaming_data_spec(file, 'test')
    with pytest.raises(ConfigError, match='must be one of train, eval, test, predict'):
        streaming_data_spec(file, 'training')


def test_evaluators_have_the_names_of_the_file(file: Path) -> None:
    evaluators = streaming_evaluators(file, eval_interval='2ba', subset_num_batches=3)
    assert [one.label for one in evaluators] == ['first', 'second']
    assert [one.dataloader.dataloader.batch_size for one in evaluators] == [5, 16]
    assert [one.device_eval_microbatch_size for one in evaluators] == [5, 16]
    with pytest.raises(ConfigError, match='no `eval` section'):
        streaming_evaluators(file, overrides=['~eval'])


def test_keywords_are_the_keys_of_a_loader(data: str) -> None:
    spec = streaming_data_spec(local=data, shuffle=True, batch_size=4, num_workers=1, prefetch_factor=3)
    assert (spec.loader.batch_size, spec.loader.num_workers, spec.loader.prefetch_factor) == (4, 1, 3)
    with pytest.raises(ConfigError, match='shuffle_sed.*shuffle_seed'):
        streaming_data_spec(local=data, batch_size=4, shuffle_sed=1)


def test_the_batch_size_is_given_once(file: Path, data: str) -> None:
    with pytest.raises(ConfigError, match='given twice, as `batch_size` and `global_batch_size`'):
        streaming_data_spec(local=data, batch_size=4, global_batch_size=8)
    with pytest.raises(ConfigError, match='batch size twice'):
        streaming_data_spec(file, batch_size=4)
    with pytest.raises(ConfigError, match='given twice with different values: 4 .* and 8'):
        streaming_data_spec(StreamingDataset(local=data, batch_size=4), batch_size=8)
    with pytest.raises(ConfigError, match='batch size twice'):
        streaming_data_spec(StreamingDataLoader(StreamingDataset(local=data, batch_size=4)), batch_size=4)


def test_ranks_that_do_not_divide_the_global_batch_are_refused(file: Path, data: str, four_ranks: Any) -> None:
    four_ranks(0)
    with pytest.raises(TopologyError, match='must divide the global batch size'):
        streaming_data_spec(file, overrides=['global_batch_size=10'])
    assert streaming_data_spec(file).loader.batch_size == 4


def test_the_topology_is_composers(four_ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('SLURM_PROCID', '5')
    monkeypatch.setenv('SLURM_NTASKS', '8')
    one = composer_topology()
    assert (one.rank, one.world_size, one.num_nodes) == (0, 1, 1)
    four_ranks(3)
    found = composer_topology(replication=2)
    assert (found.rank, found.world_size, found.num_nodes, found.replicas) == (3, 4, 2, 2)


def test_peers_that_are_not_consecutive_are_refused(data: str, four_ranks: Any) -> None:
    four_ranks(1)
    apart = Topology(rank=1, world_size=4, num_nodes=2, replication=2, replica_index=1)
    with pytest.raises(TopologyError, match='rank 1 as replica 1 with replication 2'):
        streaming_data_spec(StreamingDataset(local=data, batch_size=4, topology=apart))


def test_torchruns_name_of_the_node_is_passed_on(four_ranks: Any) -> None:
    from composer.utils import dist

    four_ranks(3)
    composer_topology()
    assert dist.get_node_rank() == 1


def test_ranks_that_share_their_samples_share_the_count(data: str, four_ranks: Any) -> None:
    samples, tokens = 0.0, 0
    for rank in range(4):
        four_ranks(rank)
        spec = streaming_data_spec(local=data, global_batch_size=10, replication=2, token_column='x')
        batch = {**next(iter(spec.loader)), 'x': torch.zeros(5, 3)}
        batch = spec.batch_transforms(batch)
        counted, half = (
            spec.get_num_samples_in_batch(batch),
            spec.get_num_samples_in_batch(spec.split_batch(batch, 3)[0]),
        )
        assert half == 1.5
        samples += counted
        tokens += spec.get_num_tokens_in_batch(batch)
    assert (samples, tokens) == (10, 30)


def tensor_parallel_state(loader: Any) -> State:
    """The loader of a trainer with pairs of tensor-parallel ranks, when `fit` starts."""
    state = State(
        model=Linear(),
        rank_zero_seed=0,
        run_name='run',
        device=DeviceCPU(),
        parallelism_config=ParallelismConfig(fsdp=FSDPConfig(), tp=TPConfig(tensor_parallel_degree=2)),
    )
    state.train_dataloader = loader
    state.set_dataloader(loader, 'train')
    return state


@pytest.mark.filterwarnings('ignore:Tensor parallelism')
def test_tensor_parallel_ranks_are_those_that_share_their_samples(data: str, four_ranks: Any) -> None:
    ids: dict[int, list[list[list[int]]]] = {}
    counted = []
    for rank in range(4):
        four_ranks(rank)
        with fake_world(rank, 4):
            spec = streaming_data_spec(local=data, shuffle=True, global_batch_size=8, replication=2)
            state = tensor_parallel_state(spec.dataloader)
            StreamingPosition().fit_start(state, MagicMock())
            mesh = state.device_mesh
            assert mesh is not None
            seen = []
            for batch in spec.dataloader:
                seen.append(spec.batch_transforms(batch)['id'].tolist())
                counted.append(spec.get_num_samples_in_batch(batch))
            ids.setdefault(mesh['data_parallel_shard'].get_local_rank(), []).append(seen)
            # Composer passes the sum over all ranks.
            saved = spec.loader.dataset.state_dict(40, True)
            assert saved['sample_in_epoch'] == 40
    (one, peer), (other, its_peer) = ids[0], ids[1]
    assert one == peer
    assert other == its_peer
    assert sorted(itertools.chain(*one, *other)) == list(range(96))
    assert sum(counted) == 96


@pytest.mark.filterwarnings('ignore:Tensor parallelism')
def test_tensor_parallel_ranks_must_share_their_samples(data: str, four_ranks: Any) -> None:
    four_ranks(1)
    with fake_world(1, 4):
        state = tensor_parallel_state(streaming_data_spec(local=data, global_batch_size=8).dataloader)
        with pytest.raises(TopologyError, match='Set `replication: 2`'):
            StreamingPosition().fit_start(state, MagicMock())


def test_what_collate_does_to_the_shape_does_not_move_the_position(data: str) -> None:
    spec = streaming_data_spec(local=data, batch_size=8, collate_fn=lambda rows: {'packed': torch.zeros(2, len(rows))})
    batch = spec.batch_transforms(next(iter(spec.dataloader)))
    assert spec.get_num_samples_in_batch(batch) == 8
    assert spec.get_num_samples_in_batch(batch) == 2  # a microbatch from now on: weights of the loss


class Padded(Linear):
    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        own = torch.arange(batch['tokens'].shape[1]) < batch['tokens_length'][:, None]
        assert torch.equal(batch['tokens_mask'], own)
        assert torch.equal(batch['tokens'], torch.where(own, batch['id'][:, None], -1))
        self.seen += batch['id'].tolist()
        return self.layer(batch['tokens_length'].float()[:, None])


@pytest.mark.filterwarnings('ignore')
def test_padded_batches_are_cut_into_microbatches_and_their_tokens_counted(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={'id': 'int', 'tokens': 'ndarray:int64'}) as writer:
        for number in range(32):
            writer.write({'id': number, 'tokens': np.full(1 + number % 5, number)})
    pad = {'tokens': {'value': -1, 'mask': True}}
    spec = streaming_data_spec(local=str(tmp_path), batch_size=8, pad=pad, count_padding=False)
    model = Padded()
    trainer = Trainer(
        model=model, train_dataloader=spec, max_duration='1ep', device_train_microbatch_size=3, device='cpu'
    )
    trainer.fit()
    assert sorted(model.seen) == list(range(32))
    assert int(trainer.state.timestamp.token) == sum(1 + number % 5 for number in range(32))
    with_padding = streaming_data_spec(local=str(tmp_path), batch_size=8, pad=pad)
    batch = next(iter(with_padding.dataloader))
    assert with_padding.get_num_tokens_in_batch(batch) == batch['tokens'].numel()


def test_batches_are_not_copied_to_another_device_than_the_trainers(data: str) -> None:
    spec = streaming_data_spec(local=data, batch_size=8, device='cuda')
    options: dict[str, Any] = {'max_duration': '1ba', 'device': 'cpu', 'callbacks': [StreamingPosition()]}
    with pytest.raises(ConfigError, match="`device` is 'cuda', but the trainer puts batches on 'cpu'"):
        Trainer(model=Linear(), train_dataloader=spec, **options).fit()


def test_own_functions_pass_through(data: str) -> None:
    spec = streaming_data_spec(
        local=data,
        batch_size=8,
        batch_transforms=lambda batch: batch['id'],
        microbatch_transforms=lambda batch: batch + 1,
        split_batch=lambda batch, size: [batch, size],
        get_num_samples_in_batch=lambda batch: 42,
        get_num_tokens_in_batch=lambda batch: {'total': 7, 'loss_generating': 5},
    )
    assert spec.batch_transforms({'id': 3}) == 3
    assert spec.microbatch_transforms(3) == 4
    assert spec.split_batch('batch', 2) == ['batch', 2]
    assert spec.get_num_samples_in_batch(None) == 42
    assert spec.get_num_tokens_in_batch(None, 'loss_generating') == 5


@pytest.mark.parametrize('ranks', [1, 2, 4])
def test_padding_of_predictions_is_cut_off(uneven: str, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    seen: list[int] = []
    counted: list[float] = []
    for rank in range(ranks):
        for name, value in {'RANK': rank, 'WORLD_SIZE': ranks, 'LOCAL_WORLD_SIZE': ranks}.items():
            monkeypatch.setenv(name, str(value))
        spec = streaming_data_spec(section='predict', local=uneven, global_batch_size=8, shuffle=True)
        for batch in spec.dataloader:
            cut = spec.batch_transforms(batch)
            counted.append(spec.get_num_samples_in_batch(cut))
            assert counted[-1] == len(cut['id'])
            seen += cut['id'].tolist()
    assert sorted(seen) == list(range(101))
    assert sum(counted) == 101


def test_a_left_evaluation_begins_anew(data: str) -> None:
    spec = streaming_data_spec(
        section='eval', local=data, batch_size=8, shuffle=True, num_workers=1, persistent_workers=True
    )
    first = [batch['id'].tolist() for batch in spec.dataloader]
    for _ in spec.dataloader:
        break
    assert [batch['id'].tolist() for batch in spec.dataloader] == first


def test_the_random_state_survives_as_plain_values() -> None:
    saved = StreamingPosition().state_dict()
    assert list(saved) == ['rng']
    assert isinstance(saved['rng'], bytes)
    assert StreamingPosition(restore_rng=False).state_dict() == {'rng': b''}


def test_a_sharded_checkpoint_finds_the_same_keys(data: str, tmp_path: Path) -> None:
    """As Composer loads it: into the state of a run that has not begun."""

    def state(samples: int) -> dict[str, Any]:
        dataset = StreamingDataset(local=data, batch_size=8)
        return {
            'dataset_state': {'train': dataset.state_dict(samples, True)},
            'callbacks': StreamingPosition().state_dict(),
        }

    saved = state(40)
    torch.distributed.checkpoint.save(saved, checkpoint_id=tmp_path, no_dist=True)
    random.random()
    loaded = state(0)
    assert loaded != saved
    torch.distributed.checkpoint.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    assert loaded == saved


def test_the_package_of_composer_is_asked_for_by_name() -> None:
    code = "import sys; sys.modules['composer'] = None; import headrace.composer"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert 'pip install "headrace[composer]"' in done.stderr


@pytest.mark.parametrize('skip', [(), [[0, 40]]])
def test_what_leaves_nothing_to_train_is_refused(data: str, skip: list[list[int]]) -> None:
    options = {'local': data, 'batch_size': 100, 'drop_last': True}
    with pytest.raises(ConfigError, match='train has no batch in an epoch: its 96 samples .* 100.*`drop_last`'):
        streaming_data_spec(**options, skip=skip)
    assert len(streaming_data_spec(**{**options, 'batch_size': 96}).dataloader) == 1
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=100), drop_last=True)
    trainer = Trainer(
        model=Linear(), train_dataloader=loader, max_duration='2ba', callbacks=[StreamingPosition()], progress_bar=False
    )
    with pytest.raises(ConfigError, match='train has no batch in an epoch'):
        trainer.fit()


def test_its_repr_names_the_data_and_the_position(make_dataset: Any) -> None:
    spec = streaming_data_spec(StreamingDataset(local=str(make_dataset()), batch_size=4))
    assert repr(spec).startswith('StreamingDataSpec\n')
    assert 'position  epoch 0, sample 0' in repr(spec)


def test_overrides_of_what_is_no_file_are_refused(data: str) -> None:
    config = load_config({'global_batch_size': 8, 'train': {'local': data}, 'eval': {'local': data}})
    dataset = StreamingDataset(local=data, batch_size=8)
    assert config.train is not None
    for source in (config, config.train, dataset, StreamingDataLoader(dataset)):
        with pytest.raises(ConfigError, match='`overrides` go over a file'):
            streaming_data_spec(source, overrides=['train.shuffle=true'])
    with pytest.raises(ConfigError, match='`overrides` go over a file'):
        streaming_data_spec(local=data, batch_size=8, overrides=['train.shuffle=true'])
    with pytest.raises(ConfigError, match='`overrides` go over a file'):
        streaming_evaluators(config, overrides=['eval.shuffle=true'])


@pytest.mark.parametrize(
    'option', [{'num_workers': 0}, {'pin_memory': False}, {'batch_size': None}, {'remote': ''}, {'seed': 0}], ids=str
)
def test_an_argument_of_any_value_is_refused_beside_a_configuration(
    data: str, tmp_path: Path, option: dict[str, Any]
) -> None:
    content = {'global_batch_size': 8, 'train': {'local': data}, 'eval': {'local': data}}
    file = tmp_path / 'x.yaml'
    file.write_text(json.dumps(content))
    config = load_config(content)
    assert config.train is not None
    for source in (file, str(file), content, config, config.train):
        with pytest.raises(
            ConfigError, match=f'{next(iter(option))} cannot be given here: a configuration is complete'
        ):
            streaming_data_spec(source, **option)
    with pytest.raises(ConfigError, match='cannot be given here: a StreamingDataLoader is complete'):
        streaming_data_spec(StreamingDataLoader(StreamingDataset(local=data, batch_size=8)), **option)
    for source in (file, content, config):
        with pytest.raises(ConfigError, match='cannot be given here'):
            streaming_evaluators(source, **option)
