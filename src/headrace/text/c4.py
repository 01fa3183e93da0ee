"""C4: texts of the Web."""

from __future__ import annotations

from headrace.text.text_dataset import StreamingText

__all__ = ['StreamingC4']


class StreamingC4(StreamingText):
    """C4, the Colossal Clean Crawled Corpus, as tokens.

    The arguments are those of `StreamingText`. `headrace.text.convert.c4` writes the dataset.
    """
