"""A training that began with mosaicml-streaming continues with headrace, from Composer's checkpoint."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.support import support_file
from tests.support.trainers.composer_legs import Leg
from tests.support.trainers.composer_oracle import resumed_at, trained_before
from tests.support.trainers.ranks import run_chains

pytestmark = [
    pytest.mark.composer,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec('streaming') is None, reason='mosaicml-streaming is not installed'),
]

BEHIND = {'mid': 5, 'last': 12, 'boundary': 12, 'second': 17}
"""Batches in each kind of checkpoint."""


def check(data: str, folder: Path, rests: list[tuple[str, int, int, str]]) -> None:
    """Train with mosaicml-streaming, then with headrace the rests: algorithm, ranks before and after, checkpoint."""
    chains: list[list[Leg]] = []
    for algorithm, before in sorted({rest[:2] for rest in rests}):
        name = f'{algorithm}-{before}'
        common = {'data': data, 'out': str(folder), 'dataset': {'shuffle_algo': algorithm}}
        whole = Leg(name, ranks=before, library='mosaicml-streaming', save=True, **common)
        resumed = [
            Leg(f'{name}-{after}-{kind}', ranks=after, load=f'{folder}/{name}-{kind}.pt', **common)
            for *which, after, kind in rests
            if which == [algorithm, before]
        ]
        chains.append([whole, *resumed])
    program = support_file('trainers/composer_chains.py')
    fields = [[dataclasses.asdict(leg) for leg in chain] for chain in chains]
    # One after the other: mosaicml-streaming lets no two programs of a machine read the same folder.
    errors = run_chains(program, fields, folder, timeout=580, server='composer')
    assert not any(errors), '\n'.join(filter(None, errors))
    wrong: list[str] = []
    for whole, *resumed in chains:
        expected = [ids for ids, _, _ in trained_before(whole, None)]
        assert len(expected) == 24
        for rest in resumed:
            behind = BEHIND[rest.name.rpartition('-')[2]]
            got = [ids for ids, _, _ in trained_before(rest, None)]
            if (resumed_at(rest), got) != (behind, expected[behind:]):
                wrong.append(f'{rest.name}: from batch {resumed_at(rest)}, {got}; not {expected[behind:]}')
    assert not wrong, '\n'.join(wrong)


def test_the_remaining_batches_are_those_of_mosaicml_streaming(
    data: str, tmp_path: Path, mosaicml_streaming: Any
) -> None:
    check(
        data,
        tmp_path,
        [('py1e', 1, 1, 'boundary'), ('py1e', 1, 2, 'mid'), ('py1s', 2, 1, 'mid'), ('py1s', 2, 2, 'boundary')],
    )


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['py1e', 'py1br', 'py1s', 'py2s', 'naive'])
def test_the_remaining_batches_on_any_ranks(data: str, tmp_path: Path, algorithm: str, mosaicml_streaming: Any) -> None:
    ranks = (1, 2, 4)
    check(data, tmp_path, [(algorithm, before, after, kind) for before in ranks for after in ranks for kind in BEHIND])
