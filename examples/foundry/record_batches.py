"""A callback that writes what each batch was made of. LLM Foundry finds it by `code_paths` in the YAML."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from llmfoundry.registry import callbacks

from composer import Callback, Logger, State


class RecordBatches(Callback):
    """Appends a line for each batch that was trained or evaluated: its number, its documents' digests, its loss.

    The file is flushed after each line, so that a line means: the step is done.

    Args:
        path: the file.
        packed: whether a row of a training batch holds several documents, which `sequence_id` tells apart.
        pause_at: the batch before which to wait for the end of the process; None: never. The file says `paused`.
    """

    def __init__(self, path: str, packed: bool = False, pause_at: int | None = None) -> None:
        self._path, self._packed, self._pause_at = Path(path), packed, pause_at
        self._documents: list[list[str]] = []

    def fit_start(self, state: State, logger: Logger) -> None:
        del logger
        dataset: Any = state.train_dataloader.dataset  # pyright: ignore[reportOptionalMemberAccess]
        self._write(reader=reader(dataset), first=int(state.timestamp.batch))

    def batch_start(self, state: State, logger: Logger) -> None:
        del logger
        if int(state.timestamp.batch) == self._pause_at:
            self._write(paused=self._pause_at)
            threading.Event().wait()
        self._documents = documents(state.batch, self._packed)

    def batch_end(self, state: State, logger: Logger) -> None:
        del logger
        loss = state.loss
        step = int(state.timestamp.batch) - 1  # Composer has counted it
        self._write(train=step, documents=self._documents, loss=float(loss).hex())

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        del logger
        step, batch = int(state.timestamp.batch), int(state.eval_timestamp.batch)
        self._write(eval=[step, batch], documents=documents(state.batch))

    def _write(self, **line: Any) -> None:
        with self._path.open('a') as out:
            out.write(f'{json.dumps(line)}\n')


def documents(batch: Mapping[str, Any], packed: bool = False) -> list[list[str]]:
    """The digests of the documents of each row, in order, without padding."""
    tokens = batch['input_ids']
    numbers = batch.get('attention_mask', torch.ones_like(tokens))  # 0: padding
    if packed:
        numbers = numbers * (batch['sequence_id'] + 1)
    rows = zip(tokens.tolist(), numbers.tolist(), strict=True)
    return [[digest(ids[begin:end]) for begin, end in spans(row)] for ids, row in rows]


def reader(dataset: object) -> str:
    """The class that Foundry's dataset derives from."""
    parent = type(dataset).__mro__[1]
    return f'{parent.__module__}.{parent.__qualname__}'


def spans(numbers: list[int]) -> list[tuple[int, int]]:
    """The runs of one number, 0 excepted."""
    edges = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1]), len(numbers)]
    return [(begin, end) for begin, end in itertools.pairwise(edges) if numbers[begin]]


def digest(tokens: list[int]) -> str:
    return hashlib.blake2b(json.dumps(tokens).encode(), digest_size=8).hexdigest()


callbacks.register('record_batches', func=RecordBatches)
