"""Runs that are killed and continue elsewhere, and what their record says, against what the loaders handed out."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.cli import main
from headrace.errors import ConfigError, ResumeError
from headrace.mixing import build_loader, load_config
from headrace.watching import RecordedRun, RunHistory, RunRecorder

SIZES = {'a': 50, 'b': 80}
BATCH = 10


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory, make_dataset_in) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('data')
    return {name: make_dataset_in(root, name, size, first=1000 * (name == 'b')) for name, size in SIZES.items()}


class Process:
    """One process of a run on several ranks, which records on rank 0."""

    def __init__(self, folders: dict[str, Path], folder: Path, ranks: int, **options: Any) -> None:
        settings = {'shuffle': True, 'epoch_size': 100, **options}
        self.loaders: list[StreamingDataLoader] = []
        for rank in range(ranks):
            streams = [
                Stream(local=str(data), name=name, proportion=weight)
                for (name, data), weight in zip(folders.items(), (0.4, 0.6), strict=True)
            ]
            dataset = StreamingDataset(streams=streams, batch_size=BATCH // ranks, **settings)
            self.loaders.append(StreamingDataLoader(dataset, topology=Topology(rank=rank, world_size=ranks)))
        self.record = RunRecorder(folder)

    def train(
        self, steps: int, *, first: int = 0, state: dict[str, Any] | None = None, save: int | None = None
    ) -> tuple[dict[int, list[int]], dict[str, Any]]:
        """The ids of each step, and the state after `save` steps of the run."""
        for loader in self.loaders:
            if state is not None:
                loader.load_state_dict(state)
        self.record.begin({'': self.loaders[0]}, step=first)
        seen: dict[int, list[int]] = {}
        saved: dict[str, Any] = {}
        while len(seen) < steps:
            for batches in zip(*self.loaders, strict=True):
                self.record.batch_done()
                seen[first + len(seen)] = [ident for batch in batches for ident in batch['id'].tolist()]
                if self.record.step == save:
                    self.record.checkpoint()
                    saved = self.loaders[0].state_dict()
                if len(seen) == steps:
                    break
        return seen, saved


def ids_of(run: RecordedRun, step: int) -> list[int]:
    ids = run.step(step).report.batches[0].ids.tolist()
    return [i if i < SIZES['a'] else i - SIZES['a'] + 1000 for i in ids]


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


def test_a_record_has_no_credentials_and_is_no_url(folders, tmp_path) -> None:
    stream = Stream(
        remote=str(folders['a']), local=str(tmp_path / 'cache'), endpoint_url='https://user:pass1@host?sig=sig2'
    )
    loader = StreamingDataLoader(StreamingDataset(streams=[stream], batch_size=10))
    record = RunRecorder(tmp_path / 'run')
    record.begin({'': loader})
    for _ in loader:
        record.batch_done()
    record.end()
    text = (tmp_path / 'run' / 'headrace.record').read_text()
    assert 'https://user@host' in text
    assert 'pass1' not in text
    assert 'sig2' not in text
    for folder in ('s3://bucket/run', Path('gs:/bucket/run')):
        with pytest.raises(ConfigError, match='a folder of this machine'):
            RunRecorder(folder)


def test_the_step_is_written_now_and_then(folders, tmp_path) -> None:
    process = Process(folders, tmp_path, 1)
    now = 0.0

    def clock() -> float:
        return now

    process.record = record = RunRecorder(tmp_path, every=60, clock=clock)
    record.begin({'': process.loaders[0]})
    for step, _ in enumerate(process.loaders[0]):
        now += 25
        record.batch_done()
        if step == 7:
            break
    assert RunHistory.read(tmp_path).segments[0].reached == 7  # written at 25 (the pass), 100 and 175 s


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
        (['--run', str(tmp_path), '--batch', '3'], '--batch place'),
        (['--run', str(tmp_path), '--step', '-1'], 'begins with step 0, got --step -1'),
        (['--run', str(tmp_path / 'no'), '--step', '1'], 'cannot be read'),
        (['--run', str(tmp_path), '--step', '1', '--loader', 'other'], "training loaders , got 'other'"),
    ):
        assert main(['explain', *arguments]) == 1
        assert message in capsys.readouterr().err


def test_other_data_than_the_runs_are_refused(folders, tmp_path, make_dataset) -> None:
    Process(folders, tmp_path / 'run', 1).train(2)
    other = make_dataset('other', 60)
    run = RecordedRun(tmp_path / 'run', overrides=[f'train.streams.a.local={other}'])
    with pytest.raises(ResumeError, match='samples'):
        run.step(1)


def test_a_packed_run_is_explained_with_its_configuration(tmp_path, capsys) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'tokens': 'ndarray:int32'}, size_limit=2000) as writer:
        for number in range(60):
            writer.write({'tokens': np.full(5 + number % 11, number + 1, np.int32)})
    packing = {'sequence_length': 32, 'column': 'tokens'}
    train = {'local': str(tmp_path / 'data'), 'shuffle': True, 'global_batch_size': 2, 'packing': packing}
    config = load_config({'train': train}).train
    assert config is not None
    trained: dict[int, list[int]] = {}
    state = None
    for first, steps, saved in ((0, 5, 3), (3, 4, None)):  # killed at step 5
        loader, record = build_loader(config, topology=Topology()), RunRecorder(tmp_path / 'run')
        if state is not None:
            loader.load_state_dict(state)
        record.begin({'': loader}, step=first)
        for _, batch in zip(range(steps), loader, strict=False):
            record.batch_done()
            trained[record.step - 1] = [
                token - 1 for token in batch['input_ids'].unique().tolist() if token
            ]  # 0 fills up
            if record.step == saved:
                record.checkpoint()
                state = loader.state_dict()
    run = RecordedRun(tmp_path / 'run', config=config)
    assert {step: sorted(set(run.step(step).report.batches[0].ids.tolist())) for step in trained} == trained
    assert main(['explain', '--run', str(tmp_path / 'run'), '--step', '4']) == 1
    assert 'Name its configuration: headrace explain CONFIG --run' in capsys.readouterr().err
    with pytest.raises(ConfigError, match='without `packing`, got 3'):
        list(run.uses(3))


@pytest.mark.slow
def test_a_training_that_is_killed_and_resumed_is_recorded_step_by_step(folders, tmp_path) -> None:
    command = [sys.executable, str(Path(__file__).with_name('recorded_training.py')), str(tmp_path), str(folders['b'])]
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
