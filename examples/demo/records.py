"""Records of a rank's trained batches: one JSON line per step, which a killed process leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ['Recorder', 'Run', 'Step', 'last_step', 'read_run']


_TAIL_BYTES = 1 << 14
"""Bytes at the end of a file that hold at least two records, to find the last one."""


class Recorder:
    """Writes the records of one rank into its run's folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _path(folder, rank).open('w', encoding='utf-8')

    def start(self, *, step: int, world_size: int) -> None:
        """The trainer is about to train; ``step`` is the number of steps that its checkpoint had done, or 0."""
        self._write({'start': step, 'world_size': world_size})

    def trained(self, *, step: int, epoch: int, ids: Iterable[int], loss: float) -> None:
        """Optimizer step ``step`` (the first is 1) is done: the ids of this rank's rows, and their mean loss."""
        self._write({'step': step, 'epoch': epoch, 'ids': list(ids), 'loss': loss})

    def _write(self, record: Mapping[str, object]) -> None:
        # Writing the line to the kernel is enough: SIGKILL ends the process, not the machine.
        self._file.write(json.dumps(record) + '\n')
        self._file.flush()


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step over one global batch."""

    epoch: int
    ids: tuple[int, ...]
    """Every rank's rows, sorted: the promise does not assign rows to ranks."""
    loss: float
    """The mean over the global batch."""


@dataclass(frozen=True, slots=True)
class Run:
    """Records of all ranks of one run."""

    start: int
    """Finished steps of the checkpoint that the trainer started from."""
    steps: Mapping[int, Step]
    """By step number (the first is 1); only steps that every rank recorded."""


def read_run(folder: Path) -> Run:
    """Join the records of all ranks of the run in ``folder``.

    Raises:
        FileNotFoundError: If a rank left no record.
    """
    start, by_step = _read_rank(_path(folder, 0))
    others = [_read_rank(_path(folder, rank))[1] for rank in range(1, start['world_size'])]
    ranks = [by_step, *others]
    return Run(
        start=start['start'],
        steps={
            step: Step(
                epoch=record['epoch'],
                ids=tuple(sorted(i for rank in ranks for i in rank[step]['ids'])),
                loss=sum(rank[step]['loss'] for rank in ranks) / len(ranks),
            )
            for step, record in by_step.items()
            if all(step in rank for rank in ranks)
        },
    )


def last_step(folder: Path) -> tuple[int, float] | None:
    """The number and the loss of the last step that rank 0 recorded, or None before the first."""
    try:
        with _path(folder, 0).open('rb') as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            lines = file.read().split(b'\n')[:-1]
    except FileNotFoundError:
        return None
    record = json.loads(lines[-1]) if lines else {}
    return (record['step'], record['loss']) if 'step' in record else None


def _path(folder: Path, rank: int) -> Path:
    return folder / f'rank{rank}.jsonl'


def _whole_lines(path: Path) -> list[str]:
    """The complete lines of a file whose writer may be dead or still at work."""
    return path.read_text(encoding='utf-8').split('\n')[:-1]


def _read_rank(path: Path) -> tuple[dict[str, int], dict[int, dict[str, Any]]]:
    start, *steps = (json.loads(line) for line in _whole_lines(path))
    return start, {record['step']: record for record in steps}
