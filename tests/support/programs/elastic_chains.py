"""Chains of worlds: ranks of `examples/elastic_pytorch.py` are killed at random moments, and others join.

usage: PYTHONPATH=. python tests/support/programs/elastic_chains.py FOLDER [--chains 100] [--seed 0]

A chain begins on 8 ranks and goes on with 1 to 8, until it has trained `STEPS` steps. All rows that went into a step
must be those of one rank that nobody killed, and so must its loss.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import select
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport] - optimizers do; here it is once for all ranks
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.packing import PackedDataset, Packing

sys.path.insert(0, str(Path(__file__).parents[3] / 'examples'))  # which import each other
from examples.elastic_pytorch import train
from examples.plain_pytorch import write_shards

STEPS = 16
BATCH = 24
RANKS = 8
KINDS = [('tokens', 0), ('packed', 2), ('tokens', 2), ('packed', 0)]
"""Data, and workers of each rank."""
PATIENCE = 250
"""Seconds without a trained batch, after which a chain hangs."""


def write(folder: Path) -> None:
    """Shards of both kinds."""
    write_shards(folder / 'tokens')
    lengths = random.Random(0)
    with MDSWriter(out=str(folder / 'packed'), columns={'tokens': 'bytes'}, size_limit='16kb') as writer:
        for _ in range(2000):
            writer.write({'tokens': lengths.randbytes(lengths.randint(1, 90))})


def make_loader(folder: Path, kind: str, workers: int) -> StreamingDataLoader:
    streams = [Stream(local=str(folder / kind))]
    options: Any = {'shuffle': True, 'global_batch_size': BATCH, 'uneven': 'ragged', 'topology': Topology()}
    if kind == 'packed':
        packing = Packing(sequence_length=65, token_dtype='uint8', window=4, lanes=BATCH)
        dataset: Any = PackedDataset(streams=streams, packing=packing, **options)
    else:
        dataset = StreamingDataset(streams=streams, **options)
    forked: dict[str, Any] = {'num_workers': workers, 'persistent_workers': True, 'multiprocessing_context': 'fork'}
    return StreamingDataLoader(dataset, **(forked if workers else {}))


def rank(folder: Path, kind: str, workers: int, port: int, output: Connection) -> None:
    os.dup2(output.fileno(), 1)
    torch.set_num_threads(1)
    loader = make_loader(folder, kind, workers)

    def rows(batch: Any) -> tuple[Any, Any, list[Any]]:
        if kind == 'tokens':
            tokens = targets = batch['tokens']
            ids: list[Any] = batch['id'].tolist()
        else:
            tokens, targets = batch['input_ids'], batch['labels']
            ids = [hashlib.sha256(row.numpy().tobytes()).hexdigest()[:12] for row in tokens]
        topology = loader.dataset.topology
        at = loader.state_dict()['sample_in_epoch'], topology.rank, topology.world_size
        os.write(1, json.dumps([os.getpid(), *at, ids[: loader.own_samples]]).encode() + b'\n')
        return tokens, targets, ids

    train(loader, rows, port, STEPS)


@dataclass
class Chain:
    """What happened in a chain."""

    dealt: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)
    """Rows by process, position, rank and number of ranks."""
    losses: dict[tuple[int, int], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Of steps that were trained, by world and step, then by process."""
    worlds: dict[int, list[int]] = field(default_factory=dict)
    """Processes of each world."""
    kills: int = 0
    seconds: list[float] = field(default_factory=list)
    """From the last kill before a world to its first trained batch."""

    @property
    def sizes(self) -> list[int]:
        """Of worlds that have trained."""
        return [len(self.worlds[world]) for world in sorted({world for world, _ in self.losses})]

    def rows(self, world: int, step: int) -> list[Any]:
        """All rows of a step, sorted."""
        names, end = self.worlds[world], (step + 1) * BATCH
        dealt = [self.dealt[name, end, rank, len(names)] for rank, name in enumerate(names)]
        return sorted(sum(dealt, []))

    def check(self, alone: Chain) -> None:
        """Compare each step that was trained with that of one rank."""
        assert {step for _, step in self.losses} == set(range(STEPS))
        for (world, step), losses in self.losses.items():
            assert self.rows(world, step) == alone.rows(1, step), (world, step)
            (expected,) = alone.losses[1, step].values()
            assert all(abs(loss - expected) <= 1e-6 for loss in losses.values()), (world, step, losses, expected)

    def failed(self) -> Counter[str]:
        """Steps that were dealt and not trained, and those that only a part of their ranks had trained at the kill."""
        trained = {(step, len(self.worlds[world])) for world, step in self.losses}
        dealt = {(end // BATCH - 1, ranks) for _, end, _, ranks in self.dealt}
        partly = [world for (world, _), losses in self.losses.items() if len(losses) < len(self.worlds[world])]
        return Counter(not_trained=len(dealt - trained), trained_by_a_part=len(partly))


def run(folder: Path, kind: str, workers: int, dice: random.Random | None) -> Chain:
    """Run a chain; without dice, one rank that nobody kills."""
    context, chain = multiprocessing.get_context('forkserver'), Chain()
    reader, output = context.Pipe(duplex=False)
    store = TCPStore('127.0.0.1', 0, is_master=True)
    processes: dict[int, Any] = {}
    pending = b''
    killed_at = lasted = 0.0

    def begin(stay: Sequence[int], size: int) -> None:
        names = list(stay)
        for _ in range(size - len(stay)):
            process = context.Process(target=rank, args=(folder, kind, workers, store.port, output))
            process.start()
            processes[process.pid or 0] = process
            names.append(process.pid or 0)
        if dice:
            dice.shuffle(names)
        chain.worlds[len(chain.worlds) + 1] = names
        store.set(f'world {len(chain.worlds)}', json.dumps(names))

    def kill(names: Sequence[int]) -> None:
        nonlocal killed_at
        for name in names:
            process = processes.pop(name)
            process.kill()
            process.join()
            killed_at = time.monotonic()
        chain.kills += len(names)

    def trained() -> Iterator[tuple[int, int]]:
        """Worlds and steps of new lines."""
        nonlocal pending
        while select.select([reader], [], [], 0)[0]:
            *lines, pending = (pending + os.read(reader.fileno(), 1 << 16)).split(b'\n')
            for line in lines:
                name, *where, found = json.loads(line)
                if isinstance(where[-1], float):
                    world, step, loss = where
                    chain.losses[world, step][name] = loss
                    yield world, step
                else:
                    chain.dealt[(name, *where)] = found

    def go_on(dice: random.Random) -> None:
        """Kill some ranks of the world; others join."""
        names = chain.worlds[present := len(chain.worlds)]
        # A rank that has not trained has no state.
        keeper = dice.choice([name for (world, _), found in chain.losses.items() if world == present for name in found])
        others = [name for name in names if name != keeper]
        kill(dice.sample(others, dice.randint(min(1, len(others)), len(others))))
        for _ in range(dice.choice([1, 1, 1, 2])):  # the second time while the first world forms, or is new
            idle = [name for name in processes if name != keeper]
            kill(idle[3:])
            size = dice.randint(1, RANKS)
            stay = dice.sample(idle[:3], dice.randint(0, min(size - 1, len(idle[:3]))))
            begin([keeper, *stay], size)
            time.sleep(dice.uniform(0, 0.2))

    try:
        begin([], RANKS if dice else 1)
        last, next_kill, seen = time.monotonic(), dice.randint(1, 5) if dice else STEPS, 0
        while processes:
            ended = [name for name, process in processes.items() if process.exitcode is not None]
            for name in ended:
                assert processes.pop(name).exitcode == 0
            members = [name for name in chain.worlds[len(chain.worlds)] if name in processes]
            if ended and members:
                begin(members, len(members))
            elif ended:
                kill([*processes])  # were in no world at the end
            select.select([reader], [], [], 0.05)
            furthest = -1
            for world, step in trained():
                now = time.monotonic()
                if world > seen:
                    if seen and killed_at:
                        chain.seconds.append(now - killed_at)
                    seen, killed_at = world, 0.0
                elif step > furthest:
                    lasted = now - last
                last, furthest = now, max(step, furthest)
            if dice and seen == len(chain.worlds) and next_kill <= furthest < STEPS - 3:
                time.sleep(dice.uniform(0, 1.5 * lasted))
                go_on(dice)
                next_kill = furthest + dice.randint(1, 5)
            if time.monotonic() - last > PATIENCE:
                for process in processes.values():
                    os.kill(process.pid, signal.SIGABRT)  # prints what its threads are doing
                    process.join(5)
                raise AssertionError(f'hangs in {chain.worlds}, trained {max(chain.losses, default=None)}')
        list(trained())
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.join()
        reader.close()
        output.close()
    return chain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--chains', type=int, default=100)
    parser.add_argument('--seed', type=int, default=0)
    given = parser.parse_args()
    os.environ['PYTHONFAULTHANDLER'] = '1'
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    if not (given.folder / 'packed').exists():
        write(given.folder)
    alone = {kind: run(given.folder, kind, 0, None) for kind, _ in KINDS}
    seconds: list[float] = []
    failed, kills = Counter[str](), 0
    for number in range(given.seed, given.seed + given.chains):
        kind, workers = KINDS[number % len(KINDS)]
        chain = run(given.folder, kind, workers, random.Random(number))
        chain.check(alone[kind])
        failed += chain.failed()
        kills += chain.kills
        seconds += chain.seconds
        waits = [round(each, 1) for each in chain.seconds]
        print(f'{number} {kind} {workers} workers, worlds {chain.sizes}, {chain.kills} kills, {waits} s', flush=True)
    middle, most = statistics.median(seconds), max(seconds)
    print(f'{given.chains} chains, {kills} kills, steps {dict(failed)}')
    print(f'{len(seconds)} worlds, from kill to a trained batch {middle:.2f} s, at most {most:.2f}')


if __name__ == '__main__':
    main()
