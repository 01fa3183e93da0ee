"""The file of a run's record, cut and changed at every byte."""

from __future__ import annotations

import json
import resource
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from headrace.watching import RecordedRun, RunHistory, RunRecorder, record
from headrace.watching.record import RECORD, RecordFile, read_record
from tests.support.trainers.recorded_runs import Process

ENTRIES = [{'kind': 'pass', 'step': n, 'name': 'ü\n' * (n % 3)} for n in range(6)]


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    file = RecordFile(tmp_path / 'whole')
    for entry in ENTRIES:
        file.add(entry)
    file.close()
    return (tmp_path / 'whole' / RECORD).read_bytes()


def test_a_record_gives_what_was_added(tmp_path: Path, whole: bytes) -> None:
    assert read_record(tmp_path / 'whole') == (ENTRIES, 0)


def test_a_kill_at_any_byte_loses_at_most_the_last_line_and_the_next_writer_continues(
    tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / RECORD
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        done = whole[:size].count(b'\n')
        if whole[size : size + 1] == b'\n':
            done += 1  # only the end of the line is missing
        assert read_record(tmp_path).entries == ENTRIES[:done], size
        file = RecordFile(tmp_path)
        file.add({'kind': 'segment', 'step': 7})
        file.close()
        assert read_record(tmp_path).entries == [*ENTRIES[:done], {'kind': 'segment', 'step': 7}], size


def test_a_changed_byte_costs_one_line(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / RECORD
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found, damaged = read_record(tmp_path)
        lost = 2 if whole[at : at + 1] == b'\n' and at + 1 < len(whole) else 1  # two lines became one
        assert [entry for entry in found if entry in ENTRIES] == found
        assert len(found) == len(ENTRIES) - lost or at + 1 == len(whole)
        assert damaged == 1


def test_a_full_disk_is_one_warning_and_its_lines_follow(tmp_path: Path) -> None:
    file = RecordFile(tmp_path)
    file.add(ENTRIES[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + 10, before[1]))  # in the middle of a line
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            file.add(ENTRIES[1])
            file.add(ENTRIES[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_record(tmp_path) == (ENTRIES[:1], 1)
    assert ['The training continues' in str(one.message) for one in caught] == [True]
    file.add(ENTRIES[3])
    file.close()
    assert read_record(tmp_path) == (ENTRIES[:4], 1)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='headrace.record'):
        read_record(tmp_path)
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match='Give another `folder`'):
        RecordFile(tmp_path / 'file')


def test_a_packed_run_is_explained(tmp_path, capsys) -> None:
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
        record.flush()
    for given in (config, None):
        run = RecordedRun(tmp_path / 'run', config=given)
        assert {step: sorted(set(run.step(step).report.batches[0].ids.tolist())) for step in trained} == trained
        reached = run.history.segments[-1].reached  # a killed process may not have written its last steps
        for document in range(60):
            seen = {use.step for use in run.uses(document)}
            assert seen == {step for step in range(reached) if document in trained[step]}
    document = trained[4][0]
    assert main(['explain', '--run', str(tmp_path / 'run'), '--sample', str(document)]) == 0
    assert 'step 4: seen in segment 2' in capsys.readouterr().out
    (tmp_path / 'c.json').write_text(json.dumps({'train': train}))
    assert main(['explain', str(tmp_path / 'c.json'), '--sample', str(document)]) == 0
    first = min(step for step, documents in trained.items() if document in documents)
    assert f'in global batch {first}.' in capsys.readouterr().out


def test_a_run_that_packs_texts_is_explained_with_its_configuration(tmp_path, capsys) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'text': 'str'}) as writer:
        for number in range(40):
            writer.write({'text': f'a b c {number}'})
    packing = Packing(sequence_length=16, tokenizer=lambda texts: [np.arange(9) for _ in texts])
    dataset = PackedDataset(local=str(tmp_path / 'data'), batch_size=2, packing=packing)
    loader, record = StreamingDataLoader(dataset), RunRecorder(tmp_path / 'run')
    record.begin({'': loader})
    next(iter(loader))
    record.batch_done()
    record.end()
    assert main(['explain', '--run', str(tmp_path / 'run'), '--step', '0']) == 1
    assert 'it packs texts' in (said := capsys.readouterr().err)
    assert 'Name its configuration: headrace explain CONFIG --run' in said


@pytest.mark.parametrize('weights_count', ['tokens', 'documents'])
def test_a_packed_run_names_its_streams(tmp_path, weights_count, capsys) -> None:
    for name in 'ab':
        with MDSWriter(out=str(tmp_path / name), columns={'tokens': 'ndarray:int32'}) as writer:
            for _ in range(40):
                writer.write({'tokens': np.arange(1, 30, dtype=np.int32)})
    streams = {name: {'local': str(tmp_path / name), 'proportion': share} for name, share in (('a', 0.7), ('b', 0.3))}
    packing = {'sequence_length': 64, 'column': 'tokens', 'weights_count': weights_count}
    train = {'streams': streams, 'global_batch_size': 2, 'packing': packing}
    loader, record = build_loader(load_config({'train': train}).train), RunRecorder(tmp_path / 'run')
    record.begin({'': loader})
    next(iter(loader))
    record.batch_done()
    record.end()
    (segment,) = RunHistory.read(tmp_path / 'run').segments
    assert segment.passes[0].proportions == pytest.approx({'a': 0.7, 'b': 0.3}, abs=0.02)
    assert main(['explain', '--run', str(tmp_path / 'run')]) == 0
    assert 'mixture: a 0.700, b 0.300' in capsys.readouterr().out


def test_a_copy_of_the_sources_has_a_version_too(monkeypatch):
    def version(name: str) -> str:
        if name == 'headrace':
            raise PackageNotFoundError(name)
        return '1.2'

    monkeypatch.setattr(record, 'version', version)
    assert record.library_versions()['headrace'] == headrace.__version__


def test_the_version_of_an_installed_library_is_that_of_its_package():
    assert record.library_versions()['numpy'] == np.__version__


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
