"""Packed text under Composer: a run continues with the token after the last one, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from tests.support import support_file
from tests.support.trainers.composer_packing import train
from tests.support.trainers.packed_text import BATCH, LENGTH, make_text, sequences, written
from tests.support.trainers.ranks import run_ranks

pytestmark = [
    pytest.mark.composer,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings('ignore'),
]
pytest.importorskip('tokenizers', reason='the tokenizer is one of tokenizers')


@pytest.fixture(scope='module')
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_text(tmp_path_factory.mktemp('text'))


def test_a_run_continues_within_an_epoch_and_after_it(config, tmp_path):
    whole = sequences(config, 24)
    checkpoint = None
    for begin, end in (0, 4), (4, 10), (10, 13), (13, 24):
        time = train(str(tmp_path), f'leg{begin}', config, f'{end}ba', checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == whole[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.pt')
        assert (int(time.sample), int(time.epoch)) == (end * BATCH, end // 10)
        assert int(time.token) == sum(map(len, whole[: end * BATCH])) < end * BATCH * LENGTH  # no padding


def test_an_epoch_without_an_end(config, tmp_path):
    endless, checkpoint = str(Path(config).with_name('endless.yaml')), None
    whole = sequences(endless, 16)
    for begin, end in (0, 7), (7, 16):
        train(str(tmp_path), f'leg{begin}', endless, f'{end}ba', checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == whole[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.pt')


@pytest.mark.timeout(60)
def test_an_epoch_without_an_end_leaves_samples_out(config, tmp_path):
    whole = sequences(str(Path(config).with_name('endless.yaml')), 10)
    spiked, checkpoint = str(Path(config).with_name('spiked.yaml')), None
    kept = whole[:BATCH] + whole[3 * BATCH :]
    for begin, end in (0, 3), (3, 6):
        train(str(tmp_path), f'leg{begin}', spiked, f'{end}ba', checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == kept[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.pt')


@pytest.mark.parametrize('duration', ['9ba', '2ep'])
@pytest.mark.parametrize('name', ['endless', 'spiked'])
def test_a_subset_of_an_epoch_that_has_no_end_is_refused_before_the_first_step(config, tmp_path, name, duration):
    with pytest.raises(ConfigError, match='train_subset_num_batches=4.* Set `sequences_per_epoch`.* to 16'):
        train(str(tmp_path), 'leg', str(Path(config).with_name(f'{name}.yaml')), duration, subset=4)
    assert not (tmp_path / 'leg.rank0').exists()


@pytest.mark.parametrize(('before', 'after'), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_run_continues_on_other_ranks(config, tmp_path, before, after):
    whole = sequences(config, 12)
    program = support_file('trainers/composer_packing.py')
    run_ranks('composer', before, program, tmp_path, 'first', config, '7ba', folder=tmp_path)
    assert written(tmp_path, 'first', before) == whole[: 7 * BATCH]
    arguments = [tmp_path, 'second', config, '12ba', tmp_path / 'first.pt']
    run_ranks('composer', after, program, *arguments, folder=tmp_path)
    assert written(tmp_path, 'second', after) == whole[7 * BATCH :]
