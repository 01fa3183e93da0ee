"""Simulated time, and transfers that share a link."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.simulate.world import Link, Processor, World
from headrace.storage.transfer.download import AlmostDone
from headrace.storage.transfer.http import CHUNK


def test_transfers_end_at_a_late_time():
    world = World()
    world.now = 1e6  # its clock ticks more coarsely than a transfer's last bytes take
    link = Link(world, bandwidth=1.3e6, connection_bandwidth=math.inf, latency=0.001)
    ended, calls = [], iter(range(1000))
    for size in (3_001, 50_021, 99_991):
        link.fetch(size, 1, lambda: None, lambda size=size: ended.append(size))
    world.run(lambda: next(calls, None) is None)
    assert ended == [3_001, 50_021, 99_991]


def test_transfers_share_a_link():
    world = World()
    link = Link(world, bandwidth=1e8, connection_bandwidth=6e7, latency=0.5)
    ended, near = {}, {}
    for name, size in (('small', 50e6), ('large', 150e6)):
        link.fetch(
            size,
            1,
            lambda name=name: near.setdefault(name, world.now),
            lambda name=name: ended.setdefault(name, world.now),
        )
    world.run(lambda: False)
    # The second connection is opened first, until 1 s. Both then share 100 MB/s, until 1.4 s; one alone gets 60 MB/s.
    burst = 2**14 / 1e8  # for which the second one waits
    assert ended == {'small': pytest.approx(1.4 - burst / 5), 'large': pytest.approx(1.4 + 130 / 60, abs=burst)}
    assert near['small'] == pytest.approx(1.0, abs=0.01)  # a latency of 0.5 s after the first bytes
    # Its latency was 1 s, with the handshake. After u more seconds 154 - 60 u MB are left, and 60 u - 4 MB have come
    # since its first chunk. At that pace, the rest takes 1 s where (154 - 60 u) u = 60 u - 4.
    assert near['large'] == pytest.approx(1 + (94 + math.sqrt(94**2 + 4 * 60 * 4)) / 120, abs=0.01)


@pytest.mark.parametrize(('chunks', 'near'), [(10, 9), (7, 6), (6, 6), (4, 6), (1, 3)])
def test_the_end_of_a_transfer_is_near_as_far_as_a_download_can_know(chunks, near):
    """A chunk a second, from the second second on; so the first answer comes after 3 s.

    The pace counts after 3 s more, at 6 s. Then the end is near once no more than 3 chunks are left.
    """
    world = World()
    link = Link(world, bandwidth=CHUNK, connection_bandwidth=math.inf, latency=2)
    times = []
    link.fetch(chunks * CHUNK, 1, lambda: times.append(world.now), lambda: times.append(world.now))
    world.run(lambda: False)
    assert times == [pytest.approx(min(near, 2 + chunks)), pytest.approx(2 + chunks)]


@pytest.mark.parametrize('seed', range(4))
def test_transfers_are_those_of_a_link_that_counts_each_millisecond(seed):
    random = np.random.default_rng(seed)
    begins = np.sort(random.integers(0, 8_000, 6)).tolist()  # milliseconds
    sizes = random.integers(1, 8 * CHUNK, 6).tolist()
    world = World()
    link = Link(world, bandwidth=CHUNK, connection_bandwidth=CHUNK / 2, latency=1)
    fast = []

    def note(kind, number):
        return lambda: fast.append((kind, number, world.now))

    for number, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        world.after(
            begin / 1000,
            lambda number=number, size=size: link.fetch(size, 1, note('near', number), note('end', number)),
        )
    world.run(lambda: False)

    clock, slow, used, opened = [0.0], [], 0, 1
    near, asked, starts, left, counted = {}, {}, {}, dict(enumerate(map(float, sizes))), [0] * 6
    for tick in range(100_000):
        clock[0] = tick / 1000
        for number in (number for number in range(6) if begins[number] == tick):
            used += 1
            asked[number] = tick + (1_000 if used <= opened else 2_000)
            opened = max(opened, used)
            call = lambda number=number: slow.append(('near', number, clock[0]))  # noqa: E731
            near[number] = AlmostDone(sizes[number], call, lambda: clock[0])
            near[number].ask()
        for number in (number for number in range(6) if asked.get(number) == tick):
            starts[number] = tick + sum(start <= tick for start in starts.values()) * 2**14 / CHUNK * 1_000
        under_way = [number for number, start in starts.items() if start < tick]
        for number in under_way:
            left[number] = max(0.0, left[number] - min(CHUNK / 2, CHUNK / len(under_way)) / 1000)
            there = sizes[number] - left[number]
            whole = sizes[number] if not left[number] else int(there // CHUNK) * CHUNK
            if whole > counted[number]:
                near[number].count(whole - counted[number])
                counted[number] = whole
            if not left[number]:
                slow.append(('end', number, clock[0]))
                del starts[number]
                used -= 1
        if len(slow) == 12:
            break

    def by_transfer(events):
        return {(kind, number): moment for kind, number, moment in events}

    assert by_transfer(fast) == pytest.approx(by_transfer(slow), abs=0.02)


def test_a_process_makes_one_request_after_the_other():
    world = World()
    processor = Processor(world)
    assert (processor.reserve(1.0), processor.reserve(0.5)) == (1.0, 1.5)
    world.after(4.0, lambda: None)
    world.run(lambda: False)
    assert processor.reserve(1.0) == 1.0
