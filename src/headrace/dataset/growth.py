"""What a dataset reads: its opened streams and its run, opened again where data have grown."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.dataset.batch_keys import LossWeight, loss_weights
from headrace.dataset.cache_files import EpochPermutations
from headrace.dataset.reading.batch_reader import Weigh
from headrace.dataset.streams.open_streams import OpenedStream, open_streams
from headrace.dataset.streams.stream import Stream, StreamDefaults
from headrace.format.index import Generation
from headrace.order import ResumeState, Run
from headrace.selection.costs import DatasetCosts
from headrace.storage.cache.peers import Peers


@dataclass(kw_only=True)
class Opener:
    """The arguments with which a dataset's streams are opened, and what was opened last."""

    given: Sequence[Stream]
    defaults: StreamDefaults
    cache_limit: int | None
    peers: Peers | None
    allow_unsafe_types: bool
    has_costs: bool
    loss_weight: LossWeight | None
    run: Mapping[str, Any]
    """Arguments of `Run`, beside those that follow from the streams."""
    streams: list[OpenedStream] = field(init=False, default_factory=list[OpenedStream])
    weigh: Weigh | None = field(init=False, default=None)
    """Gives the weights of a batch's rows, under ``loss_weight``."""

    def __post_init__(self) -> None:
        self._unopened = [copy.copy(stream) for stream in self.given]  # which do not show what was opened

    def open(self, generations: Mapping[str, Generation] | None = None) -> Run:
        """Open the streams, now or again; returns a new run over them.

        Args:
            generations: see `open_streams`.
        """
        self.streams = open_streams(
            self._unopened if self.streams else self.given,
            self.defaults,
            cache_limit=self.cache_limit,
            peers=self.peers,
            allow_unsafe_types=self.allow_unsafe_types,
            has_costs=self.has_costs,
            again=self.streams,
            generations=generations,
        )
        all_costs = [stream.costs for stream in self.streams if stream.costs is not None]
        costs = DatasetCosts(all_costs) if all_costs else None
        if self.loss_weight is not None:
            self.weigh = partial(loss_weights, costs=costs if self.loss_weight == 'cost' else None)
        permutations = EpochPermutations.beside([s.folder for s in self.streams if not s.is_local])
        return Run([stream.size() for stream in self.streams], **self.run, load=permutations.load, costs=costs)

    def grown_since(self, state: ResumeState) -> dict[str, Generation]:
        """By name, the generations that the state's streams were of, where these now are of another one."""
        now = {stream.name: stream.fingerprint for stream in self.streams}
        then = {stream['name']: stream['fingerprint'] for stream in state.pinned.get('streams', ())}
        if all(now.get(name) == fingerprint for name, fingerprint in then.items()):
            return {}
        found = {str(name): Generation.of(then[name]) for name in now if name in then}
        return {name: generation for name, generation in found.items() if generation is not None}
