"""The sizes of the demo."""

from __future__ import annotations

from examples.demo.run import MIX
from examples.demo.settings import Settings
from headrace.mixing import load_config
from tests.support.datasets.small_demo import SMALL


def test_the_mix_is_what_the_settings_say() -> None:
    config = load_config(MIX).train
    settings = Settings()

    assert config is not None
    assert config.global_batch_size == settings.global_batch_size
    assert {stream.name: stream.repeat or 1 for stream in config.streams} == settings.repeats


def test_global_batches_divide_the_epochs_and_the_kill_is_between_checkpoints() -> None:
    for settings in (Settings(), SMALL):
        assert settings.samples_per_epoch % settings.global_batch_size == 0
        per_epoch = settings.steps // settings.epochs
        checkpoint = settings.kill_after // settings.checkpoint_every * settings.checkpoint_every
        assert settings.kill_after % settings.checkpoint_every
        assert checkpoint % per_epoch, 'a checkpoint within an epoch'
        assert checkpoint + settings.compared_steps <= settings.steps
