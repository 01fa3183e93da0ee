"""One framework's rank programs: start, progress, and end by themselves or by SIGKILL."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from examples.demo.assignment import Assignment
from examples.demo.processes import ProcessGroup, RankProgramError
from examples.demo.progress import Bar
from examples.demo.records import Run, last_step, read_run
from examples.demo.settings import Launch, Settings

__all__ = ['Launcher']

_RUN_SECONDS = 600.0
"""Seconds until a rank program counts as hung. The slowest takes a tenth of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Runs the rank program of one framework."""

    framework: str
    mix: Path
    shards: str
    """URL of the shards."""
    temporary: Path
    """Folder for temporary files of the rank programs."""
    settings: Settings

    def to_the_end(self, folder: Path, launch: Launch, *, cache: Path, checkpoint: Path | None = None) -> Run:
        """Train until the program ends by itself."""
        with self._started(folder, launch, cache, checkpoint) as group, self._bar(folder, launch) as bar:
            group.watch(lambda: _show(bar, folder) > self.settings.steps, timeout=_RUN_SECONDS)
        return read_run(folder)

    def to_the_kill(self, folder: Path, launch: Launch, *, cache: Path) -> Run:
        """Train until the step of the kill is recorded, then end every process at once.

        Raises:
            RankProgramError: If the program ended before.
        """
        with self._started(folder, launch, cache, None) as group, self._bar(folder, launch) as bar:
            if not group.watch(lambda: _show(bar, folder) >= self.settings.kill_after, timeout=_RUN_SECONDS):
                raise RankProgramError(f'the run in {folder} ended before step {self.settings.kill_after}')
            number = group.kill()
        run = read_run(folder)
        print(f'kill -9 to its {number} processes after step {max(run.steps)}', flush=True)
        return run

    def _started(self, folder: Path, launch: Launch, cache: Path, checkpoint: Path | None) -> ProcessGroup:
        assignment = Assignment(
            mix=str(self.mix),
            overrides={
                'variables.shards': self.shards,
                'variables.cache': str(cache),
                'train.loader.num_workers': launch.workers,
            },
            folder=str(folder),
            ranks=launch.ranks,
            epochs=self.settings.epochs,
            checkpoint_every=self.settings.checkpoint_every,
            checkpoint=None if checkpoint is None else str(checkpoint),
        )
        command = [*_command(self.framework, launch.ranks), str(assignment.write())]
        return ProcessGroup(command, log=folder / 'log.txt', temporary=self.temporary)

    def _bar(self, folder: Path, launch: Launch) -> Bar:
        return Bar(f'{folder.name:<13} {launch!s:<19}', total=self.settings.steps, unit='steps')


def _command(framework: str, ranks: int) -> list[str]:
    """Lightning starts its other ranks by itself, Composer by its launcher."""
    program = f'examples.demo.train_{framework}'
    if framework == 'composer' and ranks > 1:
        return [sys.executable, '-m', 'composer.cli', '-n', str(ranks), '-m', program]
    return [sys.executable, '-m', program]


def _show(bar: Bar, folder: Path) -> int:
    """Set the bar to the last recorded step of the run in ``folder``; returns it, or 0 before the first."""
    step, loss = last_step(folder) or (0, None)
    bar.show(step, '' if loss is None else f'loss {loss:.3f}')
    return step
