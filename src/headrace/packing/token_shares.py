"""The share of each stream in the tokens, as its proportion of the documents promises it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.order import ExpectedCounts

if TYPE_CHECKING:
    from headrace.order import Mixture
    from headrace.packing.packer import DocumentCount

__all__ = ['promised_shares']


def promised_shares(
    mixture: Mixture, taken: tuple[int, int], counts: Sequence[DocumentCount] | None
) -> npt.NDArray[np.float64]:
    """The share of each stream in the tokens, float64[streams].

    A mixture promises shares of documents. Streams have documents of different lengths, so each share is multiplied by
    the mean length of the stream's documents so far.

    Args:
        mixture: of the documents.
        taken: positions of the documents, or sequences, in the run, for a schedule: begin and end.
        counts: documents and tokens taken from each stream; None: the proportions count tokens.
    """
    begin, end, epoch = 0, mixture.epoch_size, mixture.takeover.epoch
    if mixture.schedule is not None and taken[0] < taken[1]:
        first = mixture.takeover.begin  # `between` counts from an epoch, and `taken` from the run's beginning
        begin = max(taken[0] - first, mixture.takeover.sample)  # documents before it followed another mixture
        end = max(taken[1] - first, begin + 1)
    documents = ExpectedCounts(mixture).between(epoch, begin, end)
    if counts is None:
        return documents / documents.sum()
    all_documents = max(sum(count.documents for count in counts), 1)
    mean = sum(count.tokens for count in counts) / all_documents
    lengths = [count.tokens / count.documents if count.documents else mean for count in counts]
    tokens = documents * np.array(lengths)
    return tokens / max(float(tokens.sum()), 1e-9)
