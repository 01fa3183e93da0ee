"""Another seed, or another number of canonical nodes, at a resume: refused, or taken over where none was given."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.errors import ConfigError, ResumeError
from headrace.mixing import build_loader, config_of_foundry, load_config

MOSAICML = {
    'epoch': 0,
    'sample_in_epoch': 8,
    'num_canonical_nodes': 4,
    'shuffle_seed': 17,
    'initial_physical_nodes': 1,
}


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp('data')
    with MDSWriter(columns={'id': 'int'}, out=str(folder), size_limit=256) as writer:
        for number in range(96):
            writer.write({'id': number})
    return str(folder)


def loader(data: str, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(local=data, shuffle=True, batch_size=8, **options))


def ids(found: StreamingDataLoader) -> list[int]:
    return [int(number) for batch in found for number in batch['id']]


@pytest.fixture(scope='module')
def begun(data: str) -> tuple[dict[str, Any], list[int]]:
    """A state after one batch, with seed 17 and 4 canonical nodes; and the samples that follow."""
    first = loader(data, shuffle_seed=17, num_canonical_nodes=4)
    batches = iter(first)
    next(batches)
    return first.state_dict(), [int(number) for batch in batches for number in batch['id']]


@pytest.mark.parametrize(
    ('options', 'rule'),
    [
        ({'shuffle_seed': 5}, 'shuffle_seed: 17 in the checkpoint, 5 now'),
        ({'shuffle_seed': 9176}, 'shuffle_seed: 17 in the checkpoint, 9176 now'),  # given, though it is the default
        ({'num_canonical_nodes': 2}, 'num_canonical_nodes: 4 in the checkpoint, 2 now'),
        ({'shuffle_seed': 5, 'num_canonical_nodes': 2, 'on_mixture_change': 'continue'}, 'shuffle_seed: 17'),
    ],
    ids=str,
)
def test_another_seed_or_number_of_canonical_nodes_is_refused(
    options: dict[str, Any], rule: str, data: str, begun: tuple[dict[str, Any], list[int]]
) -> None:
    other = loader(data, **options)
    with pytest.raises(ResumeError, match=rule) as caught:
        other.load_state_dict(begun[0])
    assert 'leave out' in str(caught.value)
    with pytest.raises(ResumeError, match=rule):
        other.dataset.load_state_dict(begun[0])


@pytest.mark.parametrize('options', [{}, {'shuffle_seed': 17}, {'shuffle_seed': 17, 'num_canonical_nodes': 4}], ids=str)
def test_what_is_not_given_is_the_checkpoints(
    options: dict[str, Any], data: str, begun: tuple[dict[str, Any], list[int]]
) -> None:
    other = loader(data, **options)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        other.load_state_dict(begun[0])
    assert ids(other) == begun[1]
    state = pickle.loads(pickle.dumps(other.state_dict()))
    assert (state['shuffle_seed'], state['num_canonical_nodes']) == (17, 4)
    assert {type(value) for value in state.values()} == {int, str}


def test_a_checkpoint_of_the_default_seed_refuses_another(data: str) -> None:
    state = loader(data).state_dict()
    assert state['shuffle_seed'] == 9176
    with pytest.raises(ResumeError, match='shuffle_seed: 9176 in the checkpoint, 17 now'):
        loader(data, shuffle_seed=17).load_state_dict(state)


def test_a_mosaicml_checkpoint_decides_and_says_so(data: str) -> None:
    silent = loader(data)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        silent.load_state_dict(MOSAICML)
    other = loader(data, shuffle_seed=5, num_canonical_nodes=2)
    with pytest.warns(UserWarning, match=r'shuffle_seed 17 \(given: 5\) and num_canonical_nodes 4 \(given: 2\)'):
        other.load_state_dict(MOSAICML)
    assert (other.dataset.shuffle_seed, other.dataset.num_canonical_nodes) == (17, 4)
    assert ids(other) == ids(silent)


def test_a_run_that_took_over_restarts_from_its_own_checkpoints(data: str) -> None:
    script = {'shuffle_seed': 5, 'num_canonical_nodes': 2}
    first = loader(data, **script)
    with pytest.warns(UserWarning, match='shuffle_seed 17'):
        first.load_state_dict(MOSAICML)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    rest = [int(number) for batch in batches for number in batch['id']]
    for _ in range(2):  # restarts of restarts, too
        again = loader(data, **script)
        with pytest.warns(UserWarning, match=r'shuffle_seed 17 \(given: 5\) and num_canonical_nodes 4 \(given: 2\)'):
            again.load_state_dict(state)
        state = again.state_dict()
    assert ids(again) == rest
    with pytest.raises(ResumeError, match="algorithm: 'py1e' in the checkpoint, 'native' now"):
        loader(data, shuffle_algo='native', **script).load_state_dict(state)


def test_a_foundry_file_without_a_seed_takes_the_checkpoints(data: str) -> None:
    given = {
        'train_loader': {'name': 'text', 'dataset': {'local': data, 'shuffle': True}},
        'global_train_batch_size': 8,
    }
    config = config_of_foundry(given).train
    assert config is not None
    found = build_loader(config)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        found.load_state_dict(MOSAICML)
    assert found.dataset.shuffle_seed == 17


@pytest.mark.parametrize('seed', [5, 9176])
def test_a_seed_in_yaml_is_given(seed: int, data: str, begun: tuple[dict[str, Any], list[int]]) -> None:
    def read(**keys: Any) -> StreamingDataLoader:
        config = load_config({'device_batch_size': 8, 'train': {'local': data, 'shuffle': True}, **keys}).train
        assert config is not None
        return build_loader(config)

    with pytest.raises(ResumeError, match=f'shuffle_seed: 17 in the checkpoint, {seed} now'):
        read(shuffle_seed=seed).load_state_dict(begun[0])
    other = read()
    other.load_state_dict(begun[0])
    assert ids(other) == begun[1]


def test_a_worker_and_a_copy_know_that_no_seed_was_given(
    data: str, begun: tuple[dict[str, Any], list[int]], tmp_path: Path
) -> None:
    copied: StreamingDataset = pickle.loads(pickle.dumps(StreamingDataset(local=data, shuffle=True, batch_size=8)))
    copied.load_state_dict(begun[0])
    assert copied.shuffle_seed == 17


def test_a_resume_says_once_on_rank_0_where_the_data_continue(
    data: str, begun: tuple[dict[str, Any], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO', 'headrace')
    given = {'shuffle_seed': 17, 'num_canonical_nodes': 4}
    for rank in range(2):
        dataset = StreamingDataset(local=data, shuffle=True, topology=Topology(rank=rank, world_size=2), **given)
        StreamingDataLoader(dataset, batch_size=4).load_state_dict(begun[0])
    assert caplog.messages == ['The data continue at epoch 0, sample 8, on 2 ranks.']
    caplog.clear()
    loader(data, **given).load_state_dict({**begun[0], 'sample_in_epoch': 96})
    assert caplog.messages == ['The data continue at epoch 1, sample 0, on 1 rank.']
    caplog.clear()
    loader(data, **given).dataset.load_state_dict(begun[0])
    assert caplog.messages == ['The data continue at epoch 0, sample 8, on 1 rank.']


class AsksItsDataset(DataLoader[Any]):
    """As torchdata's `StatefulDataLoader`: its state is that of its dataset, in the process that reads it."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return self.dataset.state_dict() if isinstance(self.dataset, Stateful) else {}


def test_a_loader_that_asks_the_dataset_for_a_state_is_refused(data: str) -> None:
    stateful = AsksItsDataset(StreamingDataset(local=data, batch_size=8), batch_size=8)
    next(iter(stateful))
    with pytest.raises(ConfigError, match=r'StatefulDataLoader gives none. Use headrace\.StreamingDataLoader'):
        stateful.state_dict()


def test_a_refused_mixture_says_the_proportions_that_were_given(data: str, tmp_path: Path) -> None:
    with MDSWriter(columns={'id': 'int'}, out=str(tmp_path / 'more')) as writer:
        for number in range(96):
            writer.write({'id': number})

    def mix(*proportions: float) -> StreamingDataLoader:
        folders = zip(('a', 'b'), (data, str(tmp_path / 'more')), proportions, strict=True)
        streams = [Stream(local=local, name=name, proportion=share) for name, local, share in folders]
        return StreamingDataLoader(StreamingDataset(streams=streams, epoch_size=200, batch_size=8))

    with pytest.raises(ResumeError, match=r"stream 'a' choose: 140 .*, 100 now .*proportion 0\.7, 0\.5 now"):
        mix(1, 1).load_state_dict(mix(7, 3).state_dict())
