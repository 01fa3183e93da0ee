"""examples/rollouts.py learns from each rollout once, while producers and trainer are killed at random."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from examples import rollouts
from headrace import LocalDataset, MDSWriter

PROGRAM = Path(rollouts.__file__)
STEPS, KILLS = 90, 14
OLD = rollouts.AHEAD + 16  # rollouts that an older run has left
MOST = rollouts.AHEAD + 2 * rollouts.APPENDED
"""Rollouts of two producers that the trainer has not learned from."""


@pytest.mark.slow
def test_each_once_whatever_is_killed(tmp_path: Path) -> None:
    old = {'producer': 9, 'version': -1, 'action': 0.0, 'reward': 0.0}
    with MDSWriter(out=str(tmp_path / 'rollouts'), columns=rollouts.COLUMNS) as writer:
        for number in range(OLD):
            writer.write({**old, 'number': number})
    commands = [
        ['produce', str(tmp_path), '0'],
        ['produce', str(tmp_path), '1'],
        ['train', str(tmp_path), str(STEPS), '0'],
    ]

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(PROGRAM), *commands[number]])

    draws, running, kills = random.Random(3), {number: start(number) for number in range(3)}, 0
    try:
        while kills < KILLS or running[2].poll() != 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[2].wait(draws.uniform(0.2, 4))
            victim = draws.randrange(3)
            if kills < KILLS:
                running[victim].kill()
                kills += running[victim].wait() == -9
            for number, process in running.items():
                # A trainer that starts before there is a new rollout says so, and ends.
                if process.poll() not in (None, 0):
                    running[number] = start(number)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    stored = [(int(one['producer']), int(one['number'])) for one in LocalDataset(str(tmp_path / 'rollouts'))][OLD:]
    assert [sorted(number for name, number in stored if name == producer) for producer in (0, 1)] == [
        list(range(sum(name == producer for name, _ in stored))) for producer in (0, 1)
    ]
    policy = rollouts.read_policy(tmp_path)
    learned = [stored.index((name, number)) for name, number, _ in policy['learned']]
    assert policy['version'] == STEPS
    assert len(set(learned)) == len(learned) > 4 * MOST
    oldest = min(set(range(len(stored))).difference(learned), default=len(stored))
    assert max(learned) - oldest < MOST
    assert len(stored) - len(learned) <= MOST
    assert abs(policy['mean'] - rollouts.GOAL) < 1.5
    age = max(age for *_, age in policy['learned'])
    print(f'{kills} kills, {len(learned)} rollouts, of policies at most {age} steps old')
