"""Runs that are killed and continue elsewhere, and what their record says, against what the loaders handed out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest

from headrace.cli import main
from headrace.errors import ConfigError
from headrace.watching import RecordedRun
from tests.support import support_file
from tests.support.trainers.recorded_runs import Process, ids_of


@pytest.mark.parametrize(
    'options',
    [
        {},
        {'shuffle_algo': 'py1e', 'num_canonical_nodes': 2},
        {'skip': [[25, 45]], 'remainder': 'drop'},
        {'batching_method': 'stratified'},
    ],
    ids=['native', 'py1e', 'skip', 'stratified'],
)
def test_each_step_is_the_one_that_was_trained_after_kills_on_other_ranks(folders, tmp_path, options) -> None:
    first, state = Process(folders, tmp_path, 2, **options).train(17, save=14)  # killed at step 17
    second, state2 = Process(folders, tmp_path, 1, **options).train(9, first=14, state=state, save=20)
    third, _ = Process(folders, tmp_path, 5, **options).train(6, first=20, state=state2)
    trained = {**first, **second, **third}
    run = RecordedRun(tmp_path)
    for step, ids in trained.items():
        assert sorted(ids_of(run, step)) == sorted(ids), step
    assert ids_of(run, 3) == first[3]  # rank by rank, on the ranks of then
    assert ids_of(run, 22) == third[22]
    assert [(segment.number, end) for segment, end in run.history.kept()][:2] == [(1, 14), (2, 20)]
    assert [one.segment.number for one in run.history.trained(16)] == [1, 2]
    assert run.step(16).trained.segment.number == 2


def test_a_resume_that_was_killed_before_its_first_step_continues_with_the_checkpoint(folders, tmp_path) -> None:
    first = Process(folders, tmp_path, 1)
    _, state = first.train(7, save=5)
    first.record.end()
    second = Process(folders, tmp_path, 1)
    second.record.begin({'': second.loaders[0]}, step=5)
    run = RecordedRun(tmp_path)
    uses = {sample: list(run.uses(sample)) for sample in (0, 7, 129)}
    with pytest.raises(ConfigError, match='below 7, got --step 9. The last resume has trained no batch yet'):
        run.step(9)
    third = Process(folders, tmp_path, 1)
    third.train(1, first=5, state=state)
    run = RecordedRun(tmp_path)
    for sample, found in uses.items():
        assert [use.step for use in run.uses(sample)] == [use.step for use in found]


def test_the_command_explains_steps_and_samples(folders, tmp_path, capsys) -> None:
    first, state = Process(folders, tmp_path, 2).train(17, save=14)
    process = Process(folders, tmp_path, 1)
    process.train(3, first=14, state=state)
    process.record.end()

    def shown(*arguments: object) -> str:
        assert main(['explain', '--run', str(tmp_path), *map(str, arguments)]) == 0
        return capsys.readouterr().out

    text = shown('--step', 15)
    assert 'Step 15 was trained in segment 2 of 2, which began at step 14 on ' in text
    assert 'Segment 1 may have trained it, too, on 2 ranks and 1 node' in text
    assert 'Rank 0, row 0: id ' in text
    found = json.loads(shown('--step', 3, '--json', '--rank', 1, '--previews', 1))
    assert [row['id'] for row in found['rows']] == [i if i < 1000 else i - 950 for i in first[3][5:]]
    ((ident, values),) = found['previews'].items()
    assert values['id']['value'] == first[3][5]
    assert int(ident) == found['rows'][0]['id']
    assert found['topology'] == {'world_size': 2, 'num_nodes': 1, 'replication': 1}
    assert '  checkpoints of 1 step; mixture: ' in shown()
    uses = json.loads(shown('--sample', 7, '--json'))
    assert uses['stream'] == 'a'
    assert len(uses['uses']) >= 2
    assert 'The weights of this run have seen it' in shown('--sample', 7)
    assert 'Segment 1: steps 0 to 14, its weights count to step 14' in shown()
    assert json.loads(shown('--json'))['segments'][1]['reached'] == 17


def test_wrong_arguments_are_refused(folders, tmp_path, capsys) -> None:
    Process(folders, tmp_path, 1).train(2)
    for arguments, message in (
        ([], 'needs the YAML file of the loaders, or --run'),
        (['--step', '3'], '--step 3 without --run'),
        (['a.yaml', '--decisions'], 'got it without --run'),
        (['--run', str(tmp_path), '--decisions', '--step', '1'], 'or with --step'),
        (['--run', str(tmp_path), '--batch', '3'], '--batch place'),
        (['--run', str(tmp_path), '--step', '-1'], 'begins with step 0, got --step -1'),
        (['--run', str(tmp_path / 'no'), '--step', '1'], 'cannot be read'),
        (['--run', str(tmp_path), '--step', '1', '--loader', 'other'], "training loaders , got 'other'"),
    ):
        assert main(['explain', *arguments]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_training_that_is_killed_and_resumed_is_recorded_step_by_step(folders, tmp_path) -> None:
    command = [sys.executable, str(support_file('trainers/recorded_training.py')), str(tmp_path), str(folders['b'])]
    trained = tmp_path / 'trained'
    for lines in (17, 40):
        process = subprocess.Popen(command)
        try:
            while not trained.exists() or trained.read_bytes().count(b'\n') < lines:
                assert process.poll() is None
                threading.Event().wait(0.01)
        finally:
            process.kill()
            process.wait()
    subprocess.run(command, check=True)
    last: dict[int, list[int]] = {}  # a step's batch in the weights is the last one
    for line in trained.read_text().splitlines():
        step, *ids = map(int, line.split())
        last[step] = ids
    assert sorted(last) == list(range(60))
    run = RecordedRun(tmp_path)
    first, second, third = run.history.segments
    assert 0 == first.first_step < second.first_step < third.first_step
    assert third.has_ended
    assert third.reached == 60
    for step, ids in last.items():
        assert [i + 1000 for i in run.step(step).report.batches[0].ids.tolist()] == ids, step
    for use in run.uses(3):
        assert not use.is_past or 1003 in last[use.step]
    assert sum(use.is_past for use in run.uses(3)) == sum(1003 in ids for ids in last.values())
    status = json.loads((tmp_path / 'headrace-status' / 'rank-00000.json').read_text())
    assert (status['state'], status['step']) == ('ended', 60)
