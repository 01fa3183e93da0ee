"""Senders of batches through slots."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

from headrace.dataset.workers.slots import SlotRings, _Inline


class Sender:
    """A worker and its trainer in one process."""

    def __init__(self, prefetched: int = 2) -> None:
        self.rings = SlotRings(1)
        self.writer = self.rings.writer(0, prefetched=prefetched)
        self.not_in_slots = 0

    def __call__(self, value):
        return self.arrive(self.message(value))

    def message(self, value) -> bytes:
        packed = self.writer.pack(value)
        self.not_in_slots += isinstance(packed, _Inline) and len(packed.data) > 2048
        return bytes(ForkingPickler.dumps((7, packed)))

    @staticmethod
    def arrive(message: bytes):
        number, value = ForkingPickler.loads(message)
        assert number == 7
        return value
