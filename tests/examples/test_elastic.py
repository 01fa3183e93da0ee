"""Ranks of the elastic examples are killed, and they train on what one rank trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs.processes import clean_environment, run_well

EXAMPLES = Path(__file__).parents[2] / 'examples'
CHAINS = Path(__file__).parents[1] / 'support/programs/elastic_chains.py'
STEPS = 24
KILLS = {5: 1, 11: 2, 17: 3}
Trained = dict[tuple[int, int], list[Any]]


def trained(example: str, folder: Path, ranks: int, kills: dict[int, int]) -> Trained:
    """Losses and ids by world and step. `kills`: how many ranks to kill after a step."""
    command = [sys.executable, str(EXAMPLES / example), str(folder), str(ranks), str(STEPS)]
    found, kills = defaultdict[tuple[int, int], list[Any]](list), dict(kills)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as program:
        assert program.stdout is not None
        for line in program.stdout:
            name, world, step, loss, ids = json.loads(line)
            found[world, step].append((name, loss, ids))
            if step in kills and len(found[world, step]) > kills[step]:
                for killed, _, _ in found[world, step][: kills.pop(step)]:
                    os.kill(killed, signal.SIGKILL)
    assert (program.returncode, kills) == (0, {})
    return found


def check(folder: Path, elastic: Trained, kills: int) -> None:
    """Compare with one rank of a run that needs no other package."""
    alone = {step: found[0] for (_, step), found in trained('elastic_pytorch.py', folder, 1, {}).items()}
    assert {step for _, step in elastic} == set(alone) == set(range(STEPS))
    whole = set[int]()
    for (_, step), found in elastic.items():
        _, loss, ids = alone[step]
        assert [one for _, one, _ in found] == pytest.approx([loss] * len(found), rel=1e-9)
        # Without those of a rank that was killed in the step. A rank may train a step again that another had trained.
        rows = sorted(sum({tuple(some) for _, _, some in found}, ()))
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(ids)
        if rows == sorted(ids):
            whole.add(step)
    assert len(whole) >= STEPS - kills


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_ranks_change_neither_batches_nor_losses(tmp_path: Path) -> None:
    elastic = trained('elastic_pytorch.py', tmp_path, 4, KILLS)
    assert len({world for world, _ in elastic}) > 3
    check(tmp_path, elastic, len(KILLS))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_replicas_of_torchft_change_neither_batches_nor_losses(tmp_path: Path) -> None:
    pytest.importorskip('torchft')
    kills = {6: 1, 15: 1}
    check(tmp_path, trained('elastic_torchft.py', tmp_path, 3, kills), len(kills))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chains_of_worlds_train_what_one_rank_trains(tmp_path: Path) -> None:
    """One of packed sequences and one of tokens, each with workers; the program runs more."""
    run_well([sys.executable, str(CHAINS), str(tmp_path), '--chains', '2', '--seed', '1'])
