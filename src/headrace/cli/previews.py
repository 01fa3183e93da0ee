"""Samples in a terminal: a line for each value, and thumbnails of pictures."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.display import printable, shorten

if TYPE_CHECKING:
    from headrace.dataset import StreamingDataset
    from headrace.inspect import SampleValue

__all__ = ['has_colours', 'preview', 'print_preview', 'print_thumbnails']

_WIDTH = 100


def has_colours() -> bool:
    """Whether standard output is a terminal with colours."""
    return sys.stdout.isatty() and not os.environ.get('NO_COLOR') and os.environ.get('TERM', 'dumb') != 'dumb'


def print_thumbnails(values: Iterable[SampleValue]) -> None:
    """Print the first picture of each value, in colours."""
    from headrace.errors import MissingDependencyError
    from headrace.inspect import thumbnail

    for value in values:
        for _, content in value.pictures[:1]:
            try:
                lines = thumbnail(content)
            except MissingDependencyError as error:
                lines = [str(error)]
            except Exception as error:  # Pillow raises errors of many classes for damaged pictures
                lines = [f'(no thumbnail: {type(error).__name__})']
            print('\n'.join(f'    {line}' for line in lines))


def preview(dataset: StreamingDataset, sample_id: int) -> dict[str, SampleValue]:
    """The values of a sample by column, read from its shard."""
    from headrace.inspect import describe_decoded

    sample = dataset[sample_id]
    values = sample if isinstance(sample, dict) else {'sample': sample}
    return {str(name): describe_decoded(value) for name, value in values.items()}


def print_preview(heading: str, values: dict[str, SampleValue]) -> None:
    """Print a sample: its heading, then a line for each value."""
    print(heading)
    for name, value in values.items():
        # The text of a picture begins with what its shape says.
        shape = '' if value.pictures else value.shape
        text = ' '.join(part for part in (shape, str(value.value)) if part)
        print(f'  {printable(name)}: {shorten(text, _WIDTH)}')
    if has_colours():
        print_thumbnails(values.values())
