"""The documents that are prefetched where proportions count tokens."""

from __future__ import annotations

import itertools

from headrace.order import Mixture, OrderConfig, StreamSize
from headrace.packing.coming_documents import BLOCK, ComingDocuments
from headrace.packing.stream_lanes import StreamLanes


def test_streams_have_documents_by_their_shares_and_lengths():
    sizes = {'short': 3.0, 'long': 1.0}
    mixture = Mixture.resolve([StreamSize(name=name, shard_sizes=[999], proportion=p) for name, p in sizes.items()])
    coming = ComingDocuments(StreamLanes(4, mixture, OrderConfig().resolve_defaults(mixture)), 64)
    coming.begin(0)
    coming.count(0, 100, 1000)
    coming.count(4, 10, 2000)
    assert coming.reach(1, 160)
    assert coming.reach(5, 16)
    assert not coming.reach(2, 170)
    documents = [found for _, found in itertools.islice(coming.blocks(), 61)]
    short, long = (sum(len(found[stream]) for found in documents) for stream in (0, 1))
    assert short + long in range(61 * BLOCK - 2, 61 * BLOCK + 1)
    assert round(short / long) == 60  # three times the tokens, in documents of a twentieth of the length
    assert coming.block(0, 160) == 0
    assert coming.block(4, 17) in range(2, 5)
    assert documents[0][0].start == 160
    assert documents[0][1].start == 16
