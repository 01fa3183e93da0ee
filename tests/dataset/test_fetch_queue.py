"""What waits to be fetched ahead."""

from __future__ import annotations

from headrace.dataset.fetch_queue import FetchQueue
from headrace.dataset.uses import Uses


def test_what_another_process_fetched_and_nobody_needs_any_more_is_not_looked_for():
    queue, uses = FetchQueue(patience=1.0), Uses()
    for batch in range(3):
        for shard in uses.add(batch, [batch]):
            queue.add(batch, shard)
    for _ in range(2):
        queue.refused(*queue.take(), elsewhere=True)
    assert queue.elsewhere == [0, 1]
    queue.drop(0)  # the reader has it, from a cache that evicts it before anybody looks
    uses.drop_before(1)
    queue.reorder(1, uses, running=())
    assert queue.elsewhere == [1]
    assert [queue.take() for _ in range(len(queue))] == [(1, 1), (2, 2)]
