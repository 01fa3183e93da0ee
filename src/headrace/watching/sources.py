"""Which data trained each checkpoint of a recorded run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.dataset import StreamingDataset
from headrace.dataset.streams.open_streams import OpenedStream
from headrace.errors.redaction import without_credentials
from headrace.order import BatchPlan
from headrace.order.arrays import IntArray
from headrace.watching.history import RecordedRun

_CHUNK = 1 << 20  # positions looked at together


def sources_of(run: RecordedRun) -> list[dict[str, Any]]:
    """Say what each checkpoint that the run's weights come from has been trained on since the run began.

    Returns:
        For each checkpoint, and for the last step that the record knows: ``step``, ``segment``, ``is_checkpoint``, and
        ``sources``, one for each version of a stream's data:

        - ``stream``, ``source`` (URL or folder), ``format``, and ``data``, the fingerprint of the version;
        - ``first_shard`` and ``shards``: numbers in its index;
        - ``drawn`` and ``unit``: samples, or tokens of packed data; ``unique``: different samples or documents;
        - ``share`` of all that was drawn.

    Raises:
        ConfigError, ResumeError: as `RecordedRun.loader`.
    """
    drawn: dict[tuple[str, str], dict[str, Any]] = {}
    seen: dict[tuple[str, str], NDArray[np.bool_]] = {}  # by the id in the stream
    checkpoints: list[dict[str, Any]] = []
    for segment, end in run.history.kept():
        saved = {step for step in segment.checkpoints if segment.first_step < step <= end}
        passes = [place for place in segment.passes if place.loader == run.loader_name and place.first_step < end]
        ends = [*(place.first_step for place in passes[1:]), end][: len(passes)]  # a resume may have no pass yet
        for run_pass, after in zip(passes, ends, strict=True):
            loader = run.loader(segment, run_pass)
            dataset, plan, begin = loader.dataset, loader.plan(run_pass.epoch, run_pass.sample), run_pass.first_step
            mixture, _ = dataset.read_order()
            keys = [(stream.name or '', stream.fingerprint) for stream in dataset.pool.streams]
            for stream, key, size in zip(dataset.pool.streams, keys, mixture.streams, strict=True):
                seen.setdefault(key, np.zeros(size.size, np.bool_))
                drawn.setdefault(key, {**_described(stream), 'unit': dataset.stream_unit})
            for step in sorted({*(step for step in saved if begin < step < after), after}):
                for ids, counts in _drawn(dataset, plan, begin - run_pass.first_step, step - run_pass.first_step):
                    streams = mixture.streams_of(ids)
                    for number, key in enumerate(keys):
                        seen[key][ids[streams == number] - mixture.sample_offsets[number]] = True
                        drawn[key]['drawn'] += int(counts[number])
                begin = step
                total = sum(source['drawn'] for source in drawn.values()) or 1
                sources = [
                    {**source, 'unique': int(seen[key].sum()), 'share': source['drawn'] / total}
                    for key, source in drawn.items()
                    if source['drawn']
                ]
                where = {'step': step, 'segment': segment.number, 'is_checkpoint': step in saved}
                checkpoints.append({**where, 'sources': sources})
    return [each for each in checkpoints if each['is_checkpoint'] or each is checkpoints[-1]]


def _described(stream: OpenedStream) -> dict[str, Any]:
    return {
        'stream': stream.name,
        'source': without_credentials(stream.url or str(stream.folder)),
        'format': stream.shards[0].made_from or stream.shards[0].format,
        'data': stream.fingerprint,
        'first_shard': stream.first_offered,
        'shards': len(stream.shards),
        'drawn': 0,
    }


def _drawn(dataset: StreamingDataset, plan: BatchPlan, first: int, last: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Ids of the samples of batches, some at a time, and what counts of each stream, int64[streams]."""
    if dataset.stream_unit == 'tokens':
        for k in range(first, last):
            explained = dataset.explain(plan, k)
            yield explained.ids, np.array([*explained.stream_counts().values()], np.int64)
        return
    for begin, end in plan.spans(first, last):
        for at in range(begin, end, _CHUNK):
            ids = plan.order.at(np.arange(at, min(at + _CHUNK, end)))
            yield ids, dataset.mixture.count_streams(ids)
