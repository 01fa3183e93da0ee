"""Documents become sequences of tokens of one length, in an order that resumes on any topology.

1. `tokenizers`: any library turns values of a column into documents, which are arrays of tokens. A `ChatTokenizer` does
   so with conversations.
2. `lane`: lanes take documents in turn. A `Lane` packs its own, window by window. It keeps states from which packing
   can restart.
3. `lanes`: all lanes of a run that this rank knows. `document_order` says which documents each has.
4. `run`: a `PackedRun` counts positions in sequences, and saves lane states in checkpoints.
5. `reader`: workers read and tokenise chunks of documents, along the `ComingDocuments` of the prefetch. `packer` packs
   them in the training process, and `rows` builds batches. `whole` packs an evaluation set once and whole.
6. `dataset`: a `StreamingDataLoader` reads a `PackedDataset` like any other. Ranks share lane states now and then.
7. `explanation`: the documents of a batch. `Lanes` remember the latest ones, and `packer` packs any others again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.dataset.ranks import gather_of_ranks
    from headrace.packing.dataset import PackedDataset, exchange_now_and_then, sync_lane_states
    from headrace.packing.explanation import PackedExplanation
    from headrace.packing.packer import DocumentCount
    from headrace.packing.rows import attention_mask, batch_of, flat_cu_seqlens, segment_ids
    from headrace.packing.settings import Packing, StreamPacking
    from headrace.packing.tokenizers import ChatTokenizer, load_tokenizer

__all__ = [
    'ChatTokenizer',
    'DocumentCount',
    'PackedDataset',
    'PackedExplanation',
    'Packing',
    'StreamPacking',
    'attention_mask',
    'batch_of',
    'exchange_now_and_then',
    'flat_cu_seqlens',
    'gather_of_ranks',
    'load_tokenizer',
    'segment_ids',
    'sync_lane_states',
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            'ChatTokenizer': 'headrace.packing.tokenizers',
            'DocumentCount': 'headrace.packing.packer',
            'PackedDataset': 'headrace.packing.dataset',
            'PackedExplanation': 'headrace.packing.explanation',
            'Packing': 'headrace.packing.settings',
            'StreamPacking': 'headrace.packing.settings',
            'attention_mask': 'headrace.packing.rows',
            'batch_of': 'headrace.packing.rows',
            'exchange_now_and_then': 'headrace.packing.dataset',
            'flat_cu_seqlens': 'headrace.packing.rows',
            'gather_of_ranks': 'headrace.dataset.ranks',
            'load_tokenizer': 'headrace.packing.tokenizers',
            'segment_ids': 'headrace.packing.rows',
            'sync_lane_states': 'headrace.packing.dataset',
        },
    )
