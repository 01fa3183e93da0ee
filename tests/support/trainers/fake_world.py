"""One rank of a world whose other ranks do not exist, for what needs a process group only to say its rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_world(rank: int, world_size: int) -> Iterator[None]:
    torch.distributed.init_process_group('fake', rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
