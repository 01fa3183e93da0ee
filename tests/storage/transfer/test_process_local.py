"""What each process makes for itself, where threads use and forget it."""

from __future__ import annotations

import sys
import threading
import time

from headrace.storage.transfer.process_local import PerProcess


class Thing:
    """Something to be made."""


def test_only_what_is_named_is_forgotten():
    value = PerProcess(Thing)
    first = value.get()
    value.forget(first)
    second = value.get()
    assert second is not first
    value.forget(first)
    assert value.get() is second
    value.forget()
    assert not value.is_made


def test_threads_get_what_was_made_while_others_forget_it():
    value = PerProcess(Thing)
    wrong: list[object] = []
    end = time.monotonic() + 1

    def use():
        while time.monotonic() < end:
            made = value.get()
            if not isinstance(made, Thing):
                wrong.append(made)
            value.forget(made)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
