"""Settings of a loader, replaced in its file."""

from __future__ import annotations

import json

import pytest

from headrace.cli import main
from headrace.errors import ConfigError
from headrace.mixing import load_config
from headrace.simulate import Conditions, simulate, tune
from headrace.simulate.tune import OF_THE_ORDER, replace_settings


def test_the_file_has_the_values_given_on_the_command_line(tuned_config, tmp_path):
    out = tmp_path / 'tuned.yaml'
    arguments = ['tune', str(tuned_config(batching_method='random')), '--read-seconds', '0.25', '--bandwidth', '1gb']
    given = ['global_batch_size=32', 'train.shuffle=true', '~train.batching_method']
    assert main([*arguments, '--wait', '20%', '--write', str(out), *given]) == 0
    written, read = load_config(out).train, load_config(tuned_config(batching_method='random'), overrides=given).train
    assert written == replace_settings(read, {'num_workers': written.loader.num_workers})
    assert written.loader.num_workers > 0


def share(path, conditions, changes):
    run = simulate(replace_settings(load_config(path).train, changes), conditions)
    return run.waiting_seconds / run.steps[-1].end


def test_workers_hide_slow_reading(tuned_config):
    conditions = Conditions(step_seconds=0.1, read_seconds=0.25, bandwidth=1e9, latency=0.001)
    tuning = tune(load_config(tuned_config()).train, conditions, target=0.1)
    assert tuning.is_reached
    assert tuning.changes == {'num_workers': 4}  # two processes make a batch in 0.125 s
    assert not tuning.changes_order
    assert share(tuned_config(), conditions, tuning.changes) == pytest.approx(tuning.after.waiting)


def test_a_small_block_hides_a_slow_network_and_is_said_to_change_the_order(tuned_config):
    path, conditions = tuned_config(shuffle=True), Conditions(step_seconds=0.1, bandwidth=2e5, latency=0.001)
    tuning = tune(load_config(path).train, conditions, target=0.25)
    assert tuning.trials[0].waiting > 0.25 >= tuning.after.waiting
    assert tuning.changes_order
    assert any('For a new run only' in note for note in tuning.notes())
    kept = tune(load_config(path).train, conditions, target=0.25, keep_order=True)
    assert OF_THE_ORDER.isdisjoint(kept.changes)
    assert not any(trial.changes_order for trial in kept.trials)


def test_what_waits_little_stays(tuned_config):
    tuning = tune(load_config(tuned_config()).train, Conditions(bandwidth=1e9, latency=0.0), target=0.05)
    assert tuning.is_reached
    assert tuning.changes == {}
    assert len(tuning.trials) == 1


def test_a_network_that_is_too_slow_is_named(tuned_config):
    tuning = tune(load_config(tuned_config()).train, Conditions(bandwidth=1e4, latency=0.0))
    assert not tuning.is_reached
    assert 'the network gives' in tuning.limit


def test_a_disk_bounds_the_cache(tuned_config):
    size = simulate(load_config(tuned_config()).train, Conditions()).dataset_bytes
    tuning = tune(load_config(tuned_config(shuffle=True)).train, Conditions(bandwidth=1e9), target=0.5, disk=size // 2)
    assert tuning.changes['cache_limit'] == size // 2
    assert tuning.after.cache_bytes <= size // 2


def test_the_written_configuration_has_the_changes(tuned_config, tmp_path, capsys):
    path, out = tuned_config(), tmp_path / 'tuned.yaml'
    arguments = ['tune', str(path), '--read-seconds', '0.25', '--bandwidth', '1gb', '--wait', '10%']
    assert main([*arguments, '--write', str(out)]) == 0
    assert 'num_workers' in capsys.readouterr().out
    assert load_config(out).train.loader.num_workers == 4
    assert main([*arguments, '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['changes'] == {'num_workers': 4}
    assert main([*arguments, '--write', str(out)]) == 1
    assert 'already exists' in capsys.readouterr().err
    assert main([*arguments, '--most-workers', '1']) == 1
    assert 'out of reach' in capsys.readouterr().out


def test_impossible_targets_are_refused(tuned_config, capsys):
    train = load_config(tuned_config()).train
    with pytest.raises(ConfigError, match='share from 0'):
        tune(train, Conditions(), target=1.0)
    with pytest.raises(ConfigError, match='time of a step'):
        tune(train, Conditions(step_seconds=0))
    assert main(['tune', str(tuned_config()), '--wait', 'little']) == 1
    assert "such as 1% or 0.01, got 'little'" in capsys.readouterr().err


def test_a_file_without_a_folder_is_refused_before_the_search(tuned_config, tmp_path, capsys):
    assert main(['tune', str(tuned_config()), '--write', str(tmp_path / 'none' / 'tuned.yaml')]) == 1
    assert '--write must name a file in a folder that exists' in capsys.readouterr().err


def test_a_search_ends_with_its_time(tuned_config):
    path, conditions = tuned_config(shuffle=True), Conditions(step_seconds=0.1, bandwidth=2e5, latency=0.001)
    now, seen = 0.0, []

    def progress(trial):
        nonlocal now
        seen.append(trial)
        now += 1

    train = load_config(path).train
    tuning = tune(train, conditions, target=0.0, seconds=3, progress=progress, clock=lambda: now)
    assert tuning.trials == tuple(seen[:1]) + tuning.trials[1:]
    assert len(tuning.trials) == 3
    assert not tuning.is_complete
    assert tuning.missing == ('num_workers', 'shuffle_block_size', 'num_canonical_nodes')
    assert any('before all values were tried' in note for note in tuning.notes())
    ticks = iter(range(1_000_000))
    with pytest.raises(ConfigError, match='run without changes was not simulated'):
        tune(train, conditions, seconds=3, clock=lambda: float(next(ticks)))
    with pytest.raises(ConfigError, match='more than 0 s'):
        tune(train, conditions, seconds=0)


def test_a_search_without_time_for_peers_says_so(tuned_config):
    conditions = Conditions(step_seconds=9, nodes=2, ranks=2, batches=4)
    train = load_config(tuned_config(shuffle=True)).train
    trials = []
    tuning = tune(train, conditions, target=0.9, seconds=3, progress=trials.append, clock=lambda: 4 * len(trials))
    assert (tuning.is_reached, tuning.missing, tuning.peers) == (True, ('peers',), '')
    assert 'before all values were tried, of peers. Give it more with --seconds.' in str(tuning)
    tuning = tune(train, conditions, target=0.9)
    assert tuning.is_complete
    assert '`peers`' in str(tuning)


def test_a_cache_that_saves_time_is_proposed_although_the_run_still_waits(tuned_config):
    size = simulate(load_config(tuned_config()).train, Conditions()).dataset_bytes
    train = load_config(tuned_config(shuffle=True, cache_limit=size // 8)).train
    conditions = Conditions(step_seconds=0.001, bandwidth=2e5, latency=0.001, batches=32)
    tuning = tune(train, conditions, target=0.0, keep_order=True)
    before = tuning.trials[0]
    assert not tuning.is_reached
    assert before.waiting > 0.95
    assert tuning.changes['cache_limit'] > size // 8
    assert tuning.after.epoch_seconds < 0.7 * before.epoch_seconds


@pytest.mark.parametrize('peers', [None, {}])
def test_peers_are_weighed_against_canonical_nodes(tuned_config, peers):
    shared = {'shuffle': True, 'num_canonical_nodes': 1, 'peers': peers}
    conditions = Conditions(ranks=4, nodes=4, step_seconds=1.0)
    note = tune(load_config(tuned_config(**shared)).train, conditions).notes()[-1]
    assert note.startswith(
        'In an epoch each shard leaves the store 4.00 times, and 1.00 times with `peers`; with `num_'
    )
    assert note.endswith(
        'without peers 1.19 times. Set `num_canonical_nodes` in a new run, which sends nothing between nodes, and '
        '`peers` in a run in progress.'
    )
    fitting = load_config(tuned_config(shuffle=True, num_canonical_nodes=4, peers=peers)).train
    tuning = tune(fitting, conditions)
    assert tuning.notes()[-1].endswith(' 1.19 times, and 1.00 times with `peers`: they save little.')
    assert tuning.to_json()['peers'] == tuning.peers
    zipped = load_config(tuned_config(**{**shared, 'peers': None, 'keep_zip': True})).train
    assert tune(zipped, conditions).peers.startswith('`peers` do not go with this configuration: ')
    assert tune(fitting, Conditions(step_seconds=1.0)).peers == ''


def test_peers_are_proposed_where_other_canonical_nodes_cannot_help(tuned_config):
    loader = {'shuffle': True, 'shuffle_algo': 'naive', 'num_canonical_nodes': 4}
    tuning = tune(load_config(tuned_config(**loader)).train, Conditions(ranks=4, nodes=4, step_seconds=1.0))
    assert tuning.peers == (
        'In an epoch each shard leaves the store 4.00 times, and 1.00 times with `peers`. Set `peers` if the nodes are '
        'connected faster than the store.'
    )
