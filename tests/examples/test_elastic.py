"""Ranks of the elastic example are killed, and it trains on what one rank trains."""

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

EXAMPLE = Path(__file__).parents[2] / 'examples/elastic_pytorch.py'
CHAINS = Path(__file__).parents[1] / 'support/programs/elastic_chains.py'
STEPS = 24
KILLS = {5: 1, 11: 2, 17: 3}


def trained(folder: Path, ranks: int, kills: dict[int, int]) -> dict[tuple[int, int], list[Any]]:
    """Losses and ids by world and step. `kills`: how many ranks to kill after a step."""
    command = [sys.executable, str(EXAMPLE), str(folder), str(ranks), str(STEPS)]
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_ranks_change_neither_batches_nor_losses(tmp_path: Path) -> None:
    alone = {step: found[0] for (_, step), found in trained(tmp_path, 1, {}).items()}
    elastic = trained(tmp_path, 4, KILLS)
    assert {step for _, step in elastic} == set(alone) == set(range(STEPS))
    assert len({world for world, _ in elastic}) > 3
    whole = 0
    for (_, step), found in elastic.items():
        _, loss, ids = alone[step]
        assert [one for _, one, _ in found] == pytest.approx([loss] * len(found), rel=1e-9)
        rows = sorted(sum((some for _, _, some in found), []))  # without those of a rank that was killed in the step
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(ids)
        whole += rows == sorted(ids)
    assert whole >= STEPS - len(KILLS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chains_of_worlds_train_what_one_rank_trains(tmp_path: Path) -> None:
    """One of packed sequences and one of tokens, each with workers; the program runs more."""
    run_well([sys.executable, str(CHAINS), str(tmp_path), '--chains', '2', '--seed', '1'])
