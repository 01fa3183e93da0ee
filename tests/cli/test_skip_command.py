"""``headrace skip`` on indexes without shards, against the batches of the run that skips what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from headrace.cli import main
from headrace.mixing import build_loader, load_config
from headrace.order import Topology

CONFIG = """
global_batch_size: 12
train:
  shuffle: true
  streams:
    code:  {local: code, proportion: 0.3}
    prose: {local: prose, proportion: 0.7}
  epoch_size: 100
"""


@pytest.fixture
def config(tmp_path: Path, make_dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, samples in (('code', 50), ('prose', 80)):
        for shard in make_dataset(name, samples).glob('*.mds'):
            shard.unlink()
    (tmp_path / 'mix.yaml').write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return 'mix.yaml'


def loader_of(config: str, *overrides: str, **topology: int) -> Any:
    return build_loader(load_config(config, overrides=overrides).train, topology=Topology(**topology))


def ids(loader: Any, epochs: int = 3) -> list[list[int]]:
    plans = [loader.plan(epoch) for epoch in range(epochs)]
    return [plan.ids(k).tolist() for plan in plans for k in range(plan.num_batches)]


def skip(config: str, *arguments: object) -> int:
    return main(['skip', config, *map(str, arguments)])


def test_what_it_writes_is_the_configuration_of_the_resumed_run(config: str, capsys, tmp_path: Path) -> None:
    out = tmp_path / 'runs' / 'resumed.yaml'
    out.parent.mkdir()
    assert skip(config, '--step', 11, '--before', 1, '--after', 2, '--write', out) == 0
    shown = capsys.readouterr().out
    assert 'Step 11: global batch 2 of epoch 1, samples 124 to 136 of the run.' in shown
    assert 'resume from a checkpoint of at most 10 batches' in shown
    whole = ids(loader_of(config))
    assert ids(loader_of(str(out))) == whole[:10] + whole[14:]
    # A run that continues there keeps what it skips.
    again = tmp_path / 'again.yaml'
    assert skip(str(out), '--step', 2, '--write', again) == 0
    assert ids(loader_of(str(again))) == whole[:2] + whole[3:10] + whole[14:]
    assert load_config(again).train.skip == ((24, 36), (112, 160))


@pytest.mark.parametrize('batching', ['random', 'per_stream'])
def test_a_step_of_one_of_mosaicmls_orders_is_skipped(config: str, batching: str, tmp_path: Path) -> None:
    overrides = 'train.shuffle_algo=py1e', 'train.num_canonical_nodes=2', f'train.batching_method={batching}'
    whole = ids(loader_of(config, *overrides))
    out = tmp_path / 'out.yaml'
    assert skip(config, '--step', 10, '--before', 1, '--write', out, *overrides) == 0
    assert ids(loader_of(str(out))) == whole[:9] + whole[11:]


def test_what_it_prints_is_yaml(config: str, capsys) -> None:
    assert skip(config, '--step', 3, 'train.skip=[[1ba, 2ba], [60, 72]]') == 0
    text = capsys.readouterr().out
    # The run without batches 1 and 5 has batch 4 for its step 3.
    assert yaml.safe_load(text) == {'train': {'skip': [['1ba', '2ba'], [48, 72]]}}
    assert '# Step 3: global batch 3 of epoch 0, samples 48 to 60 of the run.' in text
    assert sum(line.startswith(('#   prose ', '#   code ')) for line in text.splitlines()) == 2


def test_json_has_every_row_of_every_rank(config: str, capsys) -> None:
    assert skip(config, '--step', 4, '--after', 1, '--ranks', 4, '--nodes', 2, '--json') == 0
    found = json.loads(capsys.readouterr().out)
    assert (found['step'], found['skip']) == (4, [[48, 72]])
    for rank in range(4):
        batches = ids(loader_of(config, rank=rank, world_size=4, num_nodes=2))
        for batch, step in zip(found['batches'], (4, 5), strict=True):
            assert batch['step'] == step
            assert [row['id'] for row in batch['rows'] if row['rank'] == rank] == batches[step]


def state_of(loader: Any, epoch: int, sample: int) -> dict[str, Any]:
    return loader.dataset.resume_state(epoch, sample, 12).to_dict()


def test_steps_are_counted_from_a_state(config: str, capsys, tmp_path: Path) -> None:
    position = state_of(loader_of(config), 1, 24)  # after 11 batches

    class Foreign:
        """An object that a checkpoint may hold; it is never unpickled."""

        def __reduce__(self) -> Any:
            return shutil.rmtree, ('mix.yaml',)

    files = {
        'bare.json': position,
        'beside.json': {'state': {'position': position, 'trainer_batches': 11}},
        'lightning.ckpt': {'callbacks': {'headrace.position': {'position': position, 'trainer_batches': 11}}},
        'composer.pt': {
            'state': {
                'model': {'w': torch.zeros(3)},
                'foreign': Foreign(),
                'timestamp': {'Timestamp': {'batch': 11}},
                'dataset_state': {'train': position},
            }
        },
    }
    for name, content in files.items():
        if name.endswith('.json'):
            (tmp_path / name).write_text(json.dumps(content))
        else:
            torch.save(content, tmp_path / name)
        given = ['--state', name, *(['--state-step', 11] if name == 'bare.json' else [])]
        assert skip(config, '--step', 13, '--before', 3, *given, '--json') == 0
        found = json.loads(capsys.readouterr().out)
        assert (found['skip'], found['batches'][-1]['step']) == ([[112, 160]], 13)
    assert skip(config, '--step', 5, '--state', 'beside.json') == 1
    assert 'step 5 lies before the state, which was taken when 11 batches were trained' in capsys.readouterr().err
    assert skip(config, '--step', 13, '--state', 'bare.json') == 1
    assert 'does not say how many batches were trained' in capsys.readouterr().err
    assert skip(config, '--step', 13, '--state', 'beside.json', '--state-step', 12) == 1
    assert 'got 12, but the file says 11' in capsys.readouterr().err


def _json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _torch(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path)


def _distributed(path: Path, content: Any) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(content, checkpoint_id=path, no_dist=True)


@pytest.mark.parametrize(
    ('name', 'save', 'content', 'does_count'),
    [
        pytest.param('checkpoint.pt', _torch, {'step': 11, 'loader': ..., 'model': {}}, True, id='start page'),
        pytest.param('checkpoint.pt', _torch, {'step': 5, 'loader': ...}, False, id='steps of an optimizer'),
        pytest.param('checkpoint.pt', _torch, {'model': {'w': torch.zeros(2)}, 'data': ...}, False, id='plain loop'),
        pytest.param(
            'checkpoint.pt', _torch, {'data': {'position': ..., 'global_batch_size': 12}}, False, id='tracker'
        ),
        pytest.param('run.json', _json, {'a': [{'b': 1}, {'loop': {'global_step': 11}, 'c': [...]}]}, True, id='lists'),
        pytest.param('save/custom_checkpoint_0.pkl', _torch, ..., False, id='a file of accelerate'),
        pytest.param('save:custom_checkpoint_0.pkl', _torch, ..., False, id='a folder of accelerate'),
        pytest.param('step-11:data.json', _json, ..., False, id='transformers'),
        pytest.param('ray:state.pt', _torch, {'step': 11, 'data': ..., 'model': {}}, True, id='Ray'),
        pytest.param('fabric.ckpt', _torch, {'data': ..., 'global_step': 11}, True, id='Fabric'),
        pytest.param(
            'step-11',
            _distributed,
            {'training': {'step': 11, 'w': torch.zeros(3)}, 'data': {'position': ..., 'global_batch_size': 12}},
            True,
            id='torchtitan',
        ),
    ],
)
def test_a_position_is_found_where_a_loop_put_it(
    config: str, name: str, save: Any, content: Any, does_count: bool, capsys, tmp_path: Path
) -> None:
    position = state_of(loader_of(config), 1, 24)  # after 11 batches

    def filled(value: Any) -> Any:
        if value is ...:
            return position
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return [filled(inner) for inner in value] if isinstance(value, list) else value

    save(tmp_path / name.replace(':', '/'), filled(content))
    state = name.split(':', maxsplit=1)[0]
    assert skip(config, '--step', 13, '--before', 3, '--state', state, '--state-step', 11, '--json') == 0
    assert json.loads(capsys.readouterr().out)['skip'] == [[112, 160]]
    assert skip(config, '--step', 13, '--before', 3, '--state', state, '--json') == (0 if does_count else 1)
    out = capsys.readouterr()
    if does_count:
        assert json.loads(out.out)['skip'] == [[112, 160]]
    else:
        assert 'give --state-step' in out.err
        assert 'They are 11, if all had the present size.' in out.err
    assert main(['explain', config, '--state', state, '--json']) == 0
    assert json.loads(capsys.readouterr().out)['rows'][0]['position'] == 24


def test_one_of_several_positions_is_chosen(config: str, capsys, tmp_path: Path) -> None:
    first, second = (state_of(loader_of(config), 1, sample) for sample in (12, 24))
    torch.save({'loaders': {'text': first, 'code': {'position': second}}, 'again': dict(second)}, 'several.pt')
    assert main(['explain', config, '--state', 'several.pt']) == 1
    assert (
        'several positions: again, loaders.text, loaders.code.position. Choose one by --state-key'
        in capsys.readouterr().err
    )
    assert main(['explain', config, '--state', 'several.pt', '--state-key', 'loaders.code']) == 1
    assert (
        "--state-key must be one of again, loaders.text, loaders.code.position, got 'loaders.code'"
        in capsys.readouterr().err
    )
    for key, sample in (('loaders.text', 12), ('loaders.code.position', 24)):
        assert main(['explain', config, '--state', 'several.pt', '--state-key', key, '--json']) == 0
        assert json.loads(capsys.readouterr().out)['rows'][0]['position'] == sample
        assert skip(config, '--step', 11, '--state', 'several.pt', '--state-key', key, '--state-step', 11) == 0
        assert capsys.readouterr().out
    torch.save({'one': first, 'same': dict(first)}, 'same.pt')
    assert main(['explain', config, '--state', 'same.pt', '--json']) == 0


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--step', -1], 'steps count from 0, and batches around them too, got step=-1'),
        (['--step', 1, '--after', -1], 'after=-1'),
        (['--step', 1, '--write', 'mix.yaml'], '--write must name a new file, but mix.yaml already exists'),
        (['--step', 1, '--write', 'none/out.yaml'], '--write none/out.yaml cannot be written: No such file'),
        (['--step', 1, '--state-step', 3], '--state-step says when --state was taken, which is not given; got 3'),
        (['--step', 1, '--state', 'empty.pt'], 'is a checkpoint without a position of the training data'),
        (['--step', 1, '--state', 'cut.pt'], 'is a checkpoint that cannot be read'),
        (
            ['--step', 1, '~train', 'eval.local=code'],
            'the configuration has no `train` section; it has eval.eval, eval',
        ),
        (['--step', 1, '--ranks', 5], '5 ranks must divide the global batch size'),
    ],
)
def test_what_is_wrong_is_one_line(config: str, arguments: list[Any], message: str, tmp_path: Path, capsys) -> None:
    import zipfile

    torch.save({'weights': torch.zeros(2)}, tmp_path / 'empty.pt')
    with zipfile.ZipFile(tmp_path / 'cut.pt', 'w') as archive:
        archive.writestr('cut/data.pkl', b'\x80\x02}q\x00(X')
    assert skip(config, *arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / 'out.yaml').exists()
