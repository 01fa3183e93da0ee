"""The history of a run by its record: segments between kills and resumes, steps, and their samples by the plan."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.dataset import StreamingDataLoader
from headrace.errors import ConfigError
from headrace.metrics import StepReport, explain_step
from headrace.mixing import LoaderConfig, build_loader, load_config
from headrace.order import BatchPlan, SampleUse, Topology, next_use
from headrace.watching.record import RECORD, read_record

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of a run, as `StreamingDataset(decisions=...)` takes them in a list; a record has each once."""

    last: str | None  # The digest of the last one; None: there are none.
    known: Mapping[str, Mapping[str, Any]] = field(repr=False)  # The record's entries, by digest.

    def __iter__(self) -> Iterator[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        digest = self.last
        while digest is not None and digest in self.known:
            entry = self.known[digest]
            found.append({key: entry[key] for key in ('at', 'what', 'by', 'digest')})
            digest = entry['after']
        return reversed(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPass:
    """A pass over a loader's data, from a step on."""

    loader: str
    """The loader's name; a single one is ''."""
    first_step: int
    """The step of its first batch."""
    epoch: int
    sample: int
    """The position in the epoch at which it begins."""
    config: Mapping[str, Any] | None
    """The loader's configuration as YAML would have it; None: YAML cannot describe it."""
    decisions: Decisions
    """The run's decisions, as they were known at its beginning."""
    state_before: Mapping[str, Any]
    """The state of a checkpoint at its beginning, without decisions."""
    mixture: str
    """Fingerprint of the data, the mixture and the order."""
    proportions: Mapping[str, float]
    """Each stream's share of an epoch."""

    @property
    def state(self) -> dict[str, Any]:
        """The state of a checkpoint at its beginning."""
        pinned = self.state_before['config']
        if decisions := list(self.decisions):
            pinned = {**pinned, 'decisions': decisions}
        return {**self.state_before, 'config': json.dumps(pinned, sort_keys=True, separators=(',', ':'))}


@dataclass(slots=True, kw_only=True)
class Segment:
    """A part of a run by one set of processes: from its start or a resume on."""

    number: int
    """Counted from 1."""
    first_step: int
    time: float
    """Seconds since 1970."""
    topology: Mapping[str, int]
    """world_size, num_nodes and replication."""
    versions: Mapping[str, str]
    code: Mapping[str, str]
    reached: int
    """Steps that it is known to have done, counted through the run. A killed one may have done more."""
    has_ended: bool = False
    """Whether it ended by itself."""
    passes: list[RecordedPass] = field(default_factory=list[RecordedPass])
    checkpoints: list[int] = field(default_factory=list[int])
    """The steps that were trained when each was saved."""

    def pass_of(self, step: int, loader: str) -> RecordedPass | None:
        """The pass of a loader that a step is in; a step that is not reached is counted on from the last one."""
        found = [one for one in self.passes if one.loader == loader and one.first_step <= step]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step in one segment."""

    step: int
    segment: Segment
    place: RecordedPass
    is_sure: bool
    """Whether the record says that it was trained; a killed segment may have been before the step, or after it."""
    is_kept: bool
    """Whether the run's last weights have it: later segments resumed from checkpoints after it."""


class RunHistory:
    """The record in a run's folder, for reading.

    Args:
        segments: the segments in their order.
        damaged: number of the record's lines that were ignored.
    """

    def __init__(self, segments: Sequence[Segment], damaged: int = 0) -> None:
        self.segments = tuple(segments)
        self.damaged = damaged

    @classmethod
    def read(cls, folder: str | Path) -> RunHistory:
        """Read the record in a run's folder.

        Raises:
            ConfigError: there is none, it cannot be read, or a later version of headrace wrote it.
        """
        entries, damaged = read_record(Path(folder))
        segments: list[Segment] = []
        shared: dict[str, dict[str, Any]] = {}
        decisions: dict[str, dict[str, Any]] = {}
        for entry in entries:
            if entry['kind'] == 'segment':
                if entry['format'] > _FORMAT:
                    raise ConfigError(
                        f'This version of headrace reads records of format {_FORMAT}, but {Path(folder) / RECORD} has '
                        f'format {entry["format"]}. Read it with the version that wrote it.'
                    )
                segments.append(_segment(entry, len(segments) + 1))
            elif entry['kind'] in ('config', 'mixture'):
                shared[entry['id']] = entry
            elif entry['kind'] == 'decision':
                decisions[entry['digest']] = entry
            elif segments:
                _extend(segments[-1], entry, shared, decisions)
        return cls(segments, damaged)

    def decisions(self, loader: str = '') -> list[dict[str, Any]]:
        """The decisions of a run's last weights, as `StreamingDataset(decisions=...)` takes them."""
        passes = [one for segment, _ in self.kept() for one in segment.passes if one.loader == loader]
        return list(passes[-1].decisions) if passes else []

    @property
    def loaders(self) -> list[str]:
        """Names of the training loaders."""
        return list(dict.fromkeys(one.loader for segment in self.segments for one in segment.passes))

    def kept(self) -> list[tuple[Segment, int]]:
        """The segments that the run's last weights come from, in their order, each with the step that it counts to.

        The last one counts to the step that it reached.
        """
        found: list[tuple[Segment, int]] = []
        for segment in reversed(self.segments):
            end = found[-1][0].first_step if found else segment.reached
            # The checkpoint of a resume is of the last segment that got as far.
            if not found or (segment.first_step < end and (segment.reached >= end or not segment.has_ended)):
                found.append((segment, end))
            if not found[-1][0].first_step:
                break
        return found[::-1]

    def trained(self, step: int, loader: str = '') -> list[TrainedStep]:
        """The times that a step was trained, or may have been, or will be if the run continues; in their order.

        Args:
            step: counted from 0 through the run, as the trainer counts.
            loader: which training loader's data.
        """
        last = {segment.number: end for segment, end in self.kept()}
        found: list[TrainedStep] = []
        for segment in self.segments:
            place = segment.pass_of(step, loader) if segment.first_step <= step else None
            is_last = segment is self.segments[-1]
            if place is None or not (step < segment.reached or is_last or not segment.has_ended):
                continue
            found.append(
                TrainedStep(
                    step=step,
                    segment=segment,
                    place=place,
                    is_sure=step < segment.reached,
                    is_kept=segment.number in last and (step < last[segment.number] or is_last),
                )
            )
        return found


def _segment(entry: Mapping[str, Any], number: int) -> Segment:
    return Segment(
        number=number,
        first_step=entry['step'],
        time=entry['time'],
        topology=entry['topology'],
        versions=entry['versions'],
        code=entry['code'],
        reached=entry['step'],
    )


def _extend(
    segment: Segment,
    entry: Mapping[str, Any],
    shared: Mapping[str, Mapping[str, Any]],
    decisions: Mapping[str, Mapping[str, Any]],
) -> None:
    """Add what an entry says of a segment; a pass whose mixture was lost says nothing."""
    segment.reached = max(segment.reached, entry['step'])
    if entry['kind'] == 'end':
        segment.has_ended = True
    elif entry['kind'] == 'checkpoint':
        segment.checkpoints.append(entry['at'])
    elif entry['kind'] == 'pass' and entry['mixture'] in shared and entry['config'] in shared:
        mixture = shared[entry['mixture']]
        state = {
            **mixture['state'],
            'epoch': entry['epoch'],
            'sample_in_epoch': entry['sample'],
            'config': {**mixture['state']['config'], **entry.get('of_position', {})},
        }
        segment.passes.append(
            RecordedPass(
                loader=entry['loader'],
                first_step=entry['first_step'],
                epoch=entry['epoch'],
                sample=entry['sample'],
                config=shared[entry['config']]['config'],
                decisions=Decisions(entry.get('decided'), decisions),
                state_before=state,
                mixture=entry['mixture'],
                proportions=mixture['proportions'],
            )
        )


_EPOCHS = 1000  # looked through for a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """A step of a run, and its samples."""

    trained: TrainedStep
    report: StepReport
    loader: StreamingDataLoader
    """A loader with the data and the topology of then, at the beginning of the step's pass."""
    others: tuple[TrainedStep, ...]
    """The other times that the step was trained, or may have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSeen:
    """A use of a sample in a run."""

    step: int
    segment: int
    """Number of the segment, counted from 1."""
    epoch: int
    position: int
    """In the epoch's sequence."""
    rank: int
    """The rank that gets it; with replication, the first of those that do."""
    row: int
    """The row of that rank's batch."""
    is_past: bool
    """Whether the record says that the step was trained."""


class RecordedRun:
    """A run with a record: its steps and samples.

    Args:
        folder: the run's folder.
        loader: name of the training loader; '' where there is one.
        config: the loader's configuration, if the record holds none: with packing, or a `where` in Python.
        overrides: changes to the configuration of the record, such as ``train.streams.code.local=/data``.

    Raises:
        ConfigError: there is no record; it holds no step; or there are other loaders.
    """

    def __init__(
        self, folder: str | Path, *, loader: str = '', config: LoaderConfig | None = None, overrides: Sequence[str] = ()
    ) -> None:
        self.folder = Path(folder)
        self.history = RunHistory.read(folder)
        self._config, self._overrides = config, tuple(overrides)
        names = self.history.loaders
        if not names:
            raise ConfigError(f'The record in {folder} holds no trained step yet.')
        if loader not in names and not (not loader and len(names) == 1):
            raise ConfigError(f'The run in {folder} has the training loaders {", ".join(names)}, got {loader!r}.')
        self.loader_name = loader if loader in names else names[0]
        self._open = functools.lru_cache(maxsize=4)(self._opened)
        self._passes = {id(one): one for segment in self.history.segments for one in segment.passes}
        self._segments = {segment.number: segment for segment in self.history.segments}

    def loader(self, segment: Segment, place: RecordedPass) -> StreamingDataLoader:
        """A loader with the data and the topology of a segment, at the beginning of a pass.

        Raises:
            ConfigError: the record holds no configuration.
            ResumeError: the data or the configuration are not those of the run.
        """
        return self._open(segment.number, id(place))

    def _opened(self, segment_number: int, place_id: int) -> StreamingDataLoader:
        segment, place = self._segments[segment_number], self._passes[place_id]
        config = self._config
        if config is None and place.config is None:
            raise ConfigError(
                f'The record in {self.folder} cannot describe the data of this run: it packs documents, or selects '
                f'samples by a function. Name its configuration: headrace explain CONFIG --run {self.folder}.'
            )
        if config is None:
            assert place.config is not None
            config = load_config({'train': dict(place.config)}, overrides=self._overrides).train
            assert config is not None
        loader = build_loader(config, topology=Topology(rank=0, **segment.topology))
        loader.load_state_dict(place.state)
        return loader

    def step(self, step: int) -> ExplainedStep:
        """Explain a step: its latest use that the run's weights have, or will have.

        Args:
            step: counted from 0 through the run, as the trainer counts.

        Raises:
            ConfigError: the step is negative, or the record does not reach back to it.
            ResumeError: the data or the configuration are not those of the run.
        """
        times = self.history.trained(step, self.loader_name) if step >= 0 else []
        first = min(segment.first_step for segment in self.history.segments)
        if not times and step >= first:
            last = max(segment.reached for segment in self.history.segments)
            raise ConfigError(
                f'The record in {self.folder} knows the steps below {last}, got --step {step}. The last resume has '
                f'trained no batch yet.'
            )
        if not times:
            raise ConfigError(f'The record in {self.folder} begins with step {first}, got --step {step}.')
        chosen = next((one for one in reversed(times) if one.is_kept), times[-1])
        loader = self.loader(chosen.segment, chosen.place)
        place = chosen.place
        report = explain_step(loader, step, place=(place.epoch, place.sample), first_step=place.first_step)
        # A step that no segment is known to have reached has no other times.
        others = tuple(one for one in times if one is not chosen and (one.is_sure or chosen.is_sure))
        return ExplainedStep(trained=chosen, report=report, loader=loader, others=others)

    @property
    def last_loader(self) -> StreamingDataLoader:
        """The loader of the last pass, whose sample ids `uses` takes."""
        segment = next(s for s in reversed(self.history.segments) if s.pass_of(s.reached, self.loader_name))
        place = segment.pass_of(segment.reached, self.loader_name)
        assert place is not None
        return self.loader(segment, place)

    def uses(self, sample_id: int) -> Iterator[SampleSeen]:
        """The uses of a sample in the steps that the run's weights have, then the first use afterwards.

        Args:
            sample_id: a global sample id of the run's last data.

        Raises:
            ConfigError: there is no such sample; or the run packs documents.
        """
        last = self.last_loader.dataset
        if last.is_packed:
            raise ConfigError(
                f'--sample needs a run without `packing`, got {sample_id}: the sequence of a document is not known '
                f'before it is tokenised. Use --step.'
            )
        if not 0 <= sample_id < last.num_samples:
            raise ConfigError(f'--sample must be an id in [0, {last.num_samples}), got {sample_id}.')
        stream = int(last.mixture.sample_offsets.searchsorted(sample_id, 'right')) - 1
        name = last.mixture.streams[stream].name
        row = sample_id - int(last.mixture.sample_offsets[stream])
        kept = self.history.kept()
        for segment, end in kept:
            passes = [one for one in segment.passes if one.loader == self.loader_name and one.first_step < end]
            ends = [*(one.first_step for one in passes[1:]), end][: len(passes)]  # a resume may have no pass yet
            for one, after in zip(passes, ends, strict=True):
                loader = self.loader(segment, one)
                found = _id_in(loader, name, row)
                if found is not None:
                    plan = loader.plan(one.epoch, one.sample)
                    yield from _uses(plan, found, one.first_step, 0, after - one.first_step, segment.number)
        for segment, end in reversed(kept):
            place = segment.pass_of(end, self.loader_name)
            if place is not None:  # a resume may have no pass yet, and continues with that of the checkpoint
                yield from self._next_use(segment, place, end, name, row)
                return

    def _next_use(
        self, segment: Segment, place: RecordedPass, reached: int, stream: str, row: int
    ) -> Iterator[SampleSeen]:
        """The first use from a step on, if the segment's pass and later ones continue."""
        loader = self.loader(segment, place)
        sample_id = _id_in(loader, stream, row)
        if sample_id is None:
            return
        plan = loader.plan(place.epoch, place.sample)
        number = reached - place.first_step
        use = next_use(
            lambda epoch: plan if epoch == place.epoch else loader.plan(epoch),
            sample_id,
            epoch=place.epoch,
            batch=min(number, plan.num_batches),
            epochs=_EPOCHS,
        )
        if use is not None:
            first = place.first_step
            for epoch in range(place.epoch, use.epoch):
                first += (plan if epoch == place.epoch else loader.plan(epoch)).num_batches
            yield _seen(use, first + use.batch, segment.number, is_past=False)

    def to_json(self) -> dict[str, Any]:
        """The segments as plain values."""
        kept = {segment.number: end for segment, end in self.history.kept()}
        return {
            'damaged_lines': self.history.damaged,
            'segments': [
                {
                    'number': segment.number,
                    'first_step': segment.first_step,
                    'reached': segment.reached,
                    'kept_to': kept.get(segment.number),
                    'time': segment.time,
                    'topology': dict(segment.topology),
                    'versions': dict(segment.versions),
                    'code': dict(segment.code),
                    'checkpoints': segment.checkpoints,
                    'mixtures': list(dict.fromkeys(one.mixture for one in segment.passes)),
                    'proportions': dict(segment.passes[-1].proportions) if segment.passes else {},
                    'decisions': list(segment.passes[-1].decisions) if segment.passes else [],
                }
                for segment in self.history.segments
            ],
        }


def _id_in(loader: StreamingDataLoader, stream: str, row: int) -> int | None:
    """The id of a stream's sample in a loader's data; None: it is not there."""
    mixture = loader.dataset.mixture
    for number, one in enumerate(mixture.streams):
        if one.name == stream and row < one.size:
            return int(mixture.sample_offsets[number]) + row
    return None


def _seen(use: SampleUse, step: int, segment: int, *, is_past: bool) -> SampleSeen:
    where = {'epoch': use.epoch, 'position': use.position, 'rank': use.rank, 'row': use.row}
    return SampleSeen(step=step, segment=segment, **where, is_past=is_past)


def _uses(plan: BatchPlan, sample_id: int, first_step: int, batch: int, end: int, segment: int) -> Iterator[SampleSeen]:
    while batch < end:
        use = next_use(lambda _: plan, sample_id, epoch=plan.order.epoch, batch=batch, epochs=1)
        if use is None or use.batch >= end:
            return
        yield _seen(use, first_step + use.batch, segment, is_past=True)
        batch = use.batch + 1
