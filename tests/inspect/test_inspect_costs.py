"""Costs of a dataset, measured before its runs and described: by `measure`, `headrace measure` and `inspect`."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MDSWriter, Stream, StreamingDataset, Topology
from headrace.cli import main
from headrace.config.build import build_dataset
from headrace.config.load import load_config
from headrace.errors import StreamError
from headrace.inspect.costs import ROWS, CostSummary, measure

COUNT = 60


def write(folder: Path, first: int = 0) -> Path:
    columns = {'tokens': 'ndarray:int32', 'lang': 'str'}
    with MDSWriter(out=str(folder), columns=columns, size_limit=2000) as out:
        for number in range(first, first + COUNT):
            out.write({'tokens': np.zeros(1 + number % 50, np.int32), 'lang': 'de' if number % 3 else 'en'})
    return folder


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 9), min_size=1, max_size=40))
def test_a_summary_counts_all_samples(costs: list[int]) -> None:
    found = CostSummary.of('tokens', np.array(costs, np.uint32))
    ordered = sorted(costs)
    assert found.quantiles['median'] == ordered[len(costs) // 2]
    assert found.quantiles['p90'] == ordered[len(costs) * 9 // 10]
    assert (found.quantiles['min'], found.quantiles['max']) == (ordered[0], ordered[-1])
    assert found.sum == sum(costs)
    bins = Counter(1 << cost.bit_length() >> 1 for cost in costs)
    assert {edge: count for edge, count in found.histogram if count} == bins
    shares = [((place + 1) / len(costs)) ** ROWS - (place / len(costs)) ** ROWS for place in range(len(costs))]
    longest = sum(share * cost for share, cost in zip(shares, ordered, strict=True))
    expected = 1 - sum(costs) / len(costs) / longest if longest else 0
    assert math.isclose(found.padding, expected, rel_tol=1e-9, abs_tol=1e-9)
    assert len(found.lines()) == 3 + len(found.histogram)


def test_the_padding_is_that_of_random_batches() -> None:
    rng = np.random.default_rng(0)
    costs = np.exp(rng.normal(4, 1, 20_000)).astype(np.uint32)
    batches = costs[rng.permutation(len(costs))].reshape(-1, ROWS)
    padded = batches.max(axis=1).sum() * ROWS
    assert abs(CostSummary.of('tokens', costs).padding - (1 - costs.sum() / padded)) < 0.01


def test_runs_find_what_was_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {
        'streams': {
            name: {'remote': str(write(tmp_path / name, first)), 'local': str(tmp_path / f'cache of {name}')}
            for name, first in (('a', 0), ('b', 7))
        },
        'cost': 'tokens',
        'bucket': 2,
        'where': {'lang': ['de']},
    }
    path = tmp_path / 'train.yaml'
    path.write_text(json.dumps({'global_batch_size': 8, 'train': train}))
    assert main(['measure', str(path), '-j', '2', '--json']) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [(one['column'], one['samples'], one['max']) for one in found] == [('tokens', 40, 50), ('tokens', 40, 50)]
    config = load_config(path).train
    assert config is not None
    with caplog.at_level(logging.INFO, 'headrace'):
        dataset = build_dataset(config, topology=Topology())
    assert 'Measuring' not in caplog.text
    stored = [stream.costs.values for stream in dataset.pool.streams if stream.costs is not None]
    assert [int(values.sum()) for values in stored] == [one['sum'] for one in found]
    assert main(['measure', str(path), '--cost', 'lang']) == 0
    assert 'cost lang: 40 samples, 80 in all' in capsys.readouterr().out
    assert main(['measure', str(path), '--local', str(tmp_path)]) == 1
    assert '--local is the cache folder of a URL' in capsys.readouterr().err


def test_a_dataset_needs_no_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    remote, cache = str(write(tmp_path / 'data')), str(tmp_path / 'cache')
    assert main(['measure', remote]) == 1
    assert 'names no `cost`' in capsys.readouterr().err
    assert main(['measure', remote, '--cost', 'tokens']) == 0
    assert main(['measure', f'file://{remote}', '--cost', 'tokens', '--local', cache]) == 0
    assert 'cost tokens: 60 samples' in capsys.readouterr().out
    with caplog.at_level(logging.INFO, 'headrace'):
        StreamingDataset(local=remote, batch_size=4, cost='tokens', bucket=2)
    assert 'Measuring' not in caplog.text


def test_inspect_shows_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'a.jsonl').write_text(''.join(f'{{"text": "{"x" * number}"}}\n' for number in range(1, 20)))
    assert main(['inspect', str(tmp_path / 'a.jsonl'), '--cost', 'text', '--samples', '1']) == 0
    said = capsys.readouterr().out
    assert 'min 1, median 10, p90 18, p99 19, max 19' in said
    assert '  8+   8  ####' in said
    assert main(['inspect', str(tmp_path), '--format', 'jsonl', '--cost', 'text', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['costs']['samples'] == 19
    assert main(['inspect', str(tmp_path), '--json']) == 0
    assert 'costs' not in json.loads(capsys.readouterr().out)


def test_progress_counts_the_shards_of_all_streams(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    streams = [Stream(local=str(write(tmp_path / name)), name=name) for name in 'ab']
    measure(streams, 'tokens', progress=lambda done, total: seen.append((done, total)))
    shards = [len([*(tmp_path / name).glob('*.mds')]) for name in 'ab']
    assert seen[-1] == (sum(shards), sum(shards))
    with pytest.raises(StreamError, match="names the column 'token'"):
        measure(streams[:1], 'token')
