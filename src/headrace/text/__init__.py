"""Known datasets of text: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.text.c4 import StreamingC4
    from headrace.text.enwiki import StreamingEnWiki
    from headrace.text.pile import StreamingPile
    from headrace.text.text_dataset import StreamingText

__all__ = ['StreamingC4', 'StreamingEnWiki', 'StreamingPile', 'StreamingText']

if not TYPE_CHECKING:
    # The converters import this package, too, and need no torch.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'StreamingC4': 'headrace.text.c4',
            'StreamingEnWiki': 'headrace.text.enwiki',
            'StreamingPile': 'headrace.text.pile',
            'StreamingText': 'headrace.text.text_dataset',
        },
    )
