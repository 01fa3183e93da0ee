"""``headrace convert NAME IN OUT``: a known dataset, by its name, in the layout of its owners' distribution."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Final

from headrace.cli.arguments import show_examples

if TYPE_CHECKING:
    from headrace.originals import Original

__all__ = ['ORIGINALS', 'OriginalCommand']

ORIGINALS: Final = {
    'ade20k': 'headrace.vision.convert:ADE20K',
    'c4': 'headrace.text.convert:C4',
    'cifar10': 'headrace.vision.convert:CIFAR10',
    'coco': 'headrace.vision.convert:COCO',
    'enwiki': 'headrace.text.convert:ENWIKI',
    'imagenet': 'headrace.vision.convert:IMAGENET',
    'laion400m': 'headrace.multimodal.convert:LAION400M',
    'pile': 'headrace.text.convert:PILE',
    'webvid': 'headrace.multimodal.convert:WEBVID',
    'webvid-outside': 'headrace.multimodal.convert:WEBVID_OUTSIDE',
}
"""By name, the module of the description, and its name there."""


class OriginalCommand:
    """The command of one known dataset; see `headrace.cli.Command`."""

    def __init__(self, name: str) -> None:
        module, _, described = ORIGINALS[name].partition(':')
        self._original: Original = getattr(importlib.import_module(module), described)
        self.HELP = f'{self._original.title}. For a folder of yours named {name}, write ./{name}.'

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare IN, OUT, and settings."""
        from headrace.originals import add_arguments

        add_arguments(parser, self._original)
        original, splits = self._original, ','.join(self._original.splits)
        command = f'headrace convert {original.name} IN'
        needs = f' {original.example}' if original.example else ''
        show_examples(
            parser,
            f'{command} {original.name}-mds -j 8{needs}' + (f' --splits {splits}' if splits else ''),
            f'{command} s3://bucket/{original.name} --compression zstd --limit 1000{needs}',
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Convert."""
        from headrace.originals import run

        return run(self._original, arguments)
