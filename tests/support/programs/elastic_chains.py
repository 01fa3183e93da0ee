"""Chains of worlds: ranks of elastic examples are killed at random moments, and others join.

usage: PYTHONPATH=. python tests/support/programs/elastic_chains.py FOLDER [--chains 100] [--torchft 10] [--seed 0]

A chain of `examples/elastic_pytorch.py` begins on 8 ranks and goes on with 1 to 8, until it has trained `STEPS` steps.
One of `examples/elastic_torchft.py` has 2 to 4 replicas. All rows that went into a step must be those of one rank that
nobody killed, and so must its loss. Ranks are forks of a process that has imported torch.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport] - optimizers do; here it is once for all ranks
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from headrace import MDSWriter, PositionTracker, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.packing import PackedDataset, Packing

sys.path.insert(0, str(Path(__file__).parents[3] / 'examples'))  # which import each other
from examples.elastic_pytorch import train
from examples.plain_pytorch import write_shards

STEPS = 16
BATCH = 24
RANKS = 8
REPLICAS = 4
KINDS = [('tokens', 0), ('packed', 2), ('tokens', 2), ('packed', 0)]
"""Data, and workers of each rank."""
PATIENCE = 250
"""Seconds without a trained batch, after which a chain hangs."""


def write(folder: Path) -> None:
    """Shards of both kinds."""
    write_shards(folder / 'shards')
    lengths = random.Random(0)
    with MDSWriter(out=str(folder / 'packed'), columns={'tokens': 'bytes'}, size_limit='16kb') as writer:
        for _ in range(2000):
            writer.write({'tokens': lengths.randbytes(lengths.randint(1, 90))})


def make_loader(folder: Path, kind: str, workers: int) -> StreamingDataLoader:
    streams = [Stream(local=str(folder / ('shards' if kind == 'tokens' else 'packed')))]
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


def replica(folder: Path, lighthouse: str, output: Connection) -> None:
    """A replica of torchft's example. As its places are torchft's choice, what it is dealt goes without its name."""
    from examples import elastic_torchft

    class Told(PositionTracker):
        def follow(self, loader: Iterable[Any]) -> Iterator[Any]:
            assert isinstance(loader, StreamingDataLoader)
            for batch in super().follow(loader):
                topology = loader.dataset.topology
                at = loader.state_dict()['sample_in_epoch'], topology.rank, topology.world_size
                os.write(1, json.dumps([0, *at, batch['id'].tolist()]).encode() + b'\n')
                yield batch

    os.dup2(output.fileno(), 1)
    torch.set_num_threads(1)
    elastic_torchft.PositionTracker = Told
    elastic_torchft.replica(folder, lighthouse, STEPS)


@dataclass
class Chain:
    """What happened in a chain."""

    dealt: dict[tuple[int, ...], list[Any]] = field(default_factory=dict)
    """Rows by process, position, rank and number of ranks."""
    trained: dict[tuple[int, int], dict[int, tuple[float, list[Any]]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Losses and rows of steps, by world and step, then by process."""
    worlds: dict[int, list[int]] = field(default_factory=dict)
    """Processes of each world."""
    kills: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From the last kill before a world to its first trained batch, by what the world waits for."""

    @property
    def sizes(self) -> list[int]:
        """Of worlds that have trained."""
        return [len(self.worlds[world]) for world in sorted({world for world, _ in self.trained})]

    def rows(self, world: int, step: int) -> list[list[Any]]:
        """The rows of each rank in a step."""
        names, end = self.worlds[world], (step + 1) * BATCH
        return [self.dealt[name, end, rank, len(names)] for rank, name in enumerate(names)]

    def check(self, alone: Chain) -> None:
        """Compare each step that was trained with that of one rank."""
        assert {step for _, step in self.trained} == set(range(STEPS))
        for (world, step), found in self.trained.items():
            ((expected, whole),) = alone.trained[1, step].values()
            rows = self.rows(world, step)
            assert sorted(sum(rows, [])) == sorted(whole), (world, step)
            assert all(abs(loss - expected) <= 1e-6 and own in rows for loss, own in found.values()), (world, step)

    def failed(self) -> Counter[str]:
        """Steps that were dealt and not trained, and those that only a part of their ranks had trained at the kill."""
        trained = {(step, len(self.worlds[world])) for world, step in self.trained}
        dealt = {(end // BATCH - 1, ranks) for _, end, _, ranks in self.dealt}
        partly = [world for (world, _), found in self.trained.items() if len(found) < len(self.worlds[world])]
        return Counter(not_trained=len(dealt - trained), trained_by_a_part=len(partly))


class Ranks:
    """Processes of a chain, and what they say."""

    def __init__(self, target: Callable[..., None], *given: Any) -> None:
        self.context, self.chain = multiprocessing.get_context('forkserver'), Chain()
        self.target, self.given = target, given
        self.reader, self.output = self.context.Pipe(duplex=False)
        self.alive: dict[int, Any] = {}
        self.killed_at = self.lasted = 0.0
        self._pending, self._last = b'', time.monotonic()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.alive.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.join()
        self.reader.close()
        self.output.close()

    def start(self, count: int) -> list[int]:
        made = [self.context.Process(target=self.target, args=(*self.given, self.output)) for _ in range(count)]
        for process in made:
            process.start()
            self.alive[process.pid or 0] = process
        return [process.pid or 0 for process in made]

    def kill(self, names: Sequence[int]) -> None:
        for name in names:
            process = self.alive.pop(name)
            process.kill()
            process.join()
            self.killed_at = time.monotonic()
        self.chain.kills += len(names)

    def ended(self) -> list[int]:
        """Ranks that have trained all steps."""
        names = [name for name, process in self.alive.items() if process.exitcode is not None]
        for name in names:
            assert self.alive.pop(name).exitcode == 0
        return names

    def trained(self, seconds: float = 0.05) -> Iterator[tuple[int, int]]:
        """Worlds and steps of new lines, after a wait for the first one."""
        select.select([self.reader], [], [], seconds)
        while select.select([self.reader], [], [], 0)[0]:
            *lines, self._pending = (self._pending + os.read(self.reader.fileno(), 1 << 16)).split(b'\n')
            for line in lines:
                name, *where, found = json.loads(line)
                if isinstance(where[-1], float):
                    world, step, loss = where
                    self.chain.trained[world, step][name] = loss, found
                    self.lasted, self._last = time.monotonic() - self._last, time.monotonic()
                    yield world, step
                else:
                    assert self.chain.dealt.setdefault((name, *where), found) == found
        if time.monotonic() - self._last > PATIENCE:
            for process in self.alive.values():
                os.kill(process.pid, signal.SIGABRT)  # prints what its threads are doing
                process.join(5)
            raise AssertionError(f'hangs in {self.chain.worlds}, trained {max(self.chain.trained, default=None)}')


def run(folder: Path, kind: str, workers: int, dice: random.Random | None) -> Chain:
    """Run a chain; without dice, one rank that nobody kills."""
    store = TCPStore('127.0.0.1', 0, is_master=True)
    with Ranks(rank, folder, kind, workers, store.port) as ranks:
        chain = ranks.chain

        def begin(stay: Sequence[int], size: int) -> None:
            names = [*stay, *ranks.start(size - len(stay))]
            if dice:
                dice.shuffle(names)
            chain.worlds[len(chain.worlds) + 1] = names
            store.set(f'world {len(chain.worlds)}', json.dumps(names))

        def go_on(dice: random.Random) -> None:
            """Kill some ranks of the world; others join."""
            names = chain.worlds[present := len(chain.worlds)]
            # A rank that has not trained has no state.
            able = [name for (world, _), found in chain.trained.items() if world == present for name in found]
            keeper = dice.choice(able)
            others = [name for name in names if name != keeper]
            ranks.kill(dice.sample(others, dice.randint(min(1, len(others)), len(others))))
            for _ in range(dice.choice([1, 1, 1, 2])):  # the second time while the first world forms, or is new
                idle = [name for name in ranks.alive if name != keeper]
                ranks.kill(idle[3:])
                size = dice.randint(1, RANKS)
                stay = dice.sample(idle[:3], dice.randint(0, min(size - 1, len(idle[:3]))))
                begin([keeper, *stay], size)
                time.sleep(dice.uniform(0, 0.2))

        begin([], RANKS if dice else 1)
        next_kill, seen, old = dice.randint(1, 5) if dice else STEPS, 0, set[int]()
        while ranks.alive:
            ended = ranks.ended()
            members = [name for name in chain.worlds[len(chain.worlds)] if name in ranks.alive]
            if ended and members:
                begin(members, len(members))
            elif ended:
                ranks.kill([*ranks.alive])  # were in no world at the end
            furthest = -1
            for world, step in ranks.trained():
                if world > seen:
                    if seen and ranks.killed_at:
                        waits = 'survivors' if old.issuperset(chain.worlds[world]) else 'successors'
                        chain.seconds[waits].append(time.monotonic() - ranks.killed_at)
                    seen, ranks.killed_at = world, 0.0
                    old.update(chain.worlds[world])
                furthest = max(step, furthest)
            if dice and seen == len(chain.worlds) and next_kill <= furthest < STEPS - 3:
                time.sleep(dice.uniform(0, 1.5 * ranks.lasted))
                go_on(dice)
                next_kill = furthest + dice.randint(1, 5)
        list(ranks.trained())
    return chain


def run_torchft(folder: Path, dice: random.Random) -> Chain:
    """Run a chain of 2 to 4 replicas, and of more while torchft counts those that were killed."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind='127.0.0.1:0', min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    with Ranks(replica, folder, f'http://127.0.0.1:{server.address().rpartition(":")[2]}') as ranks:
        chain = ranks.chain
        # All that torchft says of a world is its size.
        chain.worlds = {size: [0] * size for size in range(2, 2 * REPLICAS)}
        ranks.start(dice.randint(2, REPLICAS))
        next_kill = dice.randint(1, 5)
        while not ranks.ended():
            able, step = set[int](), 0
            for world, step in ranks.trained():
                if ranks.killed_at:
                    chain.seconds['torchft'].append(time.monotonic() - ranks.killed_at)
                    ranks.killed_at = 0.0
                if next_kill <= step < STEPS - 3:
                    able.update(chain.trained[world, step])
            if able:
                time.sleep(dice.uniform(0, 1.5 * ranks.lasted))
                keeper = dice.choice([*able])
                others = [name for name in ranks.alive if name != keeper]
                ranks.kill(dice.sample(others, dice.randint(1, len(others))))
                list(ranks.trained(0))  # before the kill
                ranks.start(max(0, dice.randint(2, REPLICAS) - len(ranks.alive)))
                next_kill = step + dice.randint(1, 5)
        list(ranks.trained())
    server.shutdown()
    return chain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--chains', type=int, default=100)
    parser.add_argument('--torchft', type=int, default=10)
    parser.add_argument('--seed', type=int, default=0)
    given = parser.parse_args()
    os.environ['PYTHONFAULTHANDLER'] = '1'
    os.environ['OMP_NUM_THREADS'] = '1'  # a process that forks ranks may have no other thread
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    multiprocessing.set_forkserver_preload(['tests.support.programs.elastic_chains'])
    if not (given.folder / 'packed').exists():
        write(given.folder)
    alone = {kind: run(given.folder, kind, 0, None) for kind, _ in KINDS}
    numbers = range(given.seed, given.seed + given.chains)
    plans = [(number, *KINDS[number % len(KINDS)]) for number in numbers]
    plans += [(number, 'torchft', 1) for number in range(given.seed, given.seed + given.torchft)]
    seconds, failed, kills = defaultdict[str, list[float]](list), Counter[str](), Counter[str]()
    for number, kind, workers in plans:
        dice = random.Random(number)
        chain = run_torchft(given.folder, dice) if kind == 'torchft' else run(given.folder, kind, workers, dice)
        chain.check(alone['tokens' if kind == 'torchft' else kind])
        failed += chain.failed()
        kills[kind] += chain.kills
        for waits, found in chain.seconds.items():
            seconds[waits] += found
        waits = {name: [round(each, 2) for each in found] for name, found in chain.seconds.items()}
        print(f'{number} {kind} {workers} workers, worlds {chain.sizes}, {chain.kills} kills, {waits} s', flush=True)
    print(f'{len(plans)} chains, kills {dict(kills)}, steps {dict(failed)}')
    for waits, found in seconds.items():
        middle, most = statistics.median(found), max(found)
        print(f'{len(found)} times from kill to a trained batch, {waits}: {middle:.2f} s, at most {most:.2f}')


if __name__ == '__main__':
    main()
