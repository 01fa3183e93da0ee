"""Arrays that a worker makes in the slot of its next batch, so that nothing copies them."""

from __future__ import annotations

import os
import random
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

from headrace.dataset.workers.slots import SlotRings
from headrace.errors import CollateError

pytestmark = pytest.mark.skipif(not hasattr(os, 'memfd_create'), reason='needs Linux')


class Sender:
    """A worker and its trainer in one process."""

    def __init__(self, prefetched=2):
        self.rings = SlotRings(1)
        self.writer = self.rings.writer(0, prefetched=prefetched)

    def __call__(self, value):
        return ForkingPickler.loads(bytes(ForkingPickler.dumps(self.writer.pack(value))))


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
