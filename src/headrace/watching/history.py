"""The history of a run by its record: segments between kills and resumes, steps, and their samples by the plan."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.dataset import StreamingDataLoader, StreamingDataset
from headrace.dataset.streams.open_streams import OpenedStream
from headrace.dataset.streams.past import PastData, looking_back
from headrace.errors import ConfigError, ResumeError
from headrace.format.index import Generation
from headrace.metrics import StepReport, explain_step
from headrace.metrics.step_report import skip_with
from headrace.mixing import LoaderConfig, build_loader, load_config
from headrace.order import BatchExplanation, BatchPlan, SampleUse, Topology, next_use
from headrace.packing import PackedDataset
from headrace.watching.record import RECORD, read_record

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of a run, as `StreamingDataset(decisions=...)` takes them in a list; a record has each once."""

    last: str | None  # The digest of the last one; None if there are none.
    by_digest: Mapping[str, Mapping[str, Any]] = field(repr=False)  # The record's entries, by digest.

    def __iter__(self) -> Iterator[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        digest = self.last
        while digest is not None and digest in self.by_digest:
            entry = self.by_digest[digest]
            entries.append({key: entry[key] for key in ('at', 'what', 'by', 'digest')})
            digest = entry['after']
        return reversed(entries)


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
        passes = [place for place in self.passes if place.loader == loader and place.first_step <= step]
        return passes[-1] if passes else None


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
        passes = [place for segment, _ in self.kept() for place in segment.passes if place.loader == loader]
        return list(passes[-1].decisions) if passes else []

    @property
    def loaders(self) -> list[str]:
        """Names of the training loaders."""
        return list(dict.fromkeys(place.loader for segment in self.segments for place in segment.passes))

    def kept(self) -> list[tuple[Segment, int]]:
        """The segments that the run's last weights come from, in their order, each with the step that it counts to.

        The last one counts to the step that it reached.
        """
        kept: list[tuple[Segment, int]] = []
        for segment in reversed(self.segments):
            end = kept[-1][0].first_step if kept else segment.reached
            # The checkpoint of a resume is of the last segment that got as far.
            if not kept or (segment.first_step < end and (segment.reached >= end or not segment.has_ended)):
                kept.append((segment, end))
            if not kept[-1][0].first_step:
                break
        return kept[::-1]

    def trained(self, step: int, loader: str = '') -> list[TrainedStep]:
        """The times that a step was trained, or may have been, or will be if the run continues; in their order.

        Args:
            step: counted from 0 through the run, as the trainer counts.
            loader: which training loader's data.
        """
        last = {segment.number: end for segment, end in self.kept()}
        times: list[TrainedStep] = []
        for segment in self.segments:
            place = segment.pass_of(step, loader) if segment.first_step <= step else None
            is_last = segment is self.segments[-1]
            if place is None or not (step < segment.reached or is_last or not segment.has_ended):
                continue
            times.append(
                TrainedStep(
                    step=step,
                    segment=segment,
                    place=place,
                    is_sure=step < segment.reached,
                    is_kept=segment.number in last and (step < last[segment.number] or is_last),
                )
            )
        return times


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
    """A loader with the segment's data and topology, at the beginning of the step's pass."""
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
    data: str
    """Fingerprint of the stream's data in that epoch."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample by its place, which ids follow from: they begin again where an epoch takes other shards or streams."""

    stream: OpenedStream
    shard: int
    """Number of the shard in the index."""
    file: str
    row: int
    """The row as it is stored."""

    @classmethod
    def of(cls, dataset: StreamingDataset, sample_id: int) -> _Sample:
        stream, shard, row = dataset.pool.stream_of(sample_id)
        return cls(stream, stream.first_offered + shard, stream.shards[shard].files[0].raw.basename, row)

    def id_in(self, dataset: StreamingDataset) -> int | None:
        """Its id in other data of the run, or None if they do not hold the sample."""
        stream = next((stream for stream in dataset.pool.streams if stream.name == self.stream.name), None)
        if stream is None:
            return None
        then, now = Generation.of(self.stream.fingerprint), Generation.of(stream.fingerprint)
        if then is None or now is None:  # files of other formats keep their names
            shard = stream.shards.find(self.file)
        elif then.digest == now.digest or _is_grown(then, stream) or _is_grown(now, self.stream):
            shard = self.shard - now.first
        else:
            shard = None
        if shard is None or not 0 <= shard < len(stream.shards):
            return None
        ids = np.array(dataset.pool.map.ids_of(stream.first_shard + shard), np.int64)
        places = np.flatnonzero(dataset.locate(ids)[1] == self.row) if len(ids) else ids
        return int(ids[places[0]]) if len(places) else None


def _is_grown(then: Generation, stream: OpenedStream) -> bool:
    return Generation(then.digest).is_in(stream.cache.index.path)


class RecordedRun:
    """A run with a record: its steps and samples.

    Args:
        folder: the run's folder.
        loader: name of the training loader; '' where there is one.
        config: the loader's configuration, if the record holds none: with packing, or a `where` in Python.
        overrides: changes to the configuration of the record, such as ``train.streams.code.local=/data``.

    Raises:
        ConfigError: the record is missing, or holds no step, or names other loaders.
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
        self._passes = {id(place): place for segment in self.history.segments for place in segment.passes}
        self._segments = {segment.number: segment for segment in self.history.segments}

    def loader(self, segment: Segment, place: RecordedPass) -> StreamingDataLoader:
        """A loader with the data and the topology of a segment, at the beginning of a pass.

        Raises:
            ConfigError: the record holds no configuration.
            ResumeError: the data or the configuration are not those of the run.
        """
        return self._open(segment.number, id(place))

    def _opened(self, segment_number: int, place_id: int, is_whole: bool = False) -> StreamingDataLoader:
        """A loader whose data are of the versions of a pass, with caches of its own, which go when it goes."""
        segment, place = self._segments[segment_number], self._passes[place_id]
        config = self._config
        if config is None and place.config is None:
            raise ConfigError(
                f'The record in {self.folder} cannot describe the data of this run: it packs texts, or selects '
                f'samples by a function. Name its configuration: headrace explain CONFIG --run {self.folder}.'
            )
        if config is None:
            assert place.config is not None
            # A loader that looks back opens what a pass read, and does not follow growth.
            values = {key: value for key, value in place.config.items() if key != 'on_growth'}
            config = load_config({'train': values}, overrides=self._overrides).train
            assert config is not None
        then = {stream['name']: stream['fingerprint'] for stream in json.loads(place.state['config'])['streams']}
        if is_whole:  # a generation without the number of its first shard
            then = {name: fingerprint.partition(' from shard ')[0] for name, fingerprint in then.items()}
        scratch = Path(tempfile.mkdtemp(prefix='headrace-explain-'))
        try:
            with looking_back(PastData(run=self.folder, fingerprints=then, scratch=scratch)):
                loader = build_loader(config, topology=Topology(rank=0, **segment.topology))
                if not is_whole:
                    loader.load_state_dict(place.state)
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if not isinstance(error, ResumeError):
                raise
            what = str(error).partition(' Restore them')[0]
            raise ResumeError(
                f'The data or the configuration are not those that the run in {self.folder} had, and it kept no copy '
                f'of their index: {what} Name them, such as train.streams.NAME.remote=..., or restore them.'
            ) from error
        weakref.finalize(loader, shutil.rmtree, scratch, ignore_errors=True)
        return loader

    def step(self, step: int, *, documents: bool = False) -> ExplainedStep:
        """Explain a step: its latest use that the run's weights have, or will have.

        Args:
            step: counted from 0 through the run, as the trainer counts.
            documents: as of `headrace.metrics.explain_step`.

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
        chosen = next((time for time in reversed(times) if time.is_kept), times[-1])
        loader = self.loader(chosen.segment, chosen.place)
        place = chosen.place
        at = (place.epoch, place.sample)
        report = explain_step(loader, step, place=at, first_step=place.first_step, documents=documents)
        # A step that no segment is known to have reached has no other times.
        others = tuple(time for time in times if time is not chosen and (time.is_sure or chosen.is_sure))
        return ExplainedStep(trained=chosen, report=report, loader=loader, others=others)

    def report(self, step: int, *, before: int = 0, after: int = 0, documents: bool = False) -> StepReport:
        """Explain a step and batches around it, each by the data, decisions and batch size that it had.

        Args:
            step: counted from 0 through the run, as the trainer counts.
            before: batches before it to skip too.
            after: batches after it to skip too.
            documents: as of `headrace.metrics.explain_step`.

        Returns:
            The report, whose `skip` is that of the run's last segment, and these batches.

        Raises:
            ConfigError, ResumeError: as `step`; or a number is negative.
        """
        if min(before, after) < 0:
            raise ConfigError(f'batches around a step count from 0, got {before=}, {after=}.')
        first = min(segment.first_step for segment in self.history.segments)
        steps = tuple(range(max(step - before, min(first, step)), step + after + 1))
        explained = [self.step(number, documents=documents) for number in steps]
        batches = tuple(part.report.batches[0] for part in explained)
        ranges = tuple(part.report.ranges[0] for part in explained)
        named = [replace(batch, ids=self.last_ids(part, batch)) for part, batch in zip(explained, batches, strict=True)]
        return StepReport(
            step=step,
            steps=steps,
            numbers=tuple(part.report.numbers[0] for part in explained),
            batches=batches,
            ranges=ranges,
            skip=skip_with(self._last()[0].dataset, ranges, named if documents else ()),
        )

    def _last(self) -> tuple[StreamingDataLoader, RecordedPass, Segment]:
        """The loader of the last pass, and that pass."""
        segment = next(s for s in reversed(self.history.segments) if s.pass_of(s.reached, self.loader_name))
        place = segment.pass_of(segment.reached, self.loader_name)
        assert place is not None
        return self.loader(segment, place), place, segment

    @property
    def last_loader(self) -> StreamingDataLoader:
        """A loader of the last data that the run read, whose sample ids `uses` takes.

        They are those of `dataset[id]` where all of these data are opened, also if an epoch took only new shards.
        """
        loader, place, segment = self._last()
        if any(stream.first_offered for stream in loader.dataset.pool.streams):
            return self._open(segment.number, id(place), True)
        return loader

    @property
    def follows_growth(self) -> bool:
        """Whether later epochs take samples that are appended."""
        return bool((self._last()[1].config or {}).get('on_growth'))

    def last_ids(self, explained: ExplainedStep, batch: BatchExplanation) -> NDArray[np.int64]:
        """The ids of a batch's rows in `last_loader`, int64[rows]; -1: its data do not hold the sample."""
        last, dataset = self.last_loader.dataset, explained.loader.dataset
        if _data_of(last) == _data_of(dataset):
            return batch.ids
        ids = {i: _Sample.of(dataset, i).id_in(last) for i in set(batch.ids.tolist())}
        return np.array([-1 if ids[i] is None else ids[i] for i in batch.ids.tolist()], np.int64)

    def uses(self, sample_id: int) -> Iterator[SampleSeen]:
        """The uses of a sample in the steps that the run's weights have, then the first use afterwards.

        Documents of a packed run are read to find them, without later uses.

        Args:
            sample_id: a global sample id of `last_loader`.

        Raises:
            ConfigError: the sample does not exist.
        """
        last = self.last_loader.dataset
        if not 0 <= sample_id < last.num_samples:
            raise ConfigError(f'--sample must be an id in [0, {last.num_samples}), got {sample_id}.')
        sample, kept = _Sample.of(last, sample_id), self.history.kept()
        for segment, end in kept:
            passes = [place for place in segment.passes if place.loader == self.loader_name and place.first_step < end]
            ends = [*(place.first_step for place in passes[1:]), end][: len(passes)]  # a resume may have no pass yet
            for past, after in zip(passes, ends, strict=True):
                loader = self.loader(segment, past)
                its_id = sample.id_in(loader.dataset)
                if its_id is not None:
                    plan, data = loader.plan(past.epoch, past.sample), _data_of(loader.dataset)[sample.stream.name]
                    for use in _uses(loader.dataset, plan, its_id, after - past.first_step):
                        yield replace(_seen(use, past.first_step + use.batch, segment.number, is_past=True), data=data)
        if isinstance(last, PackedDataset):
            return
        for segment, end in reversed(kept):
            place = segment.pass_of(end, self.loader_name)
            if place is not None:  # a resume may have no pass yet, and continues with that of the checkpoint
                yield from self._next_use(segment, place, end, sample)
                return

    def _next_use(self, segment: Segment, place: RecordedPass, reached: int, sample: _Sample) -> Iterator[SampleSeen]:
        """The first use from a step on, if the segment's pass and later ones continue."""
        loader = self.loader(segment, place)
        sample_id = sample.id_in(loader.dataset)
        if sample_id is None:
            return
        plan = loader.plan(place.epoch, place.sample)
        number = reached - place.first_step
        use = next_use(
            lambda epoch: plan if epoch == place.epoch else loader.plan(epoch),
            sample_id,
            epoch=place.epoch,
            batch=min(number, plan.num_batches),
            epochs=1 if self.follows_growth else _EPOCHS,  # later ones depend on data that do not exist yet
        )
        if use is not None:
            first = place.first_step
            for epoch in range(place.epoch, use.epoch):
                first += (plan if epoch == place.epoch else loader.plan(epoch)).num_batches
            seen = _seen(use, first + use.batch, segment.number, is_past=False)
            yield replace(seen, data=_data_of(loader.dataset)[sample.stream.name])

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
                    'mixtures': list(dict.fromkeys(place.mixture for place in segment.passes)),
                    'proportions': dict(segment.passes[-1].proportions) if segment.passes else {},
                    'decisions': list(segment.passes[-1].decisions) if segment.passes else [],
                }
                for segment in self.history.segments
            ],
        }


def _data_of(dataset: StreamingDataset) -> dict[str | None, str]:
    """The fingerprints of the streams' data and selections by name, in the order by which ids are counted."""
    return {stream.name: stream.fingerprint for stream in dataset.pool.streams}


def _seen(use: SampleUse, step: int, segment: int, *, is_past: bool) -> SampleSeen:
    where = {'epoch': use.epoch, 'position': use.position, 'rank': use.rank, 'row': use.row}
    return SampleSeen(step=step, segment=segment, **where, is_past=is_past, data='')


def _uses(dataset: StreamingDataset, plan: BatchPlan, sample_id: int, end: int) -> Iterator[SampleUse]:
    """The uses of a sample in the batches of a plan before `end`."""
    if isinstance(dataset, PackedDataset):
        yield from dataset.uses_of(plan, sample_id, 0, end)
        return
    batch = 0
    while batch < end:
        use = next_use(lambda _: plan, sample_id, epoch=plan.order.epoch, batch=batch, epochs=1)
        if use is None or use.batch >= end:
            return
        yield use
        batch = use.batch + 1
