"""Batches in slots: the memory of workers that is used again and again."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import multiprocessing.util
import os
import random
import resource
import signal
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import StreamingDataLoader, StreamingDataset
from headrace.errors import CollateError
from tests.support.programs.descriptors import close_leftovers, open_descriptors
from tests.support.programs.slot_senders import Sender

pytestmark = pytest.mark.skipif(not hasattr(os, 'memfd_create'), reason='needs Linux')


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


class Pair(NamedTuple):
    left: object
    right: object


def strides(tensor: torch.Tensor) -> list[int]:
    """Strides that lead anywhere."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and tensor.numel()]


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            type(other) is type(one)
            and (one.dtype, one.shape, strides(one)) == (other.dtype, other.shape, strides(other))
            and torch.equal(one.to(torch.complex128), other.to(torch.complex128))
        )
    if isinstance(one, np.ndarray):
        return other.dtype == one.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


tensors = st.builds(
    lambda shape, dtype, last: (
        torch.randint(0, 2, shape).to(dtype).contiguous(memory_format=torch.channels_last)
        if last and len(shape) == 4
        else torch.randint(0, 2, shape).to(dtype)
    ),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from(DTYPES),
    st.booleans(),
)


leaves = (
    tensors
    | st.integers()
    | st.text()
    | st.binary()
    | st.none()
    | st.builds(
        lambda n, kind: np.arange(n).astype(kind), st.integers(0, 900), st.sampled_from(['i4', 'f8', '>i4', 'U'])
    )
)


batches = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.builds(Pair, inner, inner)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


SENDER = Sender() if hasattr(os, 'memfd_create') else None


@given(batches)
def test_any_batch_arrives_as_it_is(batch):
    assert same(batch, SENDER(batch))


def test_a_slot_is_used_again_once_its_tensors_are_gone():
    sender = Sender()
    first = sender({'x': torch.ones(5000), 'y': torch.zeros(5000)})
    place = first['x'].data_ptr()
    view = first['x'][10:20]  # keeps the storage
    y = first.pop('y')
    del first
    second = sender(torch.full((10_000,), 2.0))
    assert second.data_ptr() != place
    del y, view
    gc.collect()
    third = sender(torch.full((10_000,), 3.0))
    assert third.data_ptr() == place
    assert sender.writer.not_in_slots == 0
    third += 1  # tensors are writable
    assert third.eq(4).all()
    assert second.eq(2).all()


def test_kept_batches_never_change_and_never_block():
    sender, kept = Sender(), []
    for number in range(40):
        kept.append(sender(torch.full((5000,), number)))
    assert sender.writer.not_in_slots > 0
    assert all(tensor.eq(number).all() for number, tensor in enumerate(kept))
    before = sender.writer.not_in_slots
    kept.clear()
    sender(torch.zeros(5000))
    assert sender.writer.not_in_slots == before


def test_batches_that_grow_move_to_larger_slots():
    sender = Sender()
    for size in [1000, 10_000, 100_000, 1_000_000, 10, 3_000_000, 500]:
        for number in range(12):
            assert sender(torch.full((size,), number)).eq(number).all()
    assert sender.writer.not_in_slots == 0


@pytest.mark.parametrize('count', [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_stamped_batches_held_in_random_patterns_keep_their_values(count):
    chance, sender, held, waiting = random.Random(count), Sender(prefetched=3), {}, []
    for number in range(count):
        waiting.append((number, sender.message({'x': torch.full((chance.choice([400, 700, 9000]),), number)})))
        while waiting and (len(waiting) == 3 or chance.random() < 0.5):
            stamp, message = waiting.pop(0)
            held[stamp] = sender.arrive(message)['x'][chance.randrange(3) :]
        for stamp in [stamp for stamp in held if chance.random() < chance.choice([0.1, 0.9])]:
            assert held.pop(stamp).eq(stamp).all(), stamp
    assert all(tensor.eq(stamp).all() for stamp, tensor in held.items())


def test_a_message_that_arrives_after_its_workers_are_gone_is_nothing():
    sender = Sender()
    message = sender.message(torch.ones(5000))
    del sender
    gc.collect()
    assert Sender.arrive(message) is None


def test_without_memory_a_batch_goes_another_way():
    sender, limits = Sender(), resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # of a file, also in memory
    try:
        kept = [sender.message({'x': torch.full((50_000,), number)}) for number in range(6)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert sender.writer.not_in_slots == 6
    assert all(sender.arrive(message)['x'].eq(number).all() for number, message in enumerate(kept))


def of_slots():
    """Open descriptors of kinds that slots use; threads of earlier tests open and close others."""
    return open_descriptors('/memfd:') + open_descriptors('pipe:')


def test_nothing_stays_open():
    close_leftovers()
    before = of_slots()
    sender = Sender()
    batch = sender(torch.ones(5000))
    new = of_slots() - before  # the memory and its two maps, the pipe
    assert {name.partition(':')[0]: count for name, count in new.items()} == {'/memfd': 3, 'pipe': 2}
    del sender
    gc.collect()
    kept = of_slots() - before
    assert {name.partition(':')[0]: count for name, count in kept.items()} == {'/memfd': 1}  # the map of the batch
    assert batch.eq(1).all()
    del batch
    gc.collect()
    assert not of_slots() - before


def test_what_cannot_be_pickled_is_an_error_that_says_so():
    with pytest.raises(CollateError, match=r'cannot be pickled.*num_workers=0'):
        Sender().message({'f': lambda: None})


@pytest.mark.parametrize(
    ('method', 'persistent'),
    [
        ('fork', False),
        ('fork', True),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in [('spawn', False), ('spawn', True), ('forkserver', True)]
        ),
    ],
)
@pytest.mark.once
def test_batches_of_a_loader_that_are_kept_over_epochs(make_dataset, method, persistent):
    data = StreamingDataset(local=str(make_dataset('data', 60)), batch_size=10, shuffle=False)
    loader = StreamingDataLoader(
        data, num_workers=2, multiprocessing_context=method, persistent_workers=persistent, collate_fn=stamped
    )
    kept = [batch for _ in range(3) for batch in loader]
    for number, batch in enumerate(kept):
        assert batch.eq(number % 6 * 10).all()


def stamped(rows):
    return torch.full((3000,), rows[0]['id'])


def without_slots(rows):
    return torch.eye(2).to_sparse(), ['x' * 50_000 for _ in rows]


def note_end(folder, worker):
    multiprocessing.util.Finalize(None, (folder / f'end{worker}').touch, exitpriority=0)  # not if it is terminated


@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.once
def test_workers_end_by_themselves_while_they_send_large_batches(make_dataset, tmp_path, persistent, monkeypatch):
    monkeypatch.setattr('torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL', 60)
    data = StreamingDataset(local=str(make_dataset('data', 60)), batch_size=10, shuffle=False)
    loader = StreamingDataLoader(
        data,
        num_workers=2,
        collate_fn=without_slots,
        persistent_workers=persistent,
        worker_init_fn=functools.partial(note_end, tmp_path),
    )
    batches = iter(loader)
    next(batches)
    batches.close()
    del loader, batches
    gc.collect()
    assert sorted(path.name for path in tmp_path.glob('end*')) == ['end0', 'end1']


KILLED = """
import os, signal, sys, torch
from headrace import StreamingDataLoader, StreamingDataset

data = StreamingDataset(local=sys.argv[1], batch_size=2)
loader = StreamingDataLoader(data, num_workers=2, collate_fn=lambda rows: torch.ones(100_000))
for number, batch in enumerate(loader):
    if number == 2:
        worker = torch.multiprocessing.active_children()[0]
        os.kill(worker.pid, signal.SIGKILL)
"""


@pytest.mark.once
def test_a_killed_worker_is_noticed(make_dataset):
    program = [sys.executable, '-c', KILLED, str(make_dataset('data', 400))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1
    assert 'killed by signal' in done.stderr or 'exited unexpectedly' in done.stderr


def test_they_are_not_copied():
    sender = Sender()
    for _ in range(20):  # in any slot
        array = sender.writer.array(100_000)
        array[:] = 1
        arrived = sender({'image': torch.from_numpy(array), 'label': torch.arange(9)})
        assert arrived['image'].eq(1).all()
        assert arrived['label'].tolist() == [*range(9)]
        array[7] = 2
        assert arrived['image'][7] == 2
    assert sender.writer.not_in_slots == 0


def test_views_of_them_arrive_with_their_strides():
    sender = Sender()
    array = sender.writer.array(4 * 50 * 60 * 3).reshape(4, 50, 60, 3)
    array[:] = np.arange(array.size, dtype=np.uint32).astype(np.uint8).reshape(array.shape)
    before = array.copy()
    views = torch.from_numpy(array), torch.from_numpy(array).permute(0, 3, 1, 2), torch.from_numpy(array[1:3, ::2])
    arrived = sender(views)
    assert arrived[1].is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(arrived[0], before)
    assert np.array_equal(arrived[1], before.transpose(0, 3, 1, 2))
    assert np.array_equal(arrived[2], before[1:3, ::2])


@pytest.mark.parametrize('seed', range(3))
def test_random_batches_held_at_random_keep_their_values(seed):
    chance, sender, held = random.Random(seed), Sender(), []
    for number in range(40):
        parts = []
        for _ in range(chance.randrange(4)):
            size = chance.choice([500, 70_000, 100_000 + 1000 * number])
            array = sender.writer.array(size)
            array = np.empty(size, np.uint8) if array is None else array
            array[:] = chance.randrange(256)
            parts.append(torch.from_numpy(array)[chance.randrange(2) :])
        if chance.random() < 0.2:  # the batch could not be read
            sender.writer.drop()
            continue
        parts.append(torch.full((chance.choice([3, 3000, 20_000]),), number))
        expected = [part.clone() for part in parts]
        held.append((sender(parts), expected))
        while held and chance.random() < 0.6:
            arrived, expected = held.pop(chance.randrange(len(held)))
            assert all(map(torch.equal, arrived, expected))
    assert all(torch.equal(*pair) for arrived, expected in held for pair in zip(arrived, expected, strict=True))


def test_batches_that_could_not_be_read_cost_no_slot():
    sender = Sender()
    for _ in range(100):
        assert sender.writer.array(100_000) is not None
        sender.writer.drop()
        sender.writer.array(100_000)
        with pytest.raises(CollateError):
            sender.writer.pack(lambda: 0)
    before = sender.writer.not_in_slots
    assert sender(torch.ones(100_000)).eq(1).all()
    assert sender.writer.not_in_slots == before


def test_a_trainer_that_keeps_all_batches_gets_copies():
    sender, kept = Sender(), []
    for number in range(20):
        array = sender.writer.array(100_000)
        array = np.empty(100_000, np.uint8) if array is None else array
        array[:] = number
        kept.append(sender(torch.from_numpy(array)))
    assert sender.writer.not_in_slots > 0
    assert all(tensor.eq(number).all() for number, tensor in enumerate(kept))


def test_a_value_that_slots_cannot_hold_goes_another_way():
    sender = Sender()
    array = sender.writer.array(100_000)
    array[:] = 5
    arrived = sender([torch.from_numpy(array), torch.ones(3, requires_grad=True)])
    assert arrived[0].eq(5).all()
    assert sender.writer.not_in_slots == 1
    sender.writer.array(100_000)[:] = 6  # the slot is free again, and the batch a copy
    assert arrived[0].eq(5).all()


def child_reads(tensor, go, answer):
    go.wait()
    answer.put(bool(tensor.eq(1).all()))


def test_a_slot_that_a_forked_child_shares_waits_for_the_child():
    context = multiprocessing.get_context('fork')
    sender = Sender()
    batch = sender(torch.ones(5000))
    place = batch.data_ptr()
    go, answer = context.Event(), context.SimpleQueue()
    child = context.Process(target=child_reads, args=(batch, go, answer))
    child.start()
    del batch
    child._args = ()
    gc.collect()
    others = [sender(torch.full((5000,), 2.0)) for _ in range(3)]
    assert place not in [other.data_ptr() for other in others]
    go.set()
    assert answer.get()
    child.join()
    del others
    gc.collect()
    fresh = [sender(torch.full((5000,), 3.0)) for _ in range(4)]
    assert place in [tensor.data_ptr() for tensor in fresh]
