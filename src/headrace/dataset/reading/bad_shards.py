"""Shards that could not be read, remembered by the process that tried."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ['BadShards']

_MOST = 4096  # some hundred bytes each; a forgotten one is tried once more


class BadShards:
    """Errors of shards, by number: a bad shard is tried once a pass, and not once for each sample."""

    def __init__(self) -> None:
        self._errors: OrderedDict[int, tuple[type[Exception], str]] = OrderedDict()

    def __contains__(self, shard: int) -> bool:
        return shard in self._errors

    def add(self, shard: int, error: Exception) -> None:
        """Remember class and message of an error. The error itself would keep the frames that raised it."""
        self._errors[shard] = type(error), str(error)
        if len(self._errors) > _MOST:
            self._errors.popitem(last=False)

    def check(self, shard: int) -> None:
        """Raise the remembered error of a shard, if there is one."""
        found = self._errors.get(shard)
        if found is not None:
            raise found[0](found[1])

    def clear(self) -> None:
        """Forget all: in the next pass the objects may have been repaired."""
        self._errors.clear()
