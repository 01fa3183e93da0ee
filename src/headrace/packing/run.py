"""A run through packed sequences, over a run through the documents that they are made of."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ConfigError, ResumeError, TopologyError
from headrace.order import OrderConfig, Plan, ResumeState, Run, StreamSize, documents_skip
from headrace.order.config import is_count
from headrace.order.pinned import are_ranges, short
from headrace.order.run import RunArguments
from headrace.order.skip import merged, without
from headrace.order.topology import World
from headrace.packing.document_order import (
    DocumentOrder,
    EarlierMixture,
    StreamLanes,
    check_streams,
    earlier_from_json,
    earlier_order,
)
from headrace.packing.lanes import Lanes
from headrace.packing.settings import Packing, lanes_error
from headrace.packing.tokenizers import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.order import BatchPlan, BatchSpec, Mixture, MixtureChange
    from headrace.order.skip import Ranges, Skip
    from headrace.packing.whole import WholePass

_ENDLESS = 10**12  # sequences of an endless epoch: the most that a mixture may have


def _of_documents(packing: Packing) -> dict[str, Any]:
    names = ('token_dtype', 'bos_token_id', 'eos_token_id')
    return {
        **{name: getattr(packing, name) for name in names},
        'column': packing.document_column,
        'tokenizer': fingerprint(packing.tokenizer),
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRun(Run):
    """A run whose positions are sequences: sequence n is the next one of lane n modulo the lanes.

    The documents' own run, and the lanes, decide the content of each. `whole` has those of the only pass, if it is
    packed whole. `skip` has ranges of sequences, `skipped_documents` of documents' ids.
    """

    documents: Run
    packing: Packing
    packings: Sequence[Packing]
    """Of each stream."""
    of_documents: Mapping[str, Any]
    """The settings that decide the tokens of a document, for a checkpoint."""
    of_streams: Mapping[str, Mapping[str, Any]]
    """The same by stream name, where a stream has other settings."""
    skipped_documents: Ranges = ()
    whole: WholePass | None = None
    earlier: tuple[EarlierMixture, ...] = ()
    """Earlier mixtures of the documents that lanes still need."""
    known_lanes: Lanes | None = None
    """The lanes, from the first pass or from a resumed state on; only the training process has them."""
    replay: Callable[[Lanes, int], dict[int, int]] | None = None
    """Moves lanes to a sequence of the run, and returns the documents that each has placed by then."""

    @classmethod
    def over(
        cls,
        documents: Run,
        packing: Packing,
        packings: Sequence[Packing],
        skip: Skip,
        skipped_documents: Ranges = (),
        on_mixture_change: MixtureChange = 'refuse',
        whole: WholePass | None = None,
        replay: Callable[[Lanes, int], dict[int, int]] | None = None,
    ) -> PackedRun:
        """A packed run from its beginning. ConfigError: the lanes do not suit the documents, or the epoch."""
        size = (packing.sequence_count or _ENDLESS) if whole is None else len(whole)
        streams = (StreamSize(name='sequences', shard_sizes=np.array([size])),)
        order = OrderConfig(algorithm='native', shuffle=False, num_canonical_nodes=1)
        arguments = RunArguments(streams=streams, order=order, skip=skip, on_mixture_change=on_mixture_change)
        of_documents = _of_documents(packing)
        named = zip(documents.mixture.streams, packings, strict=True)
        of_streams = {stream.name: _of_documents(settings) for stream, settings in named if settings is not packing}
        run = cls(
            settings=arguments,
            mixture=arguments.mix(order.seed),
            documents=documents,
            packing=packing,
            packings=packings,
            of_documents=of_documents,
            of_streams={name: settings for name, settings in of_streams.items() if settings != of_documents},
            skipped_documents=skipped_documents,
            whole=whole,
            replay=replay,
        )
        count = packing.lanes if whole is None else 1
        return run if count is None else replace(run, known_lanes=run._make_lanes(count))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), 'known_lanes': None, 'replay': None}

    @property
    def lanes(self) -> Lanes:
        """The lanes of a run that has begun, in the training process."""
        assert self.known_lanes is not None
        return self.known_lanes

    def lanes_for(self, global_batch_size: int) -> Lanes:
        """The lanes; before the first pass, those that a pass with such batches would make."""
        return self._make_lanes(global_batch_size) if self.known_lanes is None else self.known_lanes

    @property
    def lane_count(self) -> int | None:
        return None if self.known_lanes is None else self.known_lanes.count

    def _make_lanes(self, count: int) -> Lanes:
        documents = self.documents.mixture.epoch_size
        if count > documents:
            raise ConfigError(
                f'Packing needs a document for each lane at least, but there are {count} lanes and '
                f'{documents} samples. Set `lanes` to a divisor of {count} that is at most as large and a '
                f'multiple of the ranks.'
            )
        size = self.packing.sequence_count
        if size is not None and size % count:
            raise ConfigError(lanes_error(size, count).message(size))
        mixture, config = self.documents.mixture, self.documents.config(World(1, count))
        if self.packing.weights_count == 'tokens':
            return Lanes(self.packing, StreamLanes(count, mixture, config), self.skipped_documents)
        order = DocumentOrder(
            count,
            self.earlier,
            begin=(mixture.takeover.epoch, mixture.takeover.sample),
            size=documents,
            order=partial(self.documents.order, world=World(1, count)),
            mixture=mixture,
            config=config,
        )
        return Lanes(self.packing, order, self.skipped_documents)

    def with_defaults(self, world: World) -> PackedRun:
        """As `Run.with_defaults`; the number of lanes is final, too."""
        count = self.lane_count or world.global_batch_size
        documents = self.documents.with_defaults(World(world.nodes, count))
        run = super().with_defaults(world)
        if documents is not self.documents:
            run = replace(run, documents=documents)
        if run.known_lanes is None and count is not None:
            run = replace(run, known_lanes=run._make_lanes(count))
        return run

    def plan(self, epoch: int, start: int, batches: BatchSpec) -> BatchPlan:
        """As `Run.plan`, in sequences. ConfigError, too: the lanes do not suit the documents, or the epoch."""
        if epoch and self.packing.sequences_per_epoch is None:
            raise ConfigError(
                f'packing without `sequences_per_epoch` has one epoch, which does not end, got epoch {epoch}: a pass '
                f'was left and another one began. Continue from a checkpoint, or set `sequences_per_epoch`.'
            )
        plan = super().plan(epoch, start, batches)
        lanes = self.lanes_for(batches.global_batch_size)
        replicas = batches.topology.replicas
        if self.whole is None and lanes.count % replicas:
            if batches.uneven is None or lanes.count != batches.global_batch_size or start % lanes.count:
                raise TopologyError(
                    f'the ranks that share a global batch must divide the {lanes.count} lanes of the packing, got '
                    f'{replicas}. The lanes are those that the run began with; continue with another number of ranks. '
                    f'`uneven` deals lanes to any ranks, if each batch is the next sequence of each lane, but batches '
                    f'of {batches.global_batch_size} begin at sequence {start}.'
                )
            assert isinstance(plan, Plan)
            plan = replace(plan, by_row=True)
        ranges = self._skipped_ranges(self.mixture, batches) or ()
        if any(bound % lanes.count for bounds in ranges for bound in bounds):
            listed = ', '.join(f'[{begin}, {end}]' for begin, end in ranges)
            raise ConfigError(
                f'with packing, ranges of skip begin and end at multiples of the {lanes.count} lanes, of which each '
                f'rank has its own, got {listed} in sequences of the run. Widen them to such multiples.'
            )
        return plan

    def state(self, epoch: int, sample: int, world: World, batches: BatchSpec | None = None) -> ResumeState:
        """As `Run.state`, with the order of the documents, the packing and the lane states."""
        rows = super().state(epoch, sample, world._replace(nodes=1), batches)
        count = self.lane_count
        documents = self.documents.state(0, 0, World(world.nodes, count or world.global_batch_size))
        pinned = {**documents.pinned, 'packing': self._pinned(count), 'documents': documents.epoch_size}
        if 'skip' in rows.pinned:
            pinned['skip'] = rows.pinned['skip']
        if self.earlier:
            pinned['earlier'] = [mixture.to_json() for mixture in self.earlier]
        if self.skipped_documents:
            pinned['skipped_documents'] = self.skipped_documents
        if self.known_lanes is not None:
            pinned['cuts'] = self.known_lanes.states_at(self._row(epoch, sample))
        text = json.dumps(pinned, sort_keys=True, separators=(',', ':'))
        return replace(documents, epoch=epoch, sample_in_epoch=sample, epoch_size=rows.epoch_size, config=text)

    def _check_skipped_documents(self, then: Any) -> None:
        if not are_ranges(then):
            raise ResumeError(
                f'skipped_documents of a packed run are pairs of ids, got {short(then)}. The checkpoint is damaged.'
            )
        back = without(merged((begin, end) for begin, end in then), self.skipped_documents)
        if back and self.settings.on_mixture_change == 'refuse':
            raise ResumeError(
                f'the run of the checkpoint leaves documents out that this one does not: {documents_skip(back)}. Put '
                f"them into skip, or pass on_mixture_change='continue' to train on them."
            )

    def _check_decisions(self, config: OrderConfig) -> None:
        raise ConfigError(
            f'proportions cannot be decided in a run with `packing`, in {config.algorithm} order: its lanes hold '
            f"documents of before. Resume from a checkpoint with other weights and on_mixture_change='continue'."
        )

    def _row(self, epoch: int, sample: int) -> int:
        return epoch * self.mixture.epoch_size + sample

    def _pinned(self, lanes: int | None) -> dict[str, Any]:
        return {
            **{name: getattr(self.packing, name) for name in ('sequence_length', 'method', 'window')},
            **self.of_documents,
            'lanes': lanes,
            **({} if self.packing.weights_count == 'documents' else {'weights_count': self.packing.weights_count}),
            **({} if self.whole is None else {'whole': True}),
            **({'streams': self.of_streams} if self.of_streams else {}),
        }

    def resumed(
        self, state: ResumeState, world: World, *, may_change_mixture: bool = False
    ) -> tuple[PackedRun, tuple[int, int]]:
        """As `Run.resumed`. ResumeError, too: the state's sequences were packed differently, or not at all."""
        pinned = state.pinned
        then = pinned.pop('packing', None)
        if not isinstance(then, dict) or state.version is None:
            raise ResumeError(
                'a run with packing continues from a checkpoint that was taken with packing, got a position in samples '
                'that were not packed. Remove `packing`, or start a new run.'
            )
        lane_states, skip, size = pinned.pop('cuts', {}), pinned.pop('skip', ()), pinned.pop('documents', None)
        self._check_skipped_documents(pinned.pop('skipped_documents', []))
        count = then.get('lanes')
        if not (count is None or is_count(count, 1, _ENDLESS)) or not is_count(size, count or 1, _ENDLESS):
            raise ResumeError(
                f'a packed run has lanes, and a document for each lane at least, got {short(count)} and '
                f'{short(size)}. The checkpoint is damaged.'
            )
        now = self._pinned(self.packing.lanes or count)
        now['sequences_per_epoch'], then['sequences_per_epoch'] = self.mixture.epoch_size, state.epoch_size
        for packing in (then, now):
            packing.setdefault('weights_count', 'documents')
        self._name_streams(then, now, pinned)
        differing = [
            f'{name}: {short(then.get(name))} in the checkpoint, {short(now.get(name))} now'
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]
        if differing:
            raise ResumeError(
                f'a run continues only with the packing that it began with; different are {"; ".join(differing)}. '
                f'Restore them, or start a new run.'
            )
        begin = state.takeover
        earlier = earlier_from_json(
            pinned.pop('earlier', []),
            pinned,
            nodes=state.num_canonical_nodes,
            lanes=count or 1,
            begin=(begin.epoch, begin.sample),
        )
        text = json.dumps(pinned, sort_keys=True, separators=(',', ':'))
        documents = replace(state, epoch=begin.epoch, sample_in_epoch=begin.sample, epoch_size=size, config=text)
        lane_states = lane_states if isinstance(lane_states, dict) else {'': lane_states}
        changed = self.documents.changed_mixture(documents, World(world.nodes, count))
        if changed is not None and count is not None:
            row = self._row(state.epoch, state.sample_in_epoch)
            documents, lane_states, earlier = self._take_over(documents, *changed, earlier, count, lane_states, row)
        of_documents, _ = self.documents.resumed(documents, World(world.nodes, count))
        rows = ResumeState.of(
            self.config(), self.mixture, epoch=state.epoch, sample_in_epoch=state.sample_in_epoch, skip=skip
        )
        rows, world = replace(rows, epoch_size=state.epoch_size), world._replace(nodes=1)
        run, (epoch, sample) = super().resumed(rows, world, may_change_mixture=may_change_mixture)
        run = replace(run, documents=of_documents, earlier=tuple(earlier), known_lanes=None)
        if count is None:
            return run, (epoch, sample)
        lanes = run._make_lanes(count)
        if self.whole is None:
            lanes.load(lane_states, self._row(epoch, sample))
        return replace(run, known_lanes=lanes), (epoch, sample)

    def _name_streams(self, then: dict[str, Any], now: dict[str, Any], pinned: Mapping[str, Any]) -> None:
        """Put what streams have of their own beside the rest, under names for messages, for streams of both runs."""
        of_then, of_now = then.pop('streams', {}), now.pop('streams', {})
        if not isinstance(of_then, dict) or not all(isinstance(settings, dict) for settings in of_then.values()):
            raise ResumeError(f'streams of a packed run are mappings, got {short(of_then)}. The checkpoint is damaged.')
        recorded: Any = pinned.get('streams')
        recorded = [entry.get('name') for entry in recorded if isinstance(entry, dict)] if recorded else []
        for name in (stream.name for stream in self.documents.mixture.streams):
            if name in recorded and (name in of_then or name in of_now):
                for setting in self.of_documents:
                    title = f'{setting} of stream {name!r}'
                    then[title] = of_then.get(name, then).get(setting)
                    now[title] = of_now.get(name, now).get(setting)

    def _take_over(
        self,
        then: ResumeState,
        now: Mixture,
        config: OrderConfig,
        earlier: list[EarlierMixture],
        count: int,
        lane_states: dict[str, Any],
        row: int,
    ) -> tuple[ResumeState, dict[str, Any], list[EarlierMixture]]:
        """The place where another mixture takes over, after all that lanes placed; lanes' states; earlier mixtures.

        It follows from the documents alone, so each rank finds the same. `then` is the documents' state where the
        checkpoint's mixture took over.
        """
        assert self.replay is not None
        pinned, size, begin = then.pinned, then.epoch_size or 1, (then.epoch, then.sample_in_epoch)
        make = partial(DocumentOrder, count, mixture=now, config=config)
        old_pass = partial(earlier_order, pinned, size, now, config)
        old = make(earlier, begin=begin, size=size, order=old_pass)
        lanes = Lanes(self.packing, old)
        lanes.load(lane_states, row)

        def until(end: tuple[int, int]) -> list[EarlierMixture]:
            mixtures = [*earlier, EarlierMixture(begin=begin, end=end, size=size, pinned=pinned)]
            mixtures = mixtures if begin < end else earlier
            order = make(
                mixtures, begin=end, size=now.epoch_size, order=partial(self.documents.order, world=World(1, count))
            )
            return order.without_unneeded(lanes.needed_documents(row).items())

        check_streams(until((_ENDLESS, 0)), now)
        placed = self.replay(lanes, row)
        places = [old.place(lane, number - 1) for lane, number in placed.items() if number]
        end = max([begin, *((place.epoch, place.position + 1) for place in places)])
        return replace(then, epoch=end[0], sample_in_epoch=end[1]), lanes.states_at(row), until(end)
