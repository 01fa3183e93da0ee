"""Recorded runs over data that change, and what `headrace explain` says of them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataset
from headrace.cli import main
from headrace.mixing import build_loader, load_config
from headrace.watching import RecordedRun, RunRecorder

FIRST = {'a': 0, 'b': 1000}  # keys of the streams begin there


def append(folder: Path, name: str, count: int) -> None:
    """Append samples whose key is that of the stream, and their number in it, as two shards or more."""
    index = folder / name / 'index.json'
    begin = sum(shard['samples'] for shard in json.loads(index.read_text())['shards']) if index.exists() else 0
    columns = {'key': 'int', 'tokens': 'ndarray:int32'}
    with MDSWriter(out=str(folder / name), columns=columns, size_limit=1200, append=bool(begin)) as writer:
        for number in range(begin, begin + count):
            key = FIRST[name] + number
            writer.write({'key': key, 'tokens': np.full(5 + key % 7, key + 1, np.int32)})


def config_of(folder: Path, streams: str = 'a', **options: Any) -> dict[str, Any]:
    named: dict[str, dict[str, Any]] = {
        name: {'remote': str(folder / name), 'local': str(folder / 'cache' / name)} for name in streams
    }
    if 'packing' not in options:
        for stream in named.values():
            stream['columns'] = ['key']
    return {'global_batch_size': 10, 'train': {'streams': named, 'shuffle': True, **options}}


class Trained:
    """A run in the folder `run`, and the keys of each step."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.loader = build_loader(load_config(config).train)
        self.keys: dict[int, list[int]] = {}
        self.record = RunRecorder(folder / 'run', status_every=None)

    def train(self, batches: int | None = None, **place: Any) -> None:
        """One epoch, or some batches of it; with a `step`, a new segment begins there."""
        if place:
            self.record.begin({'': self.loader}, **place)
        for _, batch in zip(range(batches or 10**6), self.loader, strict=False):
            self.keys[self.record.step] = batch['key'].tolist() if 'key' in batch else tokens_of(batch)
            self.record.batch_done()


def tokens_of(batch: dict[str, Any]) -> list[int]:
    return sorted({token - 1 for token in batch['input_ids'].unique().tolist() if token})


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob('*'))}


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert main(['explain', *map(str, arguments), '--json']) == 0
    return json.loads(capsys.readouterr().out)


def opened(folder: Path, streams: str, **options: Any) -> StreamingDataset:
    """The data as they are now."""
    config = config_of(folder, streams, **options)
    for stream in config['train']['streams'].values():
        del stream['remote']
        stream['local'] = stream['local'].replace('/cache/', '/')
    return build_loader(load_config(config).train).dataset


def check(folder: Path, trained: dict[int, list[int]], dataset: StreamingDataset, capsys: Any) -> None:
    """Steps, samples and streams as the command says them are those of the batches, and `dataset[id]`."""
    before = files_of(folder)
    steps_of: defaultdict[int, list[int]] = defaultdict(list)
    for step, keys in trained.items():
        found = shown(capsys, '--run', folder / 'run', '--step', step, '--previews', 2)
        by_id = [value_at(dataset, row['id']) for row in found['rows']]
        assert by_id == keys, step
        assert [key_at(folder, row) for row in found['rows']] == keys
        previews = {int(i): values for i, values in found['previews'].items()}
        assert {i: values['key']['value'] for i, values in previews.items()} == {
            i: value_at(dataset, i) for i in previews
        }
        assert Counter(row['stream'] for row in found['rows']) == Counter('b' if k >= 1000 else 'a' for k in keys)
        for row in found['rows']:
            steps_of[row['id']].append(step)
    run = RecordedRun(folder / 'run')
    for sample in range(0, dataset.num_samples, 3):
        assert [use.step for use in run.uses(sample) if use.is_past] == steps_of[sample]
    assert files_of(folder) == before


def value_at(dataset: StreamingDataset, sample: int) -> int:
    return dataset[sample]['key']


def key_at(folder: Path, row: dict[str, Any]) -> int:
    """The key that is stored in the shard and row of an explained sample."""
    shards = json.loads((folder / row['stream'] / 'index.json').read_text())['shards']
    assert shards[row['shard']]['raw_data']['basename'] == row['file']
    return FIRST[row['stream']] + sum(shard['samples'] for shard in shards[: row['shard']]) + row['shard_row']
