"""How long tests take: the longest begin first, and `--below` leaves them out.

Tests of one trainer are given to one process, which imports it, and starts the server of `ranks.py` for it, once. So
are those of Ceph and of MosaicML Streaming, which take longer to start or to import than they do.

`tests/data/durations.txt` has a line for each test that takes long: its CPU seconds, with those of its programs, and
its name. The time on a clock would depend on what else the machine does. `make durations` measures again. A test
without a line, a new one for example, counts as quick.

All tests that use a fixture of a module or session share its time: it is not the first one's alone, whichever that is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

FILE = Path(__file__).parents[2] / 'data' / 'durations.txt'
LONG = 0.1
"""CPU seconds from which on a test has a line."""
TOGETHER = ('rgw', 'mosaicml_streaming')
"""Fixtures whose tests one process runs; 'rgw' is Ceph's, and its name among parameters."""

_KEY = 'cpu seconds'
_begun = pytest.StashKey[float]()
_fixtures = pytest.StashKey[dict[tuple[str, str], float]]()
"""CPU seconds of the shared fixtures that the running test was the first to need, by folder or file, and name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup('durations', 'how long tests take')
    group.addoption('--below', type=float, metavar='SECONDS', help='leave out tests that are known to take so long')
    group.addoption('--write-durations', action='store_true', help=f'measure tests, and update {FILE.name}')


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption('write_durations') and not hasattr(config, 'workerinput'):
        config.pluginmanager.register(_Writer())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = read()
    limit = config.getoption('below')
    if limit is not None:
        config.hook.pytest_deselected(items=[item for item in items if known.get(item.nodeid, 0) >= limit])
        items[:] = [item for item in items if known.get(item.nodeid, 0) < limit]
    workers = getattr(config, 'workerinput', {}).get('workercount', 1)
    if workers > 1:
        items[:] = dealt(items, known, workers)


def dealt(items: list[pytest.Item], known: dict[str, float], workers: int) -> list[pytest.Item]:
    """As `--dist worksteal` shares them out, in equal parts: each part begins with its share of the long ones."""
    first = [item for item in items if item.nodeid in known or _group(item) in TOGETHER]
    is_first = set(first)
    rest = [item for item in items if item not in is_first]
    parts: list[pytest.Item] = []
    left = len(items)
    for worker, hand in enumerate(_hands(first, known, workers)):
        others = max(left // (workers - worker) - len(hand), 0)
        left -= len(hand) + others
        parts += [*hand, *rest[:others]]
        del rest[:others]
    return [*parts, *rest]


def _hands(items: list[pytest.Item], known: dict[str, float], workers: int) -> list[list[pytest.Item]]:
    """Shares that take as long as each other, the longest test of each first."""
    together: dict[str, list[pytest.Item]] = {}
    for item in items:
        together.setdefault(_group(item), []).append(item)
    hands: list[list[pytest.Item]] = [[] for _ in range(workers)]
    taken = [0.0] * workers
    for seconds, group in sorted(
        ((sum(known.get(item.nodeid, 0) for item in group), group) for group in together.values()),
        key=lambda pair: -pair[0],
    ):
        worker = taken.index(min(taken))
        taken[worker] += seconds
        hands[worker] += group
    return [sorted(hand, key=lambda item: -known.get(item.nodeid, 0)) for hand in hands]


def _group(item: pytest.Item) -> str:
    """The group of a test that one process runs: a trainer, one of `TOGETHER`, or this test alone."""
    trainers = [marker for marker in ('composer', 'lightning') if item.get_closest_marker(marker)]
    return [*trainers, *(name for name in TOGETHER if name in _names(item)), item.nodeid][0]


def _names(item: pytest.Item) -> set[str]:
    """Of its fixtures, those included that it asks for by a parameter."""
    if not isinstance(item, pytest.Function):
        return set()
    values = item.callspec.params.values() if hasattr(item, 'callspec') else ()
    return {*item.fixturenames, *(value for value in values if isinstance(value, str) and value.isidentifier())}


def read() -> dict[str, float]:
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return {name: float(seconds) for seconds, _, name in (line.partition(' ') for line in lines)}


def cpu_seconds() -> float:
    """What this process and all its descendants have used, those included that have ended and been waited for."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            fields = (folder / 'stat').read_text().rpartition(')')[2].split()
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used.get(pid, 0) for pid in own) / os.sysconf('SC_CLK_TCK') if used else time.process_time()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.config.getoption('write_durations'):
        item.stash[_begun] = cpu_seconds()
        item.config.stash[_fixtures] = {}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    shared = request.config.stash.get(_fixtures, None)
    if shared is None or fixturedef.scope == 'function':
        return (yield)
    begun, others = cpu_seconds(), sum(shared.values())
    try:
        return (yield)
    finally:  # those that it asks for by name have their own time
        own = cpu_seconds() - begun - (sum(shared.values()) - others)
        key = fixturedef.baseid, fixturedef.argname
        shared[key] = shared.get(key, 0) + own


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == 'teardown' and _begun in item.stash:
        shared = item.config.stash[_fixtures]
        own = cpu_seconds() - item.stash[_begun] - sum(shared.values())
        fixtures = [[*key, seconds] for key, seconds in shared.items()]
        report.user_properties.append((_KEY, [own, sorted(_names(item)), fixtures]))
    return report


class _Writer:
    """Collects what all tests took, those of other processes too."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.names: dict[str, list[str]] = {}
        self.fixtures: dict[tuple[str, str], float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != 'teardown':
            return
        measured = cast('tuple[float, list[str], list[tuple[str, str, float]]]', dict(report.user_properties)[_KEY])
        self.seconds[report.nodeid], self.names[report.nodeid], fixtures = measured
        for place, name, seconds in fixtures:
            self.fixtures[place, name] = self.fixtures.get((place, name), 0) + seconds

    def pytest_sessionfinish(self) -> None:
        """Those of files of which no test ran stay as they are."""
        for (place, name), seconds in self.fixtures.items():
            users = [test for test, names in self.names.items() if name in names and test.startswith(place)]
            for test in users:
                self.seconds[test] += seconds / len(users)
        files = {name.partition('::')[0] for name in self.seconds}
        kept = {name: seconds for name, seconds in read().items() if name.partition('::')[0] not in files}
        found = {name: seconds for name, seconds in self.seconds.items() if seconds >= LONG}
        lines = [f'{seconds:.1f} {name}\n' for name, seconds in sorted({**kept, **found}.items())]
        FILE.write_text(''.join(lines))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f'{sum(self.seconds.values()):.0f} CPU seconds in {len(self.seconds)} tests')
