"""Streams of stored tokens and of texts, and the same documents as tokens alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headrace import MDSWriter, Stream, StreamingDataLoader
from headrace.packing import PackedDataset, Packing, StreamPacking

LENGTHS = {'array': 23, 'raw': 17, 'listed': 19, 'text': 29, 'body': 13, 'other': 11}
SIZE = 16


def tokens_of(stream: str, number: int) -> list[int]:
    """The tokens of a document."""
    first = 1000 * list(LENGTHS).index(stream) + 20 * number + 1
    return list(range(first, first + 1 + (7 * number) % 19))


def tokenize(texts: list[str]) -> list[list[int]]:
    """A tokenizer of texts of numbers."""
    return [[int(word) for word in text.split()] for text in texts]


def tokenize_hexadecimal(texts: list[str]) -> list[list[int]]:
    """Another tokenizer."""
    return [[int(word, 16) for word in text.split()] for text in texts]


def write_mixed(folder: Path) -> Path:
    """The streams below `folder`, and their tokens as arrays of int32 below `folder/plain`."""
    columns = {'array': 'ndarray:uint16', 'raw': 'bytes', 'text': 'str', 'body': 'str', 'other': 'str'}
    names = {'array': 'ids', 'raw': 'tokens', 'listed': 'ids', 'text': 'text', 'body': 'body', 'other': 'text'}
    for stream, count in LENGTHS.items():
        documents = [tokens_of(stream, number) for number in range(count)]
        with MDSWriter(out=str(folder / 'plain' / stream), columns={'tokens': 'ndarray:int32'}) as writer:
            for tokens in documents:
                writer.write({'tokens': np.array(tokens, np.int32)})
        values: list[Any] = {
            'array': [np.array(tokens, np.uint16) for tokens in documents],
            'raw': [np.array(tokens, np.uint32).tobytes() for tokens in documents],
            'other': [' '.join(f'{token:x}' for token in tokens) for tokens in documents],
        }.get(stream, [' '.join(map(str, tokens)) for tokens in documents])
        if stream == 'listed':
            (folder / stream).mkdir()
            lines = [json.dumps({'ids': tokens}) + '\n' for tokens in documents]
            (folder / stream / 'a.jsonl').write_text(''.join(lines))
            continue
        with MDSWriter(out=str(folder / stream), columns={names[stream]: columns[stream], 'id': 'int'}) as writer:
            for number, value in enumerate(values):
                writer.write({names[stream]: value, 'id': number})
    return folder


def packings() -> dict[str, StreamPacking | None]:
    """What differs in each stream."""
    return {
        'array': StreamPacking(column='ids'),
        'raw': StreamPacking(token_dtype='uint32'),
        'listed': StreamPacking(column='ids', token_dtype='int32'),
        'text': None,
        'body': StreamPacking(column='body'),
        'other': StreamPacking(tokenizer=tokenize_hexadecimal),
    }


def mixed(folder: Path, cache: Path, streams: dict[str, StreamPacking | None] | None = None, **options: Any) -> Any:
    """A loader of the streams as they are."""
    made = [
        Stream(remote=str(folder / name), local=str(cache / name), name=name, packing=packing)
        for name, packing in (packings() if streams is None else streams).items()
    ]
    return loader_of(made, tokenizer=tokenize, **options)


def plain(folder: Path, **options: Any) -> Any:
    """A loader of the same documents, all stored as tokens."""
    return loader_of([Stream(local=str(folder / 'plain' / name), name=name) for name in LENGTHS], **options)


def loader_of(
    streams: list[Stream], *, tokenizer: Any = None, workers: int = 0, batch: int = 4, lanes: int = 4, **options: Any
) -> Any:
    packing = Packing(sequence_length=SIZE, window=3, tokenizer=tokenizer, lanes=lanes)
    options = {'shuffle': True, 'shuffle_seed': 3, 'predownload': 8, **options}
    dataset = PackedDataset(streams=streams, packing=packing, **options)
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=workers)


def rows(loader: Any, batches: int) -> list[list[int]]:
    """The sequences of some batches."""
    return [row for _, batch in zip(range(batches), loader, strict=False) for row in batch['input_ids'].tolist()]
