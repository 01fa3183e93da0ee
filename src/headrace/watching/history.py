"""The history of a run by its record: segments between kills and resumes, and where each step was in the data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.watching.record_file import RECORD, read_record

__all__ = ['RecordedPass', 'RunHistory', 'Segment', 'TrainedStep']

_FORMAT = 1


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
    state: Mapping[str, Any]
    """The state of a checkpoint at its beginning."""
    mixture: str
    """Fingerprint of the data, the mixture and the order."""
    proportions: Mapping[str, float]
    """Each stream's share of an epoch."""


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
            elif segments:
                _extend(segments[-1], entry, shared)
        return cls(segments, damaged)

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


def _extend(segment: Segment, entry: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]) -> None:
    """Add what an entry says of a segment; a pass whose mixture was lost says nothing."""
    segment.reached = max(segment.reached, entry['step'])
    if entry['kind'] == 'end':
        segment.has_ended = True
    elif entry['kind'] == 'checkpoint':
        segment.checkpoints.append(entry['at'])
    elif entry['kind'] == 'pass' and entry['mixture'] in shared and entry['config'] in shared:
        mixture = shared[entry['mixture']]
        pinned = {**mixture['state']['config'], **entry.get('of_position', {})}
        state = {
            **mixture['state'],
            'epoch': entry['epoch'],
            'sample_in_epoch': entry['sample'],
            'config': json.dumps(pinned, sort_keys=True, separators=(',', ':')),
        }
        segment.passes.append(
            RecordedPass(
                loader=entry['loader'],
                first_step=entry['first_step'],
                epoch=entry['epoch'],
                sample=entry['sample'],
                config=shared[entry['config']]['config'],
                state=state,
                mixture=entry['mixture'],
                proportions=mixture['proportions'],
            )
        )
