"""The cache against a model in memory: whatever is done to it in whatever order, a read is right."""

import math
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.storage.cache import limit
from headrace.testing.stores import CountingStore
from tests.support.programs.descriptors import open_descriptors
from tests.support.programs.together import run_alone
from tests.support.stores.shards import cache_of, disk_use, make_remote, names
from tests.support.suite.example_counts import scaled

COUNT = 5
numbers = st.integers(0, COUNT - 1)


class CacheMachine(RuleBasedStateMachine):
    """``present`` is the model: what must be there. Under a limit it may be less, never more."""

    remembers = False
    """Whether counts are kept in a ledger, as those of large folders are."""

    @initialize(
        kind=st.sampled_from([{}, {'packed': True}, {'parts': 2}, {'prefix': 'a/'}]),
        room=st.sampled_from([None, 1, 2, 3]),
        keep_packed=st.booleans(),
    )
    def start(self, kind, room, keep_packed):
        self.cheap = limit.CHEAP
        limit.CHEAP = -1.0 if self.remembers else math.inf  # however long a count takes here
        self.folder = Path(tempfile.mkdtemp(prefix='cache-machine-'))
        self.remote = make_remote(self.folder / 'remote', COUNT, size=2000, **kind)
        per_shard = 2000 * kind.get('parts', 1) + (2100 if kind.get('packed') else 0)
        self.limit = None if room is None else room * per_shard
        self.keep_packed = keep_packed
        self.store = CountingStore(self.remote.store)
        self.leases = []
        self.present = set()
        self.when = {number: float(number) for number in range(COUNT)}
        self.open_again()

    def open_again(self):
        self.cache = cache_of(
            self.remote, self.folder / 'cache', store=self.store, limit=self.limit, keep_packed=self.keep_packed
        )

    def next_use(self, entry):
        return self.when[entry.id]

    def on_disk(self):
        return {entry.id for entry in self.remote.entries if self.cache.is_present(entry)}

    @rule(number=numbers, planned=st.booleans())
    def fetch(self, number, planned):
        before = self.on_disk()
        calls = self.store.calls.total()
        done = self.cache.fetch(self.remote.entries[number], next_use=self.next_use if planned else None, wait=False)
        assert bool(done) == (number in self.on_disk())
        if number in before:
            assert self.store.calls.total() == calls
        if planned:
            gone = before - self.on_disk()
            assert all(self.when[other] > self.when[number] for other in gone)
            stayed = before & self.on_disk()
            if gone and stayed and not self.remembers:  # evicted shards are needed later than others
                assert min(self.when[other] for other in gone) > max(
                    (self.when[other] for other in stayed - {lease.entry.id for lease in self.leases} - {number}),
                    default=-1,
                )
        if self.limit is None:
            assert done
        self.present = self.on_disk() if self.limit else self.present | {number}

    @rule(number=numbers)
    def acquire(self, number):
        lease = self.cache.acquire(self.remote.entries[number], next_use=self.next_use)
        self.remote.check(lease)
        self.leases.append(lease)
        self.present = self.on_disk() if self.limit else self.present | {number}
        assert number in self.present

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data):
        self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1))).release()

    @rule(number=numbers)
    def evict(self, number):
        if self.cache.evict(self.remote.entries[number]):
            self.present.discard(number)
            assert not self.cache.evict(self.remote.entries[number])

    @rule(number=numbers, size=st.one_of(st.none(), st.integers(0, 1999)))
    def damage(self, number, size):
        """Somebody deletes or truncates a file."""
        path = self.folder / 'cache' / self.remote.entries[number].parts[-1].name
        held = any(lease.entry.id == number for lease in self.leases)
        if path.exists() and (size is None or not held):  # truncating what is mapped is beyond what anybody can mend
            if size is None:
                path.unlink()
            else:
                with open(path, 'r+b') as file:
                    file.truncate(size)
            self.present.discard(number)

    @rule()
    def forget_everything(self):
        """Another process takes over."""
        while self.leases:
            self.leases.pop().release()
        self.open_again()

    @rule(number=numbers)
    def advance(self, number):
        self.when[number] += COUNT

    @invariant()
    def leases_are_right(self):
        for lease in getattr(self, 'leases', ()):
            self.remote.check(lease)

    @invariant()
    def the_disk_agrees(self):
        if not hasattr(self, 'cache'):
            return
        assert self.on_disk() == self.present
        if self.limit is not None:
            assert disk_use(self.folder / 'cache') <= self.limit
        if (self.folder / 'cache').exists():
            assert set(names(self.folder / 'cache')) <= {
                name for entry in self.remote.entries for part in entry.parts for name in (part.name, part.packed_name)
            }

    def teardown(self):
        if hasattr(self, 'leases'):
            while self.leases:
                self.leases.pop().release()
            assert not open_descriptors(self.folder)
            shutil.rmtree(self.folder)
            limit.CHEAP = self.cheap


class RememberingCacheMachine(CacheMachine):
    remembers = True


@pytest.mark.parametrize('machine', [CacheMachine, RememberingCacheMachine])
def test_a_cache_does_what_the_model_says(machine):
    steps = settings(
        max_examples=scaled(60), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_alone(lambda: run_state_machine_as_test(machine, settings=steps), timeout=300)
