"""The arguments of a rank program, in a JSON file that works with any launcher."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ['Assignment', 'newest_checkpoint', 'read_assignment']


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run of a rank program."""

    mix: str
    """Path of the YAML file of the mix."""
    overrides: dict[str, str | int]
    """Overrides of that file: the place of the shards, the number of workers."""
    folder: str
    """Folder of the run's records and checkpoints."""
    ranks: int
    epochs: int
    checkpoint_every: int
    """Optimizer steps between two checkpoints."""
    checkpoint: str | None
    """The checkpoint to resume from; None starts anew."""

    @property
    def checkpoints(self) -> str:
        """The folder of the run's checkpoints, one ``step{number}`` file each."""
        return str(Path(self.folder) / 'checkpoints')

    def write(self) -> Path:
        """Write it into the run's folder, and return the file's path."""
        path = Path(self.folder) / 'assignment.json'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + '\n', encoding='utf-8')
        return path


def read_assignment() -> Assignment:
    """The assignment that this process's only argument names."""
    return Assignment(**json.loads(Path(sys.argv[1]).read_text(encoding='utf-8')))


def newest_checkpoint(folder: Path) -> Path:
    """The whole checkpoint with the highest step. One that the kill cut short does not count.

    Raises:
        FileNotFoundError: If there is none.
    """
    numbers = {path: re.match(r'step(\d+)\.', path.name) for path in folder.glob('step*')}
    # torch.save makes a zip archive, whose directory comes last.
    found = {int(match[1]): path for path, match in numbers.items() if match and zipfile.is_zipfile(path)}
    if not found:
        raise FileNotFoundError(f'no whole checkpoint in {folder}')
    return found[max(found)]
