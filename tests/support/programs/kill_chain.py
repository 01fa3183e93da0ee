"""The program of the kill test: a chain of training runs, each killed at a random moment, all but the last.

usage: python kill_chain.py CHAIN.json REPORT.json

Ranks are forked from here, each into a process group of its own, with the environment that a launcher gives them.
They train in step, write down what they trained, and save checkpoints. This process watches the cache folder while
all of them stand still, kills them, and holds what they wrote against the order of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, BinaryIO

from headrace import StreamingDataLoader, StreamingDataset, Topology
from headrace.dataset.streams import open_streams
from headrace.storage import register_store
from headrace.storage.cache import limit
from headrace.storage.cache.control_folder import OpenFolder
from headrace.storage.stores.local import LocalStore
from tests.support.programs.forking import prepare_forks
from tests.support.programs.processes import is_alive, states_of
from tests.support.trainers.resume_oracle import Trained, judge_chain

FORK = multiprocessing.get_context('fork')
GLOBAL_BATCH = 8
PIECE = 1500
"""Bytes that come at once from the slow folder."""
GONE_SECONDS = 60.0
"""After which no worker is left whose rank was killed; it takes 8 s where nobody else wants the machine."""
HANG_SECONDS = 60.0
MOST_FILES = 3
"""That a fetch leaves: its lock, the compressed file, the raw one."""
MOST_FETCHES = 9
"""That a process has under way: one for each thread that fetches ahead, and the reader's."""


@dataclass(frozen=True)
class Chain:
    """Settings of a chain."""

    remote: str
    order: str
    """Folder of the same data, to ask for the order."""
    files: str
    """Folder with every file that the cache may hold under a final name."""
    folder: str
    limit: int
    kills: int
    seed: int
    keep_zip: bool
    ledger: bool
    """Have what is cheap to count remembered, as what is dear to count is."""


@dataclass
class Report:
    """Counts of a chain, so that the test can check that it tested something."""

    most: int = 0
    """Bytes that the cache folder held at most."""
    samples: int = 0
    """How often that was looked at."""
    moments: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    """Kinds of work that kills interrupted, found by the files that they left."""
    left_most: int = 0
    """Files that a kill left under temporary names at most."""
    orphan_seconds: list[float] = field(default_factory=list)
    topologies: list[tuple[int, int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    verdict: str = ''


# -- a rank -----------------------------------------------------------------------------------------------------------


class SlowStore(LocalStore):
    """A folder that takes its time over every piece of an object."""

    def get(self, key: str, out: BinaryIO, **how: Any) -> str:
        """As `Store.get`."""
        time.sleep(0.003)
        return super().get(key, _Slow(out), **how)  # type: ignore[arg-type]


class _Slow:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, data: bytes) -> int:
        for begin in range(0, len(data), PIECE):
            self._out.write(data[begin : begin + PIECE])
            time.sleep(0.001)
        return len(data)


def dawdle(folder: Path) -> None:
    """Have all take its time that is done to files of the cache: unpacking, renaming, deleting."""
    unpack, rename, delete, unlink = open_streams.unpack_file, OpenFolder.rename, OpenFolder.delete, Path.unlink

    def slow_unpack(algorithm: str, packed: Path, raw: Path, size: int) -> None:
        raw.write_bytes(bytes(size // 2))
        time.sleep(0.010)
        raw.unlink()
        unpack(algorithm, packed, raw, size)
        time.sleep(0.005)

    def slow_rename(state: OpenFolder, name: str, target: Path | str) -> None:
        time.sleep(0.001 if folder in state.path.parents else 0)
        rename(state, name, target)

    def slow_delete(state: OpenFolder, name: str) -> None:
        time.sleep(0.001 if folder in state.path.parents else 0)
        delete(state, name)

    def slow_unlink(path: Path, missing_ok: bool = False) -> None:
        time.sleep(0.001 if folder in path.parents else 0)
        unlink(path, missing_ok)

    open_streams.unpack_file, Path.unlink = slow_unpack, slow_unlink  # type: ignore[assignment]
    OpenFolder.rename, OpenFolder.delete = slow_rename, slow_delete  # type: ignore[method-assign]


@dataclass(frozen=True)
class Leg:
    """One run of the chain."""

    number: int
    folder: Path
    ranks: int
    workers: int
    state: dict[str, Any] | None
    everyone_saves: bool
    """Each rank writes the checkpoint, or rank 0 does."""
    last_epoch: int | None = None
    """The epoch to end after; None trains until it is killed."""


def train(chain: Chain, leg: Leg, rank: int, together: Barrier) -> None:
    """The program of a rank."""
    os.setpgid(0, 0)
    log = os.open(leg.folder / f'output.{rank}', os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(leg.ranks), LOCAL_WORLD_SIZE=str(leg.ranks))
    cache = Path(chain.folder, 'cache')
    dawdle(cache)
    limit.CHEAP = -1.0 if chain.ledger and leg.last_epoch is None else 1e9  # type: ignore[misc]
    dataset = StreamingDataset(
        remote=chain.remote,
        local=str(cache),
        cache_limit=chain.limit,
        batch_size=GLOBAL_BATCH // leg.ranks,
        keep_zip=chain.keep_zip,
        shuffle=True,
    )
    loader = StreamingDataLoader(
        dataset,
        num_workers=leg.workers,
        # Workers that live on look ahead into the next epoch.
        persistent_workers=leg.workers > 0 and leg.number % 2 == 1,
        max_epochs=sys.maxsize if leg.last_epoch is None else leg.last_epoch + 1,
        worker_init_fn=partial(note_worker, str(leg.folder)) if leg.workers else None,
    )
    if leg.state is not None:
        loader.load_state_dict(leg.state)
    step, epoch = 0, -1
    with open(leg.folder / f'trained.{rank}', 'a', buffering=1) as trained:
        while epoch != leg.last_epoch:
            for batch in loader:
                assert (batch['row'][:, 0].long() == batch['id']).all()
                step, state = step + 1, loader.state_dict()
                epoch = int(state['epoch'])
                trained.write(json.dumps([batch['id'].tolist(), epoch, state['sample_in_epoch']]) + '\n')
                together.wait(HANG_SECONDS)  # as gradients do
                time.sleep(0.003)
                if step % 3 == 0 and (leg.everyone_saves or rank == 0):
                    save(leg.folder / f'step{step}.{rank}', state)


def note_worker(folder: str, _: int) -> None:
    """Write down that there is this worker."""
    handle = os.open(f'{folder}/workers', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f'{os.getpid()}\n'.encode())
    os.close(handle)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint whole or not at all."""
    temporary = path.with_name(f'{path.name}.tmp')
    temporary.write_text(json.dumps(state))
    temporary.replace(path)


# -- all ranks of a run -----------------------------------------------------------------------------------------------


class Run:
    """The processes of a run."""

    def __init__(self, chain: Chain, leg: Leg) -> None:
        leg.folder.mkdir()
        self.leg = leg
        together = FORK.Barrier(leg.ranks)
        self.ranks = [FORK.Process(target=train, args=(chain, leg, rank, together)) for rank in range(leg.ranks)]
        for process in self.ranks:
            process.start()
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(process.pid or 0, process.pid or 0)  # whoever is first

    def pids(self) -> list[int]:
        """Ranks, and the workers that have begun."""
        workers: list[int] = []
        with contextlib.suppress(FileNotFoundError):
            workers = [int(line) for line in (self.leg.folder / 'workers').read_text().split()]
        return [process.pid or 0 for process in self.ranks] + workers

    def signal(self, number: signal.Signals) -> None:
        """Signal all groups."""
        for process in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, number)

    def kill_ranks(self) -> None:
        """Kill the ranks, and leave their workers to themselves."""
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.join()

    def is_gone(self) -> bool:
        """Whether no process is left; orphans become children of this one."""
        gone = True
        for process in self.ranks:
            if process.exitcode is None:
                gone = False
                continue
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-(process.pid or 0), os.WNOHANG)[0]:
                    pass
                gone = False
        return gone

    def wait_until_gone(self, seconds: float) -> None:
        """Wait for the end of the last process."""
        until = time.monotonic() + seconds
        while not self.is_gone():
            assert time.monotonic() < until, (
                f'of {self.leg}, {[*filter(is_alive, self.pids())]} still run: {self.said()}'
            )
            time.sleep(0.005)

    def batches(self, rank: int) -> list[tuple[list[int], int, int]]:
        """Ids, epoch and position of the batches that a rank has trained."""
        try:
            lines = (self.leg.folder / f'trained.{rank}').read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(json.loads(line)) for line in lines]  # type: ignore[misc]

    def said(self) -> str:
        """The output of the ranks."""
        return '\n'.join(path.read_text(errors='replace')[-3000:] for path in self.leg.folder.glob('output.*'))

    def checkpoint(self) -> tuple[int, dict[str, Any] | None]:
        """The last whole checkpoint: its step, and what it says; step 0 if there is none."""
        states: dict[int, list[dict[str, Any]]] = {}
        for path in self.leg.folder.glob('step*.[0-9]'):
            states.setdefault(int(path.stem.removeprefix('step')), []).append(json.loads(path.read_text()))
        whole = {
            step: of for step, of in states.items() if len(of) == (self.leg.ranks if self.leg.everyone_saves else 1)
        }
        if not whole:
            return 0, self.leg.state
        step = max(whole)
        assert all(state == whole[step][0] for state in whole[step])
        return step, whole[step][0]


def disk_use(folder: Path) -> int:
    """The sizes of all files but lock files and the ledger, of a line each."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.endswith('.lock') and name != 'ledger':
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(parent, name)).st_size
    return total


# -- the chain --------------------------------------------------------------------------------------------------------


class Supervisor:
    """Runs a chain."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.folder = Path(chain.folder)
        self.cache = self.folder / 'cache'
        self.dice = random.Random(chain.seed)
        self.report = Report()
        self.data = StreamingDataset(local=chain.order, shuffle=True, batch_size=GLOBAL_BATCH)
        self.files = {path.name: path.read_bytes() for path in Path(chain.files).iterdir()}
        self.files['.headrace-remote'] = f'{chain.remote.removeprefix("slow://")}\n'.encode()
        self.legs: list[Trained] = []
        self.running: list[Run] = []
        """Runs of which processes may be left."""
        self.orphaned: dict[int, float] = {}
        """When the ranks of a run were killed, by its number."""
        self.left: set[tuple[str, int]] = set()
        """Names and times of what the last kill left."""
        self.deck = self.shuffled()

    def go(self) -> Report:
        """Kill as often as asked, then train to the end."""
        state = None
        for number in range(self.chain.kills):
            state = self.killed(number, state)
        epoch = 0 if state is None else int(state['epoch'])
        end = self.draw(self.chain.kills, state, last_epoch=epoch + 1)
        run = self.start(end)
        until = time.monotonic() + HANG_SECONDS
        while any(process.exitcode is None for process in run.ranks):
            self.look(run)
            assert time.monotonic() < until, run.said()
        assert [process.exitcode for process in run.ranks] == [0] * end.ranks, run.said()
        run.wait_until_gone(1)
        self.compare(run, None)
        verdict = judge_chain(self.legs)
        self.report.verdict = str(verdict)
        assert verdict.is_exact, verdict
        assert (verdict.epochs, verdict.position) == (epoch + 2, 0)
        while self.orphaned:
            self.look(run)
        # Workers that fetched ahead when the training ended left parts of shards. The next start removes them.
        StreamingDataset(remote=self.chain.remote, local=str(self.cache), keep_zip=self.chain.keep_zip)
        left = [str(path) for path in self.cache.rglob('*') if path.name not in self.files]
        assert not left, f'left in the cache: {left}'
        self.check_files()
        return self.report

    def draw(
        self, number: int, state: dict[str, Any] | None, *, fewest_workers: int = 0, last_epoch: int | None = None
    ) -> Leg:
        """The next run: mostly 2 ranks of 2 workers each."""
        ranks, workers = 2, 2
        if self.dice.random() < 0.4:
            ranks, workers = self.dice.choice([1, 2, 4]), max(self.dice.choice([0, 1, 2]), fewest_workers)
        self.report.topologies.append((ranks, workers))
        return Leg(number, self.folder / f'{number:03}', ranks, workers, state, self.dice.random() < 0.5, last_epoch)

    def shuffled(self) -> list[tuple[str, bool]]:
        """Moments of kills, each with whether workers survive their ranks; all of them, before any comes again."""
        orphans = self.dice.choice(['middle', 'end'])
        deck = [(name, name == orphans) for name in ('start', 'index', 'fetch', 'fetch', 'middle', 'end')]
        deck[2] = 'fetch', True
        self.dice.shuffle(deck)
        return deck

    def start(self, leg: Leg) -> Run:
        run = Run(self.chain, leg)
        self.running.append(run)
        return run

    def killed(self, number: int, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Do a run, kill it, look at what it left; returns the checkpoint to continue from."""
        begin = time.monotonic()
        name, orphans = self.deck.pop()
        if not self.deck:
            self.deck = self.shuffled()
        self.report.moments[name] += 1
        leg = self.draw(number, state, fewest_workers=int(orphans))
        if name == 'index' and not self.orphaned:  # as on a new machine
            for path in sorted(self.cache.rglob('*'), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            self.left.clear()
        run = self.start(leg)
        self.wait_for(name, run)
        if orphans:
            run.kill_ranks()
            self.orphaned[leg.number] = time.monotonic()
            if self.dice.random() < 0.5:  # else while the next one starts
                while self.orphaned:
                    self.look(run)
        else:
            # Stopped first, so that the moment of their death is one.
            self.stop([run])
            if name == 'fetch':
                self.go_on_to_a_fetch(run)
            run.signal(signal.SIGKILL)
            for process in run.ranks:
                process.join()
            run.wait_until_gone(5)
        step, state = run.checkpoint()
        self.compare(run, step)
        if not self.orphaned:
            self.check_leftovers(run)
            self.check_files()
        self.report.seconds.append(round(time.monotonic() - begin, 2))
        return state

    def wait_for(self, name: str, run: Run) -> None:
        """Wait for the moment of the kill."""
        batches = self.dice.randrange(12)
        delay = self.dice.random() * (0.25 if name == 'start' else 0.04)
        size, until = self.data.epoch_size, time.monotonic() + HANG_SECONDS
        state = self.cache / '.headrace'
        if name == 'start':
            is_there: Callable[[], bool] = lambda: True  # noqa: E731
        elif name == 'index':
            is_there = state.exists
        elif name == 'fetch':
            delay /= 4
            is_there = lambda: len(run.batches(0)) >= batches and self.is_fetching()  # noqa: E731
        elif name == 'middle':
            is_there = lambda: len(run.batches(0)) > batches  # noqa: E731
        else:
            near = size - self.dice.randrange(2) * GLOBAL_BATCH
            is_there = lambda: any(position >= near for *_, position in run.batches(0))  # noqa: E731
        while not is_there():
            assert all(process.exitcode is None for process in run.ranks), run.said()
            assert time.monotonic() < until, run.said()
            self.look(run)
        end = time.monotonic() + delay
        while time.monotonic() < end:
            self.look(run)

    def stop(self, runs: list[Run]) -> None:
        """Have all threads of some runs stand still."""
        for one in runs:
            one.signal(signal.SIGSTOP)
        until = time.monotonic() + HANG_SECONDS
        for pid in [pid for one in runs for pid in one.pids()]:
            while not states_of(pid) <= {'T', 'Z', 'X'}:
                assert time.monotonic() < until, pid

    def go_on_to_a_fetch(self, run: Run) -> None:
        """Have a run that stands still continue until something is under a temporary name, if nothing is."""
        # Beside living orphans of earlier runs nobody looks at what a kill leaves: one look at least there has to be.
        until = time.monotonic() + HANG_SECONDS
        while not self.is_fetching() or (self.orphaned and not self.report.left_most):
            assert time.monotonic() < until, run.said()
            run.signal(signal.SIGCONT)
            self.look(run)
            self.stop([run])

    def is_fetching(self) -> bool:
        """Whether there is a file of a fetch that has begun."""
        with contextlib.suppress(FileNotFoundError):  # the folder goes with the last of them
            return any((self.cache / '.headrace').glob('*.[rp]a*'))
        return False

    def look(self, run: Run) -> None:
        """Count the cache folder's bytes while nobody changes it."""
        if not any(process.exitcode is None for process in run.ranks):
            time.sleep(0.01)
        self.stop(self.running)
        used = disk_use(self.cache)
        for one in self.running:
            one.signal(signal.SIGCONT)
        self.report.samples += 1
        self.report.most = max(self.report.most, used)
        assert used <= self.chain.limit, f'{used} bytes under a limit of {self.chain.limit}'
        for one in [*self.running]:
            killed = self.orphaned.get(one.leg.number)
            # Asked first: this process, too, may have been away for a while.
            if one.is_gone():
                self.running.remove(one)
                if killed is not None:
                    self.report.orphan_seconds.append(round(time.monotonic() - killed, 2))
                    del self.orphaned[one.leg.number]
            elif killed is not None:
                assert time.monotonic() - killed < GONE_SECONDS, f'workers outlive their ranks: {one.said()}'
        time.sleep(0.006)

    def compare(self, run: Run, step: int | None) -> None:
        """Hold what a run trained, also after its checkpoint, against the order; keep what counts of it."""
        leg, by_rank = run.leg, [run.batches(rank) for rank in range(run.leg.ranks)]
        self.report.pids += run.pids()
        assert step is None or all(len(batches) >= step for batches in by_rank)
        for rank, batches in enumerate(by_rank):
            expected = self.expected(leg, rank)
            for batch, its_epoch, position in batches:
                assert (batch, its_epoch, position) == next(expected), f'rank {rank} of {leg}'
        whole: list[tuple[list[int], int, int]] = []
        for parts in [*zip(*by_rank, strict=False)][:step]:
            position = parts[0][2]
            ids = sorted(sample for part in parts for sample in part[0])
            whole.append((ids, parts[0][1], (position - 1) // GLOBAL_BATCH))
        self.legs.append(Trained(whole, self.data, GLOBAL_BATCH, leg.ranks))

    def expected(self, leg: Leg, rank: int) -> Iterator[tuple[list[int], int, int]]:
        """The samples that a rank has to train from the checkpoint on, without end."""
        epoch, start = 0, 0
        if leg.state is not None:
            epoch, start = int(leg.state['epoch']), int(leg.state['sample_in_epoch'])
        topology = Topology(rank=rank, world_size=leg.ranks)
        while True:
            # An epoch that the checkpoint has the whole of has no batch left.
            plan = self.data.plan(epoch=epoch, start=start, global_batch_size=GLOBAL_BATCH, topology=topology)
            for number in range(plan.num_batches):
                yield plan.order.at(plan.positions(number)).tolist(), epoch, plan.end(number)
            epoch, start = epoch + 1, 0

    def check_leftovers(self, run: Run) -> None:
        """Look at what a kill left under temporary names: little, and nothing of the kill before."""
        state = self.cache / '.headrace'
        paths = [path for path in state.iterdir() if path.name != 'ledger'] if state.exists() else []
        # Their inodes would not do: the next file may get the one of a file that was removed.
        left = {(path.name, path.stat().st_ctime_ns) for path in paths if path.suffix != '.lock'}
        fetches: dict[str, set[str]] = {}
        for path in paths:
            fetches.setdefault(path.name.partition('.')[0], set()).add(path.suffix)
        processes = run.leg.ranks * max(run.leg.workers, 1)
        assert len(fetches) <= MOST_FETCHES * processes
        assert len(paths) <= MOST_FILES * len(fetches)
        if len(run.batches(0)) >= 3:
            assert not left & self.left, 'what an earlier kill left is still there'
        self.left = left
        self.report.left_most = max(self.report.left_most, len(paths))
        if not (self.cache / 'index.json').exists():
            self.report.found['index'] += 1
        for kinds in fetches.values():
            what = 'unpacking' if {'.raw', '.packed'} <= kinds else 'download' if kinds - {'.lock'} else 'lock'
            self.report.found[what] += 1
        if not fetches:
            self.report.found['nothing'] += 1

    def check_files(self) -> None:
        """A file under a final name is whole and right."""
        for path in self.cache.iterdir() if self.cache.exists() else ():
            if not path.is_dir():
                assert path.read_bytes() == self.files[path.name], path.name


def main() -> None:
    given, out = map(Path, sys.argv[1:])
    register_store('slow', lambda url, _: SlowStore(url.removeprefix('slow://')))
    # Orphans are reaped here, on whatever machine.
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)
    # Semaphores, too, say in /dev/shm whose they are.
    vars(multiprocessing.current_process())['_config']['semprefix'] = f'/kill-chain-{os.getpid()}'
    chain = Chain(**json.loads(given.read_text()))
    if chain.remote.startswith('s3://'):
        import boto3  # noqa: F401 - once for all ranks
    supervisor = Supervisor(chain)
    prepare_forks()
    try:
        supervisor.go()
    finally:
        for run in supervisor.running:
            run.signal(signal.SIGKILL)
    out.write_text(json.dumps(vars(supervisor.report)))


if __name__ == '__main__':
    main()
