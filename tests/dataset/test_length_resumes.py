"""Runs with `bucket` and `balance` continue exactly on other ranks: any two settings together, and under trainers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.testing.oracle import World, check_resume
from tests.support.suite.covering import covering, pairs
from tests.support.trainers.resume_oracle import check_states

SIZES = {'a': 42, 'b': 30}
GLOBAL_BATCH = 12
LENGTHS: dict[str, dict[str, Any]] = {
    'none': {},
    'bucket': {'bucket': 3},
    'balance': {'balance': 1},
    'both': {'bucket': 2, 'balance': 2},
}
MIXES: dict[str, dict[str, Any]] = {
    'one stream': {},
    'two streams': {},
    'stratified': {'batching_method': 'stratified'},
    'schedule': {
        'schedule': [
            {'at': 0, 'proportions': {'a': 0.8, 'b': 0.2}},
            {'at': 60, 'proportions': {'a': 0.3, 'b': 0.7}, 'change': 'linear'},
        ],
        'epoch_size': 48,
    },
}
CHOICES: dict[str, dict[str, Any]] = {
    'all': {},
    'where': {'where': {'length': {'at_least': 2}}},
    'skip': {'skip': [('1ba', '2ba'), (75, 78)]},
}
WORLDS = {
    'fewer': [World(ranks=4, nodes=2), World(ranks=1)],
    'more': [World(ranks=2), World(ranks=6, nodes=2), World(ranks=3)],
    'replicas': [World(ranks=4, replication=2), World(ranks=3)],
    'workers': [World(ranks=1, workers=2), World(ranks=2, workers=1)],
}


@dataclass(frozen=True)
class Case:
    lengths: str
    mix: str
    choice: str
    worlds: str
    shuffle: bool
    remainder: str

    def __str__(self) -> str:
        return '-'.join(map(str, astuple(self)))


def chosen() -> Iterator[Case]:
    remainders = ('repeat', 'drop', 'exact')
    cases = [Case(*one) for one in itertools.product(LENGTHS, MIXES, CHOICES, WORLDS, (True, False), remainders)]
    return covering(cases, lambda case: pairs(astuple(case)), lambda case: 4 if case.worlds == 'workers' else 1)


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Streams of samples with `id`, their number in both streams, and a log-normal length."""
    root, ids = tmp_path_factory.mktemp('lengths'), itertools.count()
    rng = np.random.default_rng(0)
    for name, size in SIZES.items():
        columns = {'id': 'int', 'tokens': 'ndarray:int32', 'length': 'int'}
        with MDSWriter(out=str(root / name), columns=columns, size_limit=600) as writer:
            for number in itertools.islice(ids, size):
                length = 1 + int(rng.lognormal(1.5, 1))
                writer.write({'id': number, 'tokens': np.full(length, number, np.int32), 'length': length})
    return {name: root / name for name in SIZES}


def loader_of(folders: dict[str, Path], case: Case, topology: Topology, workers: int) -> StreamingDataLoader:
    names = list(SIZES)[: 1 if case.mix == 'one stream' else 2]
    size = GLOBAL_BATCH // topology.replicas
    how: dict[str, Any] = {**LENGTHS[case.lengths], **MIXES[case.mix], **CHOICES[case.choice]}
    dataset = StreamingDataset(
        streams=[Stream(local=str(folders[name]), name=name) for name in names],
        cost='tokens',
        batch_size=size,
        shuffle=case.shuffle,
        remainder=case.remainder,  # type: ignore[arg-type]
        replication=topology.replication,
        num_canonical_nodes=2,
        topology=topology,
        **how,
    )
    return StreamingDataLoader(dataset, batch_size=size, num_workers=workers, pad={'tokens': -1})


@pytest.mark.parametrize('case', list(chosen()), ids=str)
def test_any_two_settings_resume_exactly(folders: dict[str, Path], case: Case) -> None:
    every = 3 if case.worlds == 'workers' else 2
    assert check_resume(partial(loader_of, folders, case), WORLDS[case.worlds], epochs=2, every=every) > 1


@pytest.mark.filterwarnings('ignore')
def test_hugging_faces_trainer_continues_from_any_step_on_other_ranks(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip('accelerate', reason='pip install -e ".[recipes]"')
    transformers = pytest.importorskip('transformers', reason='pip install -e ".[recipes]"')
    from headrace.transformers import StreamingTrainer

    seen: list[frozenset[int]] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, id: torch.Tensor, tokens: torch.Tensor, **_: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: A002
            seen.append(frozenset(id.tolist()))
            return {'loss': (tokens * self.weight).sum()}

    case = Case('both', 'two streams', 'all', 'fewer', shuffle=True, remainder='drop')
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / 'run'), use_cpu=True, report_to=[], disable_tqdm=True, save_steps=1,
        num_train_epochs=2,
    )  # fmt: skip
    StreamingTrainer(Model(), arguments, loader=loader_of(folders, case, Topology(), 0)).train()
    states = {
        int(path.parent.name.split('-')[1]): json.loads(path.read_text())
        for path in (tmp_path / 'run').glob('checkpoint-*/headrace.json')
    }
    worlds = [World(ranks=2), World(ranks=4, nodes=2), World(ranks=3)]
    check_states(partial(loader_of, folders, case), seen, states, worlds, 6)
