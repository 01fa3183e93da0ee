"""A configuration of another order as one of the native order."""

from __future__ import annotations

import yaml

from headrace.cli import main
from headrace.mixing import load_config


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
