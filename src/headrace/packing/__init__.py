"""Documents become sequences of tokens of one length, in an order that resumes on any topology.

1. `tokenizers`: values of a column become documents, arrays of tokens, by whichever library.
2. `lane`: documents go round to lanes, by their positions in the order; a `Lane` packs its own, window by window, by
   the algorithms of `bin_packing`, and knows the cuts from which it can be worked out again.
3. `lanes`: all lanes of a run, as far as this rank knows them.
4. `run`: a `PackedRun` has sequences for positions, and puts the lanes' cuts into states.
5. `reader`: workers read and tokenise chunks of documents; the process that trains packs them, and `rows` makes them a
   batch.
6. `dataset`: a `PackedDataset` holds this together; a `StreamingDataLoader` reads it like any other. `exchange` has
   ranks know of one another's lanes.
"""

from __future__ import annotations

from headrace.packing.dataset import PackedDataset
from headrace.packing.exchange import exchange_now_and_then
from headrace.packing.packer import DocumentCount
from headrace.packing.rows import batch_of, flat_cu_seqlens
from headrace.packing.settings import Packing
from headrace.packing.tokenizers import load_tokenizer

__all__ = [
    'DocumentCount',
    'PackedDataset',
    'Packing',
    'batch_of',
    'exchange_now_and_then',
    'flat_cu_seqlens',
    'load_tokenizer',
]
