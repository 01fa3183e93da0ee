"""Compares cached indexes with their remotes at the start of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from headrace.dataset.detect import detect_topology
from headrace.errors import ConfigError, TopologyError
from headrace.storage.cache.index_fetch import process_start

__all__ = ['OnChangedData', 'first_ask', 'parse_on_changed_data']

OnChangedData: TypeAlias = Literal['refresh', 'refuse']

_asked: Final = set[Path]()
"""Folders of the streams that this process has opened."""
os.register_at_fork(after_in_child=_asked.clear)


def parse_on_changed_data(value: str | None) -> OnChangedData | None:
    """Check a value of `on_changed_data`; None: not given."""
    if value is None or value == 'refresh' or value == 'refuse':  # noqa: PLR1714 - pyright narrows these only
        return value
    raise ConfigError(f"`on_changed_data` must be 'refresh' or 'refuse', but is {value!r}.")


def first_ask(folders: Sequence[Path]) -> float:
    """The time, as of `time.time`, from which on an answer to another process of this machine is recent enough.

    The ranks of a node start together, so one of them asks for all. A single process asks by itself, and so does a rank
    that opens a folder again.
    """
    is_first = _asked.isdisjoint(folders)
    _asked.update(folders)
    try:
        topology = detect_topology()
    except TopologyError:  # a later use of the topology raises it
        return time.time()
    ranks_here = topology.world_size // topology.num_nodes
    return process_start() if is_first and ranks_here > 1 else time.time()
