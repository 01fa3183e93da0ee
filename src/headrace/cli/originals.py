"""``headrace convert NAME IN OUT``: a known dataset, by its name, in the layout of its owners' distribution."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Final

from headrace.cli.arguments import show_examples

if TYPE_CHECKING:
    from headrace.convert.originals import Original

__all__ = ['ORIGINALS', 'OriginalCommand']

ORIGINALS: Final = {
    'ade20k': 'headrace.vision.convert.ade20k',
    'c4': 'headrace.text.convert.c4',
    'cifar10': 'headrace.vision.convert.cifar10',
    'coco': 'headrace.vision.convert.coco',
    'enwiki': 'headrace.text.convert.enwiki',
    'imagenet': 'headrace.vision.convert.imagenet',
    'laion400m': 'headrace.multimodal.convert.laion400m',
    'pile': 'headrace.text.convert.pile',
    'webvid': 'headrace.multimodal.convert.webvid.crawl_webvid',
    'webvid-outside': 'headrace.multimodal.convert.webvid.extract_webvid_videos',
}
"""By name, the module whose `ORIGINAL` describes the dataset."""


class OriginalCommand:
    """The command of one known dataset; see `headrace.cli.Command`."""

    def __init__(self, name: str) -> None:
        self._original: Original = importlib.import_module(ORIGINALS[name]).ORIGINAL
        self.HELP = f'{self._original.title}. For a folder of yours named {name}, write ./{name}.'

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare IN, OUT, and settings."""
        from headrace.convert.originals import add_arguments

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
        from headrace.convert.originals import run

        return run(self._original, arguments)
