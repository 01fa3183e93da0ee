"""The prefetcher without threads, with a store that answers when it is told to; and as a user meets it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from headrace import Stream, StreamingDataLoader, StreamingDataset
from headrace.dataset.prefetch.horizon import UpcomingBatch
from headrace.dataset.prefetch.limits import PrefetchLimits
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.dataset.prefetch.schedule import NO_ROOM_PAUSE, PATIENCE, POLL, Concurrency, Fetch
from headrace.errors import ChecksumError, TransferError
from headrace.storage import FetchResult, FetchStatus
from headrace.storage.stores.local import LocalStore

SIZE = 100
PRESENT, ELSEWHERE, NO_ROOM = map(FetchResult, (FetchStatus.PRESENT, FetchStatus.ELSEWHERE, FetchStatus.NO_ROOM))
CAME = FetchResult(FetchStatus.PRESENT, size=SIZE)
FAR = PrefetchLimits(1000, math.inf)


class Network:
    """Shards come when `let` says so, with what `outcomes` has for them, which for those of `late` comes then, too.

    Nothing runs in a thread, and time passes when a test says so.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[int] = []
        self.present: set[int] = set()
        self.outcomes: dict[int, list[FetchResult | Exception]] = {}
        self.late: set[int] = set()
        self.urgent: set[int] = set()
        self._under_way: dict[int, tuple[Prefetcher, Fetch, FetchResult | Exception]] = {}
        self._free: set[int] = set()
        self.prefetchers: list[Prefetcher] = []

    def clock(self) -> float:
        return self.now

    def is_ready(self, shard: int) -> bool:
        return shard in self.present

    def size_of(self, shard: int) -> int:
        return SIZE

    def settle(self) -> None:
        """Begin what may begin, and end what nothing holds up, until nothing changes."""
        while any([self._begin(one) for one in self.prefetchers] + [self._end(shard) for shard in [*self._under_way]]):
            pass

    def _begin(self, prefetcher: Prefetcher) -> bool:
        fetch = prefetcher.take(wait=False)
        if fetch is None:
            return False
        shard = fetch.shard
        assert shard not in self._under_way
        self.begun.append(shard)
        self.urgent.update([shard] if fetch.is_urgent else [])
        outcomes = self.outcomes.get(shard)
        self._under_way[shard] = prefetcher, fetch, outcomes.pop(0) if outcomes else PRESENT
        return True

    def _end(self, shard: int) -> bool:
        prefetcher, fetch, outcome = self._under_way[shard]
        if (outcome == PRESENT or shard in self.late) and shard not in self._free:
            return False
        del self._under_way[shard]
        if outcome == PRESENT and shard not in self.present:
            self.present.add(shard)
            outcome = CAME
        prefetcher.ended(fetch, outcome)
        return True

    def let(self, *shards: int) -> None:
        self._free.update(shards)
        self.settle()

    def has_begun(self, *shards: int) -> bool:
        """Whether fetches of these have begun in this order, and no other does."""
        self.settle()
        return self.begun == list(shards)


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def prefetcher(network):
    def make(batches, *, ahead=FAR, width=1, max_bytes=math.inf, of_node=None, concurrency=None):
        concurrency = concurrency or Concurrency(64, network.clock, width=width)
        limits = replace(ahead, cache_bytes=max_bytes)
        one = Prefetcher(network, limits, concurrency=concurrency, clock=network.clock)
        one.follow(upcoming(batches, of_node=of_node), first=0)
        network.prefetchers.append(one)
        return one

    return make


def upcoming(batches, first=0, of_node=None):
    for number, shards in enumerate(batches):
        others = None if of_node is None else np.array(of_node[number])
        yield UpcomingBatch(first + number, np.array(shards), others)


def test_shards_are_fetched_in_the_order_of_their_first_use(network, prefetcher):
    one = prefetcher([[3], [1, 3], [1, 2], [0]])
    network.present.add(2)
    one.advance(0)
    assert network.has_begun(3)
    network.let(*range(10))
    one.wait(3)
    assert network.has_begun(3, 1, 0)


def test_nothing_begins_for_later_batches_while_the_readers_own_is_incomplete(network, prefetcher):
    one = prefetcher([[0, 1], [2], [3]])
    one.advance(0)
    assert network.has_begun(0, 1)
    network.let(0)
    one.wait(0)
    assert network.has_begun(0, 1)
    network.let(1)
    one.wait(1)
    assert network.has_begun(0, 1, 2)
    network.let(2)
    assert network.has_begun(0, 1, 2, 3)
    assert network.urgent == {0, 1}


def test_the_next_shard_begins_as_the_last_bytes_of_the_one_before_come(network, prefetcher):
    one = prefetcher([[0], [1], [2]])
    one.advance(0)
    assert network.has_begun(0)
    one.almost_done(0)
    assert network.has_begun(0, 1)
    one.almost_done(0)
    network.let(0)
    one.wait(0)
    assert network.has_begun(0, 1)
    one.almost_done(0)  # too late to matter
    assert network.has_begun(0, 1)


def test_no_thread_is_woken_while_the_cache_has_what_is_needed(network, prefetcher, monkeypatch):
    network.present.update(range(9))
    one = prefetcher([[shard] for shard in range(10)], ahead=replace(FAR, batches=3))
    woken: list[int] = []
    monkeypatch.setattr(one._lock, 'notify_all', lambda: woken.append(1))
    for batch in range(6):
        one.advance(batch)
    assert not woken
    one.advance(6)  # the missing shard of the last batch comes into sight
    assert woken
    assert network.has_begun(9)


@pytest.mark.parametrize('width', [1, 2, 8])
def test_so_many_are_under_way_as_the_width_says(network, prefetcher, width):
    network.present.add(99)
    one = prefetcher([[99], *([shard] for shard in range(20))], width=width)
    one.advance(0)
    assert network.has_begun(*range(width))


def test_the_next_shard_begins_although_the_one_before_is_unpacked(network, prefetcher):
    network.present.add(99)
    one = prefetcher([[99], [0], [1], [2]])
    one.advance(0)
    assert network.has_begun(0)
    one.almost_done(0)
    assert network.has_begun(0, 1)


def test_a_shard_that_does_not_come_delays_others_for_a_while_only(network, prefetcher):
    network.present.add(99)
    network.let(*range(1, 100))
    one = prefetcher([[99], *([shard] for shard in range(20))])
    one.advance(0)
    assert network.has_begun(0)
    network.now += PATIENCE
    assert network.has_begun(*range(20))


def test_more_at_once_are_tried_where_the_reader_waits(network, prefetcher):
    seconds = 0.0
    concurrency = Concurrency(8, lambda: seconds)
    one = prefetcher([], concurrency=concurrency)
    one.follow(upcoming([[shard] for shard in range(200)]), first=0, starved=lambda: seconds)
    widths = []
    for at in range(8):
        one.advance(at)
        network.settle()
        assert at in network.begun
        seconds += 1.0
        network.let(at)
        one.wait(at)
        one.finish_wait()
        widths.append(concurrency.width)
    assert widths == [1, 1, 1, 2, 2, 2, 2, 1]


def test_the_reader_is_starved_for_as_long_as_it_waits(network, prefetcher):
    seconds = []

    class Noted(Concurrency):
        def begin(self, starved: float) -> None:
            seconds.append(starved)
            super().begin(starved)

    one = prefetcher([[0], [1]], concurrency=Noted(1, network.clock))
    one.advance(0)
    network.let(0)
    network.now = 3.0
    one.wait(0)
    network.now = 5.0
    one.finish_wait()
    one.follow(upcoming([[1]]), first=0)
    assert seconds == [0.0, 2.0]


def test_what_is_needed_next_begins_although_later_shards_are_under_way(network, prefetcher):
    network.present.add(0)
    one = prefetcher([[0], [1], [2], [3]], ahead=PrefetchLimits(2, math.inf), width=2)
    one.advance(0)
    assert network.has_begun(1, 2)
    one.advance(1)  # shard 1 is still on its way, so shard 3 has to wait
    assert network.has_begun(1, 2)
    network.let(1)
    one.wait(1)
    assert network.has_begun(1, 2, 3)


def test_advance_says_what_was_used_and_no_batch_in_sight_uses_again(network, prefetcher):
    network.present.update(range(9))
    one = prefetcher([[0, 1], [1, 2], [3, 0], [1], [4], [5], [6]], ahead=PrefetchLimits(2, math.inf))
    one.advance(0)
    assert [sorted(one.advance(at)) for at in range(1, 7)] == [[], [2], [0, 3], [1], [4], [5]]


def test_under_a_limit_nothing_is_fetched_beyond_what_fits(network, prefetcher):
    one = prefetcher([[0], [0], [1], [2], [3], [4]], width=8, max_bytes=3 * SIZE)
    network.let(*range(9))
    one.advance(0)
    assert network.has_begun(0, 1, 2)
    for at in (1, 2):
        one.advance(at)
    assert network.has_begun(0, 1, 2)  # other ranks may still be at batch 0
    one.advance(3)
    assert network.has_begun(0, 1, 2, 3)  # the reader's, and the next one, in any case


def test_under_a_limit_two_shards_are_fetched_however_small_it_is(network, prefetcher):
    one = prefetcher([[0]] * 5 + [[1]] * 5 + [[2]] * 5, width=8, max_bytes=SIZE, ahead=replace(FAR, lag=0))
    network.let(*range(9))
    one.advance(0)
    assert network.has_begun(0, 1)
    assert one.fits
    one.advance(5)
    assert network.has_begun(0, 1, 2)


def test_under_a_limit_what_was_there_and_is_no_more_is_fetched_when_there_is_room(network, prefetcher):
    """The nearer ones took its place, which is what a limit is for."""
    network.let(*range(9))
    network.present.add(4)
    one = prefetcher([[0], [1], [2], [3], [4]], width=8, max_bytes=3 * SIZE, ahead=replace(FAR, lag=0))
    one.advance(0)
    assert network.has_begun(0, 1, 2)
    network.present.discard(4)
    one.advance(2)
    assert network.has_begun(0, 1, 2, 3, 4)


def test_under_a_limit_what_is_evicted_although_it_is_needed_soon_is_fetched_again(network, prefetcher):
    network.let(*range(9))
    one = prefetcher([[0], [1], [2], [3], [4]], width=8, max_bytes=4 * SIZE)
    one.advance(0)
    assert network.has_begun(0, 1, 2, 3)
    network.present.discard(2)
    one.advance(1)
    assert network.has_begun(0, 1, 2, 3, 2)
    one.advance(2)
    assert network.has_begun(0, 1, 2, 3, 2)


def test_under_a_limit_what_failed_ahead_and_was_evicted_after_the_reader_had_it_is_fetched_again(network, prefetcher):
    network.let(*range(9))
    network.outcomes[1] = [KeyError('no luck')]
    one = prefetcher([[0], [1], [2], [1]], width=8, max_bytes=4 * SIZE)
    one.advance(0)
    assert network.has_begun(0, 1, 2)
    one.advance(1)
    one.wait(1)  # returns: it is the reader's
    network.present.add(1)
    one.finish_wait()
    network.present.discard(1)
    one.advance(2)
    assert network.has_begun(0, 1, 2, 1)


def test_under_a_limit_bytes_ahead_are_bounded_also_of_what_was_there_before(network, prefetcher):
    network.present.update(range(100))
    one = prefetcher(
        [[shard] for shard in range(100)], ahead=PrefetchLimits(1000, 3 * SIZE, lag=0), max_bytes=20 * SIZE
    )
    one.advance(0)
    network.present.clear()
    one.advance(50)
    assert network.has_begun(50)
    network.let(*range(100))
    assert len(network.begun) <= 4 + 16


def test_where_the_next_batches_are_all_that_fits_it_says_so(network, prefetcher):
    one = prefetcher([[number, number + 10] for number in range(9)], max_bytes=SIZE)
    one.advance(0)
    assert not one.fits
    assert prefetcher([[number] for number in range(9)]).fits  # without a limit


def test_what_was_refused_after_the_last_pass_is_in_nobodys_way(network, prefetcher):
    network.late.add(9)
    network.outcomes[9] = [NO_ROOM]
    one = prefetcher([[9]], width=8, ahead=replace(FAR, lag=0), max_bytes=3 * SIZE)
    one.advance(0)
    assert network.has_begun(9)
    one.follow(upcoming([[number] for number in range(10)]), first=0)
    one.advance(0)
    network.let(0, 1, 2)
    assert network.present == {0, 1, 2}
    network.let(9)
    one.advance(1)
    network.let(3)
    assert network.present == {0, 1, 2, 3}


def test_under_a_limit_what_other_ranks_read_sooner_takes_room_too(network, prefetcher):
    of_node = [[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]]
    one = prefetcher([[0], [1], [2], [3], [4]], width=8, max_bytes=6 * SIZE, of_node=of_node)
    network.let(*range(9))
    one.advance(0)
    assert network.has_begun(0, 1, 2)
    assert [one.next_use(shard) for shard in range(10)] == [0, 1, 2, 3, 4] * 2


def test_what_another_rank_may_not_have_read_yet_is_not_out_of_use(network, prefetcher):
    network.present.update(range(9))
    ahead = replace(FAR, lag=2)
    one = prefetcher([[0], [1], [2], [3], [4]], max_bytes=100 * SIZE, of_node=[[0, 5], [1], [2], [3], [4]], ahead=ahead)
    uses = []
    for at in range(4):
        one.advance(at)
        uses.append(one.next_use(5))
    assert uses == [0, 0, 0, math.inf]


def test_a_shard_that_another_process_fetches_is_left_to_it(network, prefetcher):
    network.outcomes[0] = [ELSEWHERE]
    one = prefetcher([[0], [0, 1]], width=2)
    one.advance(0)
    assert network.has_begun(0, 1)
    one.advance(1)
    assert network.has_begun(0, 1, 0)  # it may have been killed


def test_what_another_process_fetches_delays_what_is_needed_after_it(network, prefetcher):
    network.outcomes[1] = [ELSEWHERE]
    network.present.add(0)
    one = prefetcher([[0], [1], [2], [3]])
    one.advance(0)
    assert network.has_begun(1)
    network.present.add(1)
    network.now += POLL
    assert network.has_begun(1, 2)


def test_what_another_process_fetches_does_not_delay_for_ever(network, prefetcher):
    network.outcomes[1] = [ELSEWHERE]
    network.present.add(0)
    one = prefetcher([[0], [1], [2], [3]])
    one.advance(0)
    assert network.has_begun(1)
    network.now += PATIENCE
    assert network.has_begun(1, 2)


def test_the_reader_fetches_by_itself_what_nobody_has_begun(network, prefetcher):
    network.outcomes[0] = [ELSEWHERE]
    one = prefetcher([[0, 1], [2]])
    network.let(1)
    one.advance(0)
    assert network.has_begun(0, 1)
    one.wait(0)  # returns: it is the reader's
    one.wait(1)
    assert network.has_begun(0, 1)


def test_nothing_begins_while_the_reader_fetches(network, prefetcher):
    network.outcomes[0] = [NO_ROOM]
    one = prefetcher([[0], [1], [2]])
    one.advance(0)
    assert network.has_begun(0)
    one.wait(0)
    network.now += NO_ROOM_PAUSE
    assert network.has_begun(0)
    network.present.add(0)
    one.finish_wait()
    assert network.has_begun(0, 1)


def test_without_room_nothing_is_tried_until_the_reader_moves_on(network, prefetcher):
    network.present.add(0)
    network.outcomes[1] = [NO_ROOM, NO_ROOM]
    one = prefetcher([[0], [0], [0], [1], [2]])
    one.advance(0)
    assert network.has_begun(1)
    one.advance(1)
    assert network.has_begun(1, 1)
    one.advance(2)
    assert network.has_begun(1, 1, 1)
    network.let(1)
    assert network.has_begun(1, 1, 1, 2)


def test_without_room_it_is_tried_again_also_while_the_reader_rests(network, prefetcher):
    """As between two epochs."""
    network.present.add(0)
    network.outcomes[1] = [NO_ROOM, NO_ROOM]
    network.let(1, 2)
    one = prefetcher([[0], [1], [2]])
    one.advance(0)
    for tries in range(1, 3):
        assert network.has_begun(*[1] * tries)
        network.now += NO_ROOM_PAUSE
    assert network.has_begun(1, 1, 1, 2)


def test_what_was_refused_and_is_needed_no_more_is_in_nobodys_way(network, prefetcher):
    """Another worker has read its batch since."""
    network.outcomes[1] = [NO_ROOM] * 99
    network.let(*range(9))
    one = prefetcher([[0], [1], [2], [3], [4]])
    one.advance(0)
    assert network.has_begun(0, 1)
    one.advance(2)
    assert network.has_begun(0, 1, 2, 3, 4)


def test_a_shard_is_asked_for_once_although_it_was_refused(network, prefetcher):
    network.outcomes[1] = [ELSEWHERE] * 3
    network.let(*range(9))
    one = prefetcher([[0], [1], [2], [1], [3], [1]], width=8, max_bytes=9 * SIZE)
    for at in range(6):
        one.advance(at)
        network.settle()
    assert sorted(network.begun) == [0, 1, 1, 1, 1, 2, 3]


def test_bytes_ahead_are_bounded_and_two_shards_always_may_be(network, prefetcher):
    network.let(*range(100))
    network.present.add(50)
    one = prefetcher([[50], *([shard] for shard in range(20))], ahead=PrefetchLimits(1000, 3 * SIZE))
    for at in range(5):
        one.advance(at)
        one.wait(50)
        assert network.has_begun(*range(at + 3))
    tiny = prefetcher([[50], *([20 + shard] for shard in range(20))], ahead=PrefetchLimits(1000, 1))
    network.begun.clear()
    tiny.advance(0)
    assert network.has_begun(20, 21)


def test_batches_ahead_are_bounded(network, prefetcher):
    network.let(*range(100))
    network.present.add(50)
    one = prefetcher([[50], *([shard] for shard in range(20))], ahead=PrefetchLimits(3, math.inf))
    one.advance(0)
    assert network.has_begun(0, 1, 2)


def test_a_failure_is_raised_where_the_shard_is_waited_for_and_the_next_call_tries_again(network, prefetcher):
    network.outcomes[0] = [KeyError('no luck')]
    network.outcomes[1] = [KeyError('no luck')]
    one = prefetcher([[0, 1], [2]])
    one.advance(0)
    assert network.has_begun(0, 1, 2)
    with pytest.raises(KeyError, match='no luck'):
        one.wait(0)
    one.wait(0)


def test_a_failure_ahead_is_tried_again_later_and_is_never_the_readers(network, prefetcher):
    network.present.add(9)
    network.let(*range(100))
    network.outcomes[0] = [KeyError('no luck')] * 3
    one = prefetcher([[9]] * 20 + [[0], [1]])
    one.advance(0)
    assert network.has_begun(0, 1)  # the failure ends the first
    one.wait(0)  # returns: it is the reader's
    one.finish_wait()
    one = prefetcher([[9]] * 20 + [[0], [1]])
    network.begun.clear()
    for at, due in enumerate([1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3]):  # 10 s and 20 s after the failures
        one.advance(at)
        network.settle()
        assert len(network.begun) == due
        network.now += 1.4 * PATIENCE
    assert network.begun == [0, 0, 0]
    assert network.present >= {0, 1, 9}


def test_bad_data_are_fetched_once(network, prefetcher):
    network.present.add(9)
    network.outcomes[0] = [ChecksumError('a wrong bit')]
    one = prefetcher([[9], [0], [1]])
    one.advance(0)
    assert network.has_begun(0, 1)
    one.advance(1)
    with pytest.raises(ChecksumError, match='a wrong bit'):
        one.wait(0)


def test_what_fails_ahead_for_ever_is_left_to_the_reader(network, prefetcher):
    network.present.add(9)
    network.outcomes[0] = [KeyError('no luck')] * 100
    one = prefetcher([[9]] * 15 + [[0]])
    for at in range(14):
        one.advance(at)
        network.settle()
        network.now += 100 * PATIENCE
    assert network.begun == [0] * 6


@pytest.mark.parametrize('workers', [0, 2])
def test_an_outage_in_which_nobody_waits_ends_no_run(make_dataset, tmp_path, monkeypatch, workers):
    remote = make_dataset('remote', 96, per_shard=8)
    get, healthy_from = LocalStore.get, time.monotonic() + 0.7

    def failing(self, key, *args, **kwargs):
        if time.monotonic() < healthy_from and key.startswith('shard') and int(key[6:11]) >= 4:
            raise TransferError('503')
        return get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, 'get', failing)
    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'local'), download_retry=0)
    ids = []
    for batch in StreamingDataLoader(
        dataset, batch_size=8, num_workers=workers, prefetch_factor=1 if workers else None
    ):
        ids += batch['id'].tolist()
        if len(ids) == 8:
            time.sleep(1.0)
    assert ids == list(range(96))


def test_what_was_refused_for_another_sequence_does_not_delay_this_one(network, prefetcher):
    network.outcomes[0] = [NO_ROOM]
    network.late.add(0)
    one = prefetcher([[0], [1]])
    one.advance(0)
    assert network.has_begun(0)
    one.follow(upcoming([[2], [3]]), first=0)
    one.advance(0)
    network.let(0, 2)
    assert network.has_begun(0, 2, 3)


def test_another_sequence_forgets_the_first(network, prefetcher):
    network.let(*range(10))
    one = prefetcher([[0], [1]], ahead=PrefetchLimits(1, math.inf))
    one.advance(0)
    assert network.has_begun(0, 1)
    one.follow(upcoming([[1], [0], [2]], first=7), first=7)
    assert one.next_use(1) == math.inf
    one.advance(7)
    assert (one.next_use(1), one.next_use(0), one.next_use(2)) == (7, 8, math.inf)


def test_an_evaluation_looks_ahead_anew_in_each_pass(make_dataset, tmp_path, monkeypatch):
    followed = []
    follow = Prefetcher.follow
    monkeypatch.setattr(
        Prefetcher,
        'follow',
        lambda self, what, *, first, **rest: followed.append(first) or follow(self, what, first=first, **rest),
    )
    dataset = StreamingDataset(remote=str(make_dataset('remote', 64)), local=str(tmp_path / 'local'))
    loader = StreamingDataLoader(dataset, batch_size=8, fixed_epoch=0)
    for _ in range(3):
        assert len(list(loader)) == 8
    assert followed == [0, 0, 0]


@pytest.mark.parametrize('workers', [0, 2])
def test_a_shard_that_cannot_be_fetched_is_named_with_its_stream(make_dataset, tmp_path, workers):
    remote = make_dataset('remote', 64, per_shard=8)
    *others, lost = sorted(remote.glob('*.mds'))
    lost.unlink()
    dataset = StreamingDataset(streams=[Stream(remote=str(remote), local=str(tmp_path / 'local'), name='books')])
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
    with pytest.raises(FileNotFoundError) as caught:
        list(loader)
    text = str(caught.value)
    assert f'Stream books ({remote}), shard {len(others)} ({lost.name})' in text
    assert str(lost) in text


def test_the_reader_waits_for_a_shard_that_a_thread_fetches():
    inside, go_on = threading.Event(), threading.Event()

    network = Network()

    def fetch(shard: int, **_: object) -> FetchResult:
        inside.set()
        assert go_on.wait(100)
        network.present.add(shard)
        return CAME

    one = Prefetcher(network, FAR, fetch)
    one.follow(upcoming([[0]]), first=0)
    one.advance(0)
    assert inside.wait(100)
    reader = threading.Thread(target=one.wait, args=[0])
    reader.start()
    go_on.set()
    reader.join(100)
    assert network.present == {0}
    one.close()


def test_where_there_may_be_no_more_threads_the_reader_fetches(make_dataset, tmp_path, monkeypatch):
    remote = make_dataset('remote', 40, per_shard=8)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    dataset = StreamingDataset(remote=str(remote), local=str(tmp_path / 'local'), batch_size=8)
    monkeypatch.setattr(threading.Thread, 'start', refuse)
    assert [n for batch in StreamingDataLoader(dataset) for n in batch['id'].tolist()] == list(range(40))


@pytest.mark.parametrize(
    ('limits', 'reached'),
    [
        (PrefetchLimits(2), 'batches'),
        (PrefetchLimits(1000, bytes=3 * SIZE), 'bytes'),
        (PrefetchLimits(1000, shards=4), 'shards'),
        (PrefetchLimits(1000, cache_bytes=5 * SIZE), 'cache_bytes'),
        (PrefetchLimits(1000), None),
    ],
)
def test_the_limit_that_holds_the_prefetch_is_logged_once_a_pass(network, caplog, limits, reached):
    caplog.set_level('DEBUG', 'headrace')
    one = Prefetcher(network, limits, clock=network.clock)
    for _ in range(2):
        caplog.clear()
        one.follow(upcoming([[shard] for shard in range(20)]), first=0)
        for batch in range(3):
            one.advance(batch)
        told = [record.getMessage() for record in caplog.records if 'prefetch' in record.getMessage()]
        assert len(told) == (reached is not None)
        assert reached is None or f'has reached its limit of {reached}. It is ' in told[0]
