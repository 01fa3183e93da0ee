"""The ring of slots, of which a forked child may keep one."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.util
import os

import pytest
import torch

from tests.support.programs.slot_senders import Sender

pytestmark = pytest.mark.skipif(not hasattr(os, 'memfd_create'), reason='needs Linux')


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
