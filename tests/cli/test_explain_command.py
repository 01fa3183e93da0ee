"""``headrace explain`` on small shards, against what the loader itself hands out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.mixing import build_loader, load_config
from headrace.order import Topology

BATCH = 12
EPOCH = 100

CONFIG = """
global_batch_size: 12
train:
  shuffle: true
  num_canonical_nodes: 2
  shuffle_block_size: 60
  streams:
    code:  {{local: {root}/code, proportion: 0.3}}
    prose: {{local: {root}/prose, proportion: 0.7}}
  epoch_size: 100
eval:
  books: {{local: {root}/prose}}
  half: {{local: {root}/code, fraction: [0, 0.5]}}
predict:
  local: {root}/code
  subset: [[25, 30]]
  device_batch_size: 4
"""


@pytest.fixture
def config(tmp_path: Path, make_dataset) -> Path:
    """A configuration of streams of which nothing but the index is there."""
    for name, samples, first in (('code', 50, 0), ('prose', 80, 1000)):
        folder = make_dataset(name, samples, first=first)
        shutil.copytree(folder, tmp_path / 'whole' / name)
        for shard in folder.glob('*.mds'):
            shard.unlink()
    path = tmp_path / 'mix.yaml'
    path.write_text(CONFIG.format(root=tmp_path))
    return path


def explain(config: Path, *arguments: object) -> tuple[int, str]:
    return main(['explain', str(config), *map(str, arguments)])


@pytest.fixture
def shown(config: Path, capsys: pytest.CaptureFixture[str]):
    """Runs the command, and reads the JSON that it prints."""

    def run(*arguments: object) -> dict[str, Any]:
        assert explain(config, *arguments, '--json') == 0
        return json.loads(capsys.readouterr().out)

    return run


def loader_of(config: Path, *, overrides=(), **topology: int):
    """A loader of the same configuration, but with the shards."""
    text = config.read_text().replace(str(config.parent), str(config.parent / 'whole'))
    whole = config.with_name('whole.yaml')
    whole.write_text(text)
    return build_loader(load_config(whole, overrides=overrides).train, topology=Topology(**topology))


def ids_of(batch: dict[str, Any]) -> list[int]:
    """The sample ids of a batch: of code those written, of prose those after code's 50."""
    return [i if i < 1000 else i - 950 for i in batch['id'].tolist()]


def ids_in(found: dict[str, Any]) -> list[int]:
    return [row['id'] for row in found['rows']]


def stored(config: Path, row: dict[str, Any], stream: str | None = None) -> int:
    """The number of a row's sample among those that its stream has stored."""
    index = json.loads((config.parent / (stream or row['stream']) / 'index.json').read_text())
    return sum(shard['samples'] for shard in index['shards'][: row['shard']]) + row['shard_row']


def test_every_batch_is_the_one_that_loaders_hand_out(config: Path, shown) -> None:
    loaders = [loader_of(config, rank=r, world_size=4, num_nodes=2) for r in range(4)]
    for epoch in range(2):
        for k, batches in enumerate(zip(*loaders, strict=True)):
            place = ('--batch', k, '--epoch', epoch, '--ranks', 4, '--nodes', 2)
            found = shown(*place)
            assert ids_in(found) == [i for batch in batches for i in ids_of(batch)]
            assert shown('--batch', 9 * epoch + k, '--ranks', 4, '--nodes', 2) == found
            assert ids_in(shown(*place, '--rank', 2)) == ids_of(batches[2])
            assert {row['rank'] for row in shown(*place, '--rank', 2)['rows']} == {2}


def test_rows_say_where_the_sample_is_stored(config: Path, shown) -> None:
    for row in shown('--batch', 1)['rows']:
        first = 0 if row['stream'] == 'code' else 50
        assert row['id'] == first + stored(config, row)
        assert row['file'] == f'shard.{row["shard"]:05}.mds'


def test_neighbours_get_the_same_rows_under_replication(config: Path, shown) -> None:
    world = ('--ranks', 4, '--replication', 2)
    assert {row['rank'] for row in shown(*world)['rows']} == {0, 2}
    assert ids_in(shown(*world, '--rank', 3)) == ids_in(shown(*world, '--rank', 2))
    assert ids_in(shown(*world, '--rank', 3)) != ids_in(shown(*world, '--rank', 1))


def test_the_table(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(config, '--loader', 'predict', '--ranks', 2) == 0
    assert capsys.readouterr().out.splitlines() == [
        'Global batch 0 of epoch 0, of 1, on 2 ranks and 1 node; the position after it is 5 of 5.',
        'Streams: stream_0 5 (1.000)',
        'To skip it: skip: [[0, 5]]',
        'rank  row  position    stream  shard             file  shard_row  id',
        '   0    0         0  stream_0      1  shard.00001.mds          5   0',
        '   0    1         2  stream_0      1  shard.00001.mds          7   2',
        '   0    2         4  stream_0      1  shard.00001.mds          9   4',
        '   1    0         1  stream_0      1  shard.00001.mds          6   1',
        '   1    1         3  stream_0      1  shard.00001.mds          8   3',
        '   1    2         4  stream_0      1  shard.00001.mds          9   4  padding',
    ]
    assert explain(config, '--rank', 1, '--ranks', 2) == 0
    header, streams, rank, *_ = capsys.readouterr().out.splitlines()
    assert header.startswith('Global batch 0 of epoch 0, of 9, on 2 ranks and 1 node; the position after it is 12')
    assert sum(int(part.split()[1]) for part in streams.removeprefix('Streams: ').split(', ')) == 12
    assert sum(int(part.split()[1]) for part in rank.removeprefix('Rank 1: ').split(', ')) == 6


def test_a_selection_shows_the_stored_row(config: Path, shown) -> None:
    loader = build_loader(load_config(config).eval[1], topology=Topology())
    found = shown('--loader', 'eval.half')
    shards, rows = loader.dataset.locate(loader.plan(0).ids(0))
    assert [(row['shard'], row['shard_row']) for row in found['rows']] == list(
        zip(shards.tolist(), rows.tolist(), strict=True)
    )
    assert max(row['shard_row'] for row in found['rows']) > 5  # of 5 that are offered
    subset = [stored(config, row, 'code') for row in shown('--loader', 'predict')['rows']]
    assert subset == [25, 26, 27, 28]


def test_what_it_says_leaves_the_batch_out(config: Path, shown) -> None:
    found = shown('--batch', 11)
    assert (found['epoch'], found['batch'], found['skip']) == (1, 2, [124, 136])
    override = f'train.skip=[{found["skip"]}]'
    following = shown('--batch', 12)
    without = shown('--batch', 11, override)
    assert ids_in(without) == ids_in(following)
    handed_out = loader_of(config, overrides=[override])
    for _ in handed_out:
        pass
    assert ids_in(without) == ids_of(list(handed_out)[2])


def test_batches_are_counted_through_epochs_with_gaps(config: Path, shown) -> None:
    overrides = ['train.skip=[[0, 210], [30ba, 31ba]]']
    loader = loader_of(config, overrides=overrides)
    epochs = [loader.plan(epoch).num_batches for epoch in range(6)]
    assert epochs[:4] == [0, 0, 8, 8]
    places = [(epoch, k) for epoch, batches in enumerate(epochs) for k in range(batches)]
    for number, place in enumerate(places):
        found = shown('--batch', number, *overrides)
        assert (found['epoch'], found['batch']) == place
    found = shown('--batch', 16 + 9 * 10**12, *overrides)
    assert (found['epoch'], found['batch']) == (4 + 10**12, 0)


def test_the_batches_of_mosaicml_orders_are_skipped_by_their_place(config: Path, shown) -> None:
    overrides = ['train.shuffle_algo=py1e', 'train.num_canonical_nodes=2']
    loader = loader_of(config, overrides=overrides)
    batches = [ids_of(batch) for _ in range(2) for batch in loader]
    for number, ids in enumerate(batches):
        found = shown('--batch', number, *overrides)
        assert ids_in(found) == ids
        epoch, k = divmod(number, 9)
        assert found['skip'] == [100 * epoch + 12 * k, 100 * epoch + min(12 * k + 12, 100)]
    left = loader_of(config, overrides=[*overrides, f'train.skip=[{shown("--batch", 12, *overrides)["skip"]}]'])
    plans = [left.plan(epoch) for epoch in range(2)]
    assert [plan.ids(k).tolist() for plan in plans for k in range(plan.num_batches)] == batches[:12] + batches[13:]
    assert shown('--sample', batches[3][5], *overrides)['next']['batch'] == 3


# -- a state -----------------------------------------------------------------------------------------------------------


def saved(path: Path, loader, batches: int) -> Path:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    path.write_text(json.dumps(loader.state_dict()))
    return path


def test_batches_are_counted_from_a_state(config: Path, shown, tmp_path: Path) -> None:
    state = saved(tmp_path / 'state.json', loader_of(config), 5)
    assert shown('--state', state)['rows'] == shown('--batch', 5)['rows']
    assert shown('--state', state, '--batch', 6)['rows'] == shown('--batch', 11)['rows']
    # At another batch size, batches continue from where the state was taken.
    override = 'global_batch_size=10'
    found = shown('--state', state, '--batch', 1, override)
    assert [row['position'] for row in found['rows']] == list(range(70, 80))
    assert found['end'] == 80
    end = saved(tmp_path / 'end.json', loader_of(config), 9)
    assert (shown('--state', end)['epoch'], shown('--state', end)['batch']) == (1, 0)
    assert shown('--state', end, '--epoch', 0, '--batch', 3) == shown('--batch', 3)


def test_after_a_change_of_the_mixture(config: Path, shown, capsys, tmp_path: Path) -> None:
    state = saved(tmp_path / 'state.json', loader_of(config), 5)
    overrides = ['train.streams.code.proportion=0.9', 'train.on_mixture_change=continue']
    changed = loader_of(config, overrides=overrides)
    changed.load_state_dict(json.loads(state.read_text()))
    for k, batch in enumerate(changed):
        assert ids_in(shown('--state', state, '--batch', k, *overrides)) == ids_of(batch)
    assert explain(config, '--state', state, *overrides) == 0
    assert 'Global batch 0 of epoch 0, after position 60, on' in capsys.readouterr().out
    assert explain(config, '--state', state, '--epoch', 0, '--batch', 4, *overrides) == 1
    assert_one_line(capsys, 'the mixture took over at position 60 of epoch 0, got a batch from before it')
    assert explain(config, '--state', state) == 0
    capsys.readouterr()
    assert explain(config, '--state', state, overrides[0]) == 1
    assert_one_line(capsys, "or pass on_mixture_change='continue'")


def test_the_samples_of_the_run_continue_after_epochs_have_changed_their_size(
    config: Path, shown, tmp_path: Path
) -> None:
    state = saved(tmp_path / 'state.json', loader_of(config), 9)
    overrides = ['train.epoch_size=48', 'train.on_mixture_change=continue']
    assert shown('--state', state, '--batch', 1, *overrides)['skip'] == [112, 124]


# -- a sample ----------------------------------------------------------------------------------------------------------


def test_when_a_sample_is_seen_next(config: Path, shown, capsys: pytest.CaptureFixture[str]) -> None:
    first = shown('--batch', 3, '--ranks', 2)
    row = first['rows'][7]
    found = shown('--sample', row['id'], '--batch', 3, '--ranks', 2)
    assert {key: found[key] for key in ('id', 'stream', 'shard', 'file', 'shard_row')} == {
        key: row[key] for key in ('id', 'stream', 'shard', 'file', 'shard_row')
    }
    assert found['next'] == {
        'epoch': 0, 'batch': 3, 'rank': row['rank'], 'row': row['row'], 'position': row['position'],
    }  # fmt: skip
    later = shown('--sample', row['id'], '--batch', 4, '--ranks', 2)['next']
    again = shown('--epoch', later['epoch'], '--batch', later['batch'], '--ranks', 2)
    at = [r for r in again['rows'] if (r['rank'], r['row']) == (later['rank'], later['row'])]
    assert [(r['id'], r['position']) for r in at] == [(row['id'], later['position'])]
    assert explain(config, '--sample', row['id'], '--batch', 3, '--ranks', 2) == 0
    assert capsys.readouterr().out.splitlines() == [
        'Sample {id} is row {shard_row} of shard {shard} ({file}) of stream {stream}.'.format_map(row),
        'From batch 3 of epoch 0 on it is first seen in epoch 0, at position {position}: row {row} of rank {rank} in '
        'global batch 3.'.format_map(row),
    ]


def test_a_sample_is_looked_for_from_a_state_on(config: Path, shown, tmp_path: Path) -> None:
    state = saved(tmp_path / 'state.json', loader_of(config), 5)
    row = shown('--state', state, '--batch', 2)['rows'][4]
    assert shown('--state', state, '--sample', row['id'])['next']['position'] == row['position']


def test_a_sample_that_is_never_drawn(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(config, '--sample', 7, 'train.streams.code.proportion=0') == 1
    out = capsys.readouterr()
    assert out.out.endswith('It is not seen in 1000 epochs from batch 0 of epoch 0 on.\n')
    assert not out.err
    assert explain(config, '--sample', 7, 'train.streams.code.proportion=0', '--json') == 1
    assert json.loads(capsys.readouterr().out)['next'] is None


# -- what is wrong -----------------------------------------------------------------------------------------------------


def assert_one_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    out = capsys.readouterr()
    assert not out.out
    (line,) = out.err.splitlines()
    assert line.startswith('headrace: ')
    assert message in line


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('--batch -1', '--batch and --epoch count from 0, got --batch -1 and --epoch None'),
        ('--epoch -1', '--batch and --epoch count from 0, got --batch 0 and --epoch -1'),
        ('--epoch 2 --batch 9', 'epoch 2 has batches 0 to 8, got --batch 9'),
        ('--epoch 0 train.skip=[[0,100]]', 'epoch 0 has no batches, got --batch 0'),
        ('global_batch_size=200 train.loader.drop_last=true', 'have no batches from epoch 1 on'),
        ('--loader eval', '--loader must be one of train, eval.books, eval.half, predict.predict, predict, got'),
        ('--loader eval.none', '--loader must be one of train, eval.books'),
        ('--loader global_batch_size', "got 'global_batch_size'"),
        ('--sample 130', '--sample must be an id in [0, 130), got 130'),
        ('--sample -1', '--sample must be an id in [0, 130), got -1'),
        ('--rank 1', 'rank must be in [0, world_size), got rank 1 of world_size 1'),
        ('--rank -1 --ranks 2', 'rank must be in [0, world_size), got rank -1'),
        ('--ranks 5', '5 ranks must divide the global batch size of train, but it is 12'),
        ('--ranks 0', 'world_size must be at least 1'),
        ('--ranks 4 --nodes 3', 'every node must have the same number of ranks'),
        ('--ranks 4 --replication 3', 'replication must divide world_size'),
        ('--state none.json', '--state none.json cannot be read: No such file'),
        ('--state .', '--state . cannot be read: Is a directory'),
        ('train.streams.code.local=/nowhere', 'local file /nowhere/index.json does not exist'),
    ],
)
def test_a_wrong_argument_is_one_line_and_status_1(
    arguments: str, message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(config, *arguments.split()) == 1
    assert_one_line(capsys, message)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'{"epoch": ', 'must hold JSON'),
        (b'\xff\xfe', 'must hold JSON'),
        (b'[1, 2]', 'must hold a JSON object'),
        (b'null', 'must hold a JSON object'),
        (b'{"epoch": 1}', 'sample_in_epoch is missing'),
    ],
)
def test_a_bad_state_is_one_line(
    content: bytes, message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'state.json').write_bytes(content)
    assert explain(config, '--state', tmp_path / 'state.json') == 1
    assert_one_line(capsys, message)


def test_a_wrong_override_or_file_names_itself(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(config, 'train.shuffel=true') == 1
    assert 'train.shuffel' in capsys.readouterr().err
    assert explain(config.with_name('none.yaml')) == 1
    assert 'none.yaml: no such file' in capsys.readouterr().err


@pytest.mark.parametrize('arguments', [['--batch', 'two'], ['--bath=2'], ['train.shuffle=true', '--bath', '2']])
def test_what_is_no_argument_is_refused_with_status_2(arguments: list[str], config: Path) -> None:
    with pytest.raises(SystemExit, match='2'):
        explain(config, *arguments)


def test_a_reader_may_stop_reading(config: Path) -> None:
    """As `| head` does."""
    arguments = ['explain', str(config), 'train.epoch_size=40000', 'global_batch_size=40000']
    command = subprocess.Popen(
        [sys.executable, '-m', 'headrace.cli', *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.read(10)
    command.stdout.close()
    assert command.stderr.read() == b''
    command.stderr.close()
    assert command.wait(60) == 141
