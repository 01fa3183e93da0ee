"""Packed text under Lightning: a run goes on with the token after the last one, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning_packing import train

from packed_text import BATCH, make_text, sequences, written
from ranks import run_ranks

pytestmark = [pytest.mark.lightning, pytest.mark.timeout(600)]
pytest.importorskip('tokenizers', reason='the tokenizer is one of tokenizers')


@pytest.fixture(scope='module')
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_text(tmp_path_factory.mktemp('text'))


def test_a_run_goes_on_within_an_epoch_and_after_it(config, tmp_path):
    whole = sequences(config, 24)
    checkpoint = None
    for begin, end in (0, 4), (4, 10), (10, 13), (13, 24):
        train(str(tmp_path), f'leg{begin}', config, 1, end, checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == whole[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.ckpt')


def test_an_epoch_without_an_end(config, tmp_path):
    endless, checkpoint = str(Path(config).with_name('endless.yaml')), None
    whole = sequences(endless, 16)
    for begin, end in (0, 7), (7, 16):
        train(str(tmp_path), f'leg{begin}', endless, 1, end, checkpoint)
        assert written(tmp_path, f'leg{begin}', 1) == whole[begin * BATCH : end * BATCH]
        checkpoint = str(tmp_path / f'leg{begin}.ckpt')


@pytest.mark.parametrize(('before', 'after'), [pytest.param(2, 1, marks=pytest.mark.slow), (1, 2)])
def test_a_run_goes_on_on_other_ranks(config, tmp_path, before, after):
    program = Path(__file__).with_name('lightning_packing.py')
    whole = sequences(config, 12)
    run_ranks('lightning', before, program, tmp_path, 'first', config, before, 7, folder=tmp_path)
    assert written(tmp_path, 'first', before) == whole[: 7 * BATCH]
    arguments = [tmp_path, 'second', config, after, 12, tmp_path / 'first.ckpt']
    run_ranks('lightning', after, program, *arguments, folder=tmp_path)
    assert written(tmp_path, 'second', after) == whole[7 * BATCH :]
