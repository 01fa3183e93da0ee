"""Settings of a loader, replaced in its file."""

from __future__ import annotations

from headrace.cli import main
from headrace.mixing import load_config
from headrace.simulate.settings import replace_settings


def test_the_file_has_the_values_given_on_the_command_line(tuned_config, tmp_path):
    out = tmp_path / 'tuned.yaml'
    arguments = ['tune', str(tuned_config(batching_method='random')), '--read-seconds', '0.25', '--bandwidth', '1gb']
    given = ['global_batch_size=32', 'train.shuffle=true', '~train.batching_method']
    assert main([*arguments, '--wait', '20%', '--write', str(out), *given]) == 0
    written, read = load_config(out).train, load_config(tuned_config(batching_method='random'), overrides=given).train
    assert written == replace_settings(read, {'num_workers': written.loader.num_workers})
    assert written.loader.num_workers > 0
