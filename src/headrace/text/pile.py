"""The Pile: 22 collections of text."""

from __future__ import annotations

from headrace.text.text_dataset import StreamingText

__all__ = ['StreamingPile']


class StreamingPile(StreamingText):
    """The Pile as tokens; the column ``pile_set_name`` of the shards names the collection of each text.

    The arguments are those of `StreamingText`. `headrace.text.convert.pile` writes the dataset. Give
    ``where={'pile_set_name': ['Pile-CC']}`` to read some collections only.
    """
