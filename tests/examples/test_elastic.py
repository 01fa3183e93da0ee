"""Ranks of the elastic examples are killed, and they train on what one rank trains."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.plain_pytorch import write_shards
from headrace import StreamingDataset
from tests.support.programs.processes import Program, clean_environment, run_well
from tests.support.programs.waiting import until
from tests.support.servers.process import free_port

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
    """One of packed sequences and one of tokens, each with workers, and one of torchft; the program runs more."""
    torchft = '1' if importlib.util.find_spec('torchft') else '0'
    run_well([sys.executable, str(CHAINS), str(tmp_path), '--chains', '2', '--torchft', torchft, '--seed', '1'])


def answers(port: int) -> bool:
    with socket.socket() as client:
        return not client.connect_ex(('127.0.0.1', port))


def dealt(folder: Path) -> dict[tuple[int, int], set[tuple[int, ...]]]:
    """What ranks say they trained, by step and number of ranks; each element is of one rank."""
    found = defaultdict[tuple[int, int], set[tuple[int, ...]]](set)
    for path in folder.glob('rank*.txt'):
        for step, ranks, ids in re.findall(
            r'^step (\d+) of (\d+) ranks ids \[(.*)\]\n', path.read_text(), re.MULTILINE
        ):
            found[int(step), int(ranks)].add(tuple(map(int, ids.split(','))))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize('example', ['torchtitan_train.py', 'elastic_lightning.py'])
def test_killed_nodes_of_torchrun_change_no_batch(tmp_path: Path, example: str) -> None:
    """Three nodes, then two, then one, from checkpoint to checkpoint."""
    write_shards(tmp_path / 'shards')
    port, steps = free_port(), 200
    options = '--nnodes=1:3 --nproc-per-node=1 --local-addr=127.0.0.1 --max-restarts=99 --monitor-interval=0.1'
    options += f' --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port}'
    options += ' --rdzv-conf=last_call_timeout=5,keep_alive_interval=1'
    launcher = [sys.executable, '-m', 'torch.distributed.run', *options.split()]
    command = [*launcher, str(EXAMPLES / example), str(tmp_path), str(steps)]
    # Else torch 2.7 has nodes wait for ever that join those of an earlier round.
    environ = clean_environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1')
    with ExitStack() as stack:
        nodes = [stack.enter_context(Program(command, environ=environ))]  # has the store of the rendezvous
        until(lambda: answers(port), 280)
        nodes += [stack.enter_context(Program(command, environ=environ)) for _ in range(2)]
        for ranks in 3, 2:
            until(lambda ranks=ranks: sum(world == ranks for _, world in dealt(tmp_path)) > 7, 280)
            nodes.pop().end()
        done = nodes[0].wait()
        assert done.returncode == 0, done.stderr[-8000:]
    data = StreamingDataset(local=str(tmp_path / 'shards'), shuffle=True)
    plan = data.plan(epoch=0, global_batch_size=32)
    expected = [sorted(data.order(0).at(plan.global_positions(step)).tolist()) for step in range(steps)]
    whole = set[int]()
    for (step, _), ranks in dealt(tmp_path).items():
        rows = sorted(sum(ranks, ()))
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(expected[step])
        if rows == expected[step]:
            whole.add(step)
    assert whole == set(range(steps))
