"""Damage files at random and read them, for each parser in turn: only errors of headrace, bounded memory, no hang.

    python -m tests.support.fuzz.fuzz [PARSER ...] [--seconds 600] [--seed 0] [--keep FOLDER] [--memory 512]

A case is a number: the same number and seed give the same files. A process reads case after case. Its address space is
bounded, and so are the processor seconds of a case. What kills it, or raises an error of another package, is printed
and stored below ``FOLDER/PARSER/NUMBER``. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.fuzz.fuzz_seeds import PARSERS, Objects, seeds_of
from tests.support.fuzz.fuzz_targets import damaged, read, read_all

CASE_SECONDS = 20
"""Processor seconds of a case; the slowest undamaged dataset takes a tenth of one."""
_STATE = struct.Struct('<qqqqq')
"""Number of the case, cases that ended, the slowest one and its microseconds, peak of resident KiB."""


@dataclass
class Found:
    """The result of a parser."""

    cases: int = 0
    slowest: tuple[float, int] = (0.0, 0)
    """Processor seconds, and the case."""
    growth: int = 0
    """KiB of resident memory beyond that of undamaged files."""
    bad: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def fuzz(parser: str, seconds: float, seed: int, memory: int, keep: Path) -> Found:
    """Run cases of one parser for some seconds."""
    found, seeds, until, first = Found(), seeds_of(parser), time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory(prefix='headrace-fuzz-') as folder:
        while time.monotonic() < until:
            state = mmap.mmap(-1, _STATE.size)
            notes = Path(folder, 'error.txt')
            notes.unlink(missing_ok=True)
            child = os.fork()
            if not child:
                _child(parser, seeds, seed, first, until, memory, state, notes, Path(folder, 'data'))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            number, ended, slow, micros, growth = _STATE.unpack(state[:])
            found.cases += ended
            found.slowest = max(found.slowest, (micros / 1e6, slow))
            found.growth = max(found.growth, growth)
            if status == 0:
                break
            name = signal.Signals(-status).name if status < 0 else f'exit status {status}'
            why = f'more than {CASE_SECONDS} CPU seconds' if name == 'SIGPROF' else name
            text = notes.read_text() if notes.exists() else why
            found.bad.append((number, text))
            print(f'-- {parser}, case {number}: {text}', flush=True)
            _, bad = damaged(_rng(parser, seed, number), parser, seeds)
            for file, data in bad.items():
                path = keep / parser / str(number) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            first = number + 1
    return found


def _rng(parser: str, seed: int, number: int) -> random.Random:
    return random.Random(f'{parser}:{seed}:{number}')


def _child(
    parser: str,
    seeds: list[Objects],
    seed: int,
    first: int,
    until: float,
    memory: int,
    state: mmap.mmap,
    notes: Path,
    folder: Path,
) -> None:
    """Read case after case; never returns."""
    status = 1
    try:
        for good in seeds:
            assert read_all(parser, good, folder, index_of=good) > 0
        _bound_memory(memory)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        slowest, slow = 0.0, 0
        for ended, number in enumerate(itertools.count(first)):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            state[:] = _STATE.pack(number, ended, slow, int(slowest * 1e6), peak)
            if time.monotonic() > until:
                break
            good, bad = damaged(_rng(parser, seed, number), parser, seeds)
            signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
            begin = time.process_time()
            read(parser, good, bad, folder)
            taken = time.process_time() - begin
            signal.setitimer(signal.ITIMER_PROF, 0)
            if taken > slowest:
                slowest, slow = taken, number
        status = 0
    except BaseException:
        notes.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _bound_memory(mebibytes: int) -> None:
    """Bound the address space to what is mapped now, and some more."""
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    limit = pages * resource.getpagesize() + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> int:
    """Run the parsers that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parsers', nargs='*', choices=[*PARSERS, []], help='default: all')
    parser.add_argument('--seconds', type=float, default=600, help='for each parser')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--keep', type=Path, default=Path('build/fuzz'))
    parser.add_argument('--memory', type=int, default=512, help='MiB of a process beyond those of undamaged files')
    given = parser.parse_args()
    total = 0
    for name in given.parsers or PARSERS:
        found = fuzz(name, given.seconds, given.seed, given.memory, given.keep)
        total += len(found.bad)
        print(
            f'{name}: {found.cases:,} cases, {len(found.bad)} bad, slowest {found.slowest[0]:.2f} CPU s (case '
            f'{found.slowest[1]}), memory +{found.growth / 1024:.0f} MiB',
            flush=True,
        )
    return 1 if total else 0


if __name__ == '__main__':
    sys.exit(main())
