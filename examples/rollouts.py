"""Reinforcement learning: producers append rollouts of the policy of now, and a trainer learns from each once.

    python examples/rollouts.py train runs/a
    python examples/rollouts.py produce runs/a 0     # and others, with names of their own

Any of them may be killed at any time, and started again by the same line. Each append is whole or not there. The
trainer's position, its policy and what it has learned from are one file, so they are of the same step.

Producers wait while `AHEAD` rollouts are not learned from, so these are of a recent policy. Those that are too old even
so have no weight. `where` leaves out what older runs have left, by the version of the policy.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from headrace import LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset

COLUMNS = {'producer': 'int', 'number': 'int', 'version': 'int', 'action': 'float64', 'reward': 'float64'}
AHEAD, APPENDED, BATCH = 64, 8, 8
OLDEST = 30
"""Steps of the policy after which a rollout teaches nothing."""
GOAL = 3.0
"""The best action, which nobody knows."""


def read_policy(folder: Path) -> dict[str, Any]:
    path = folder / 'policy.json'
    new = {'version': 0, 'mean': 0.0, 'learned': [], 'left_out': 0, 'state': None}
    return json.loads(path.read_text()) if path.exists() else new


def write_policy(folder: Path, policy: dict[str, Any]) -> None:
    (folder / 'policy.new').write_text(json.dumps(policy))
    (folder / 'policy.new').replace(folder / 'policy.json')


def produce(folder: Path, name: int) -> None:
    rollouts, number = folder / 'rollouts', 0
    if (rollouts / 'index.json').exists():  # this producer may have been killed
        number = sum(int(one['producer']) == name for one in LocalDataset(str(rollouts)))
    while True:
        policy = read_policy(folder)
        there = len(LocalDataset(str(rollouts))) if (rollouts / 'index.json').exists() else 0
        if there - policy['left_out'] - len(policy['learned']) >= AHEAD:
            time.sleep(0.05)
            continue
        actions = [random.gauss(policy['mean'], 1.0) for _ in range(APPENDED)]
        try:
            with MDSWriter(out=str(rollouts), columns=COLUMNS, append=True) as writer:
                for i, action in enumerate(actions):
                    made = {'producer': name, 'number': number + i, 'version': policy['version']}
                    writer.write({**made, 'action': action, 'reward': -((action - GOAL) ** 2)})
        except FileExistsError:  # another producer is writing
            time.sleep(0.01)
        else:
            number += APPENDED


def train(folder: Path, steps: int, since: int = 0) -> None:
    """Learn until the policy has had so many steps, from rollouts of policies of the version `since` on."""
    while not (folder / 'rollouts' / 'index.json').exists():
        time.sleep(0.05)
    policy = read_policy(folder)
    if policy['state'] is None:
        old = (int(one['version']) < since for one in LocalDataset(str(folder / 'rollouts')))
        policy['left_out'] = sum(old)
        write_policy(folder, policy)  # producers do not wait for these
    dataset = StreamingDataset(
        remote=str(folder / 'rollouts'),
        local=str(folder / 'cache'),
        batch_size=BATCH,
        shuffle=True,
        remainder='exact',  # the last batch of what is new may be short
        on_growth='wait',  # each epoch has what was appended since the last one
        growth_wait=60,
        where={'version': {'at_least': since}},
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH)
    if policy['state'] is not None:
        loader.load_state_dict(policy['state'])
    while policy['version'] < steps:
        for batch in loader:
            own = loader.own_samples  # the others are padding
            rewards, actions = batch['reward'][:own], batch['action'][:own]
            ages = policy['version'] - batch['version'][:own]
            advantage = (rewards - rewards.mean()) * (ages <= OLDEST)
            policy['mean'] += 0.05 * float((advantage * (actions - policy['mean'])).mean())
            rows = zip(batch['producer'][:own].tolist(), batch['number'][:own].tolist(), ages.tolist(), strict=True)
            policy['learned'] += map(list, rows)
            policy['version'] += 1
            policy['state'] = loader.state_dict()
            write_policy(folder, policy)
            if policy['version'] == steps:
                break
    print(f'{len(policy["learned"])} rollouts, mean action {policy["mean"]:.2f}')


if __name__ == '__main__':
    _what, _folder, *_numbers = sys.argv[1:]
    Path(_folder).mkdir(parents=True, exist_ok=True)
    if _what == 'produce':
        produce(Path(_folder), int(_numbers[0]))
    else:
        train(Path(_folder), *map(int, _numbers or [1000]))
