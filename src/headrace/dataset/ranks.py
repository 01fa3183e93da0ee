"""Agreement of ranks through their process group. Without a group each process is alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils.data import get_worker_info

from headrace.errors import HeadraceError, StorageError
from headrace.errors.redaction import logger_of

_log = logger_of(__name__)

_WAITS = (5, 55)  # seconds for ranks that have not begun to read, before a message and after it


def has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def gathered(value: Any) -> list[Any]:
    """The values of all ranks, in their order. All ranks call it."""
    if not has_group() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather_of_ranks() -> Callable[[Any], list[Any]] | None:
    """A function that gives the values of all ranks through torch.distributed; None if that is not initialized."""
    return gathered if has_group() else None


def decided_by_first(decide: Callable[[], Any]) -> Any:
    """The decision of rank 0, on all ranks; an error of its decision is raised on all of them, too."""
    if not has_group() or dist.get_world_size() == 1:
        return decide()
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = decide()
        except Exception as error:  # the others wait for an answer
            answer[1] = error if isinstance(error, HeadraceError) else StorageError(f'{type(error).__name__}: {error}')
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def meet_in_group(text: str, secret: str) -> tuple[list[str], str] | None:
    """Tell the ranks of the process group a text, and get those of all.

    They need not call it at the same time: it waits up to a minute for others, and goes on without them then.

    Args:
        text: this rank's text.
        secret: is told to all if no rank was here before.

    Returns:
        The texts, and the first rank's secret; None without a group, or in a worker.
    """
    if get_worker_info() is not None or not has_group():  # a worker must not talk in its parent's connection
        return None
    store: Any = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage] - no public name has it
    keys = [f'headrace/peers/{rank}' for rank in range(dist.get_world_size())]
    store.set(keys[dist.get_rank()], text)
    secret = store.compare_set('headrace/peers', '', secret).decode()
    missing = list[int]()
    for seconds, what in zip(_WAITS, ('waits for them', 'leaves them out until the next pass'), strict=True):
        try:
            store.wait(keys, timedelta(seconds=seconds))
            missing.clear()
            break
        except RuntimeError:  # the time is over
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            _log.warning('Ranks %s have not read anything yet: `peers` %s.', missing, what)
    there = [key for rank, key in enumerate(keys) if rank not in missing]
    return [value.decode() for value in store.multi_get(there)], secret
