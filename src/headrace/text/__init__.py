"""Known datasets of text: a class for each, with MosaicML Streaming's name, and a converter in `convert`."""

from headrace.text.c4 import StreamingC4
from headrace.text.enwiki import StreamingEnWiki
from headrace.text.pile import StreamingPile
from headrace.text.text_dataset import StreamingText

__all__ = ['StreamingC4', 'StreamingEnWiki', 'StreamingPile', 'StreamingText']
