"""The history of a run: uses of samples, changes of the mixture, kills."""

from __future__ import annotations

import json

import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.cli import main
from headrace.errors import ConfigError, ResumeError
from headrace.watching import RecordedRun, RunHistory
from headrace.watching.record import read_record
from tests.support.trainers.recorded_runs import SIZES, Process, ids_of


def test_uses_of_a_sample_are_all_that_the_weights_have_seen_and_the_next(folders, tmp_path) -> None:
    first, state = Process(folders, tmp_path, 2).train(17, save=14)
    process = Process(folders, tmp_path, 1)
    second, _ = process.train(20, first=14, state=state)
    process.record.end()
    kept = {**{step: ids for step, ids in first.items() if step < 14}, **second}
    run = RecordedRun(tmp_path)
    for sample in (0, 7, 49, 50, 129):
        ident = sample if sample < SIZES['a'] else sample - SIZES['a'] + 1000
        uses = list(run.uses(sample))
        assert [use.step for use in uses if use.is_past] == [step for step in sorted(kept) if ident in kept[step]]
        after = uses[-1]
        assert not after.is_past
        assert after.step >= 34
        assert sample in run.step(after.step).report.batches[0].ids
        assert [use.is_past for use in uses] == [True] * (len(uses) - 1) + [False]
    with pytest.raises(ConfigError, match=r'\[0, 130\)'):
        list(run.uses(130))


def test_a_mixture_that_changed_at_a_resume_is_another_one_from_there_on(folders, tmp_path) -> None:
    first, state = Process(folders, tmp_path, 1).train(5, save=5)
    reversed_folders = {'b': folders['b'], 'a': folders['a']}  # b has the share of 0.4 now
    second, _ = Process(reversed_folders, tmp_path, 1, on_mixture_change='continue').train(5, first=5, state=state)
    run = RecordedRun(tmp_path)
    assert ids_of(run, 4) == first[4]
    found = run.step(7).report.batches[0].ids.tolist()
    assert [i + 1000 if i < SIZES['b'] else i - SIZES['b'] for i in found] == second[7]
    mixtures = [segment.passes[0].mixture for segment in run.history.segments]
    assert len(set(mixtures)) == 2
    assert run.history.segments[1].passes[0].proportions == {'b': 0.4, 'a': 0.6}


def test_a_killed_run_is_known_as_far_as_it_was_written(folders, tmp_path) -> None:
    Process(folders, tmp_path, 1).train(7)
    (segment,) = RunHistory.read(tmp_path).segments
    assert (segment.first_step, segment.reached, segment.has_ended) == (0, 1, False)
    (time,) = RunHistory.read(tmp_path).trained(6)
    assert not time.is_sure
    assert time.is_kept


def test_other_data_than_the_runs_are_refused(folders, tmp_path, make_dataset) -> None:
    Process(folders, tmp_path / 'run', 1).train(2)
    other = make_dataset('other', 60)
    run = RecordedRun(tmp_path / 'run', overrides=[f'train.streams.a.local={other}'])
    with pytest.raises(ResumeError, match='samples'):
        run.step(1)


def test_decisions_are_recorded_once_and_their_replay_has_the_same_samples(folders, tmp_path, capsys) -> None:
    process = Process(folders, tmp_path, 2)
    seen, state = process.train(4, save=4)
    for number, shares in enumerate([{'a': 1, 'b': 0}, {'a': 1, 'b': 3}]):
        for loader in process.loaders:
            loader.load_state_dict(state)  # else the next pass is the next epoch
            loader.set_proportions(shares, by='test')
        more, state = process.train(3, first=4 + 3 * number, save=7 + 3 * number)
        seen |= more
    resumed = Process(folders, tmp_path, 1)
    seen |= resumed.train(12, first=10, state=state)[0]
    resumed.record.end()
    run = RecordedRun(tmp_path)
    decisions = run.history.decisions()
    assert [one['at'] for one in decisions] == [40, 70]
    replayed = StreamingDataLoader(
        StreamingDataset(
            streams=[Stream(local=str(folders[n]), name=n, proportion=w) for n, w in (('a', 0.4), ('b', 0.6))],
            batch_size=10,
            epoch_size=100,
            shuffle=True,
            decisions=decisions,
        )
    )
    batches = [batch['id'].tolist() for _ in range(3) for batch in replayed][:22]
    assert [sorted(batch) for batch in batches] == [sorted(seen[step]) for step in range(22)]
    assert [sorted(ids_of(run, step)) for step in range(22)] == [sorted(seen[step]) for step in range(22)]
    assert run.history.segments[-1].passes[0].proportions == {'a': 0.25, 'b': 0.75}
    lines = [entry for entry in read_record(tmp_path).entries if entry['kind'] == 'decision']
    assert [entry['at'] for entry in lines] == [40, 40, 70, 40, 70]  # once by each process that knows it
    assert main(['explain', '--run', str(tmp_path)]) == 0
    assert 'decisions: 2, the last by test at sample 70 of the run: a 0.250, b 0.750' in capsys.readouterr().out
    assert main(['explain', '--run', str(tmp_path), '--decisions']) == 0
    assert json.loads(capsys.readouterr().out) == decisions
