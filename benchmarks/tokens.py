"""Tokens read in place: Megatron-LM's files beside its own datasets, and raw tokens beside a memory map of numpy.

    PYTHONPATH=FOLDER_OF_MEGATRON_CORE python -m benchmarks.tokens [ROUNDS] [--json FILE]

Each run is a process of its own, without workers, with all files in the page cache, and rounds are interleaved. Without
`megatron.core` its rows are left out. The figures are medians of processor time, so they need no quiet machine.

- "open" is the call that opens the data, with indexing once in an empty cache folder; "again" has the cache.
- "epoch 1" and "later" are whole passes in batches of 32, shuffled. "rows" is samples at random places, one by one.
- "documents": `dataset[i]` of `StreamingDataset`, and of `IndexedDataset`, which gives views of its memory map.
  "lists" is `dataset[[i, j, ...]]` with 1,000 of them, and a loop over `IndexedDataset`, which takes no list.
- "packed": `PackedDataset` of sequences of 1,024 tokens by `concatenate`, beside `GPTDataset` in a `DataLoader`.
- "blocks": blocks of 1,024 tokens of a raw file, beside a `Dataset` over `numpy.memmap` in a `DataLoader`.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.rounds import in_rounds

TOKENS, LENGTH, BATCH, RANDOM = 16_000_000, 1024, 32, 20_000


def write(folder: Path) -> None:
    """The same tokens as `corpus.bin` with `corpus.idx`, and as `raw/train.bin`."""
    rng = np.random.default_rng(7)
    lengths = np.maximum(rng.lognormal(6.2, 1.0, TOKENS // 600), 2).astype('<i4')
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), TOKENS))]
    ends = np.cumsum(lengths, dtype=np.int64)
    tokens = rng.integers(1, 50_000, ends[-1], np.uint16)
    tokens[ends - 1] = 50_256
    (folder / 'raw').mkdir()
    tokens.tofile(folder / 'corpus.bin')
    tokens.tofile(folder / 'raw/train.bin')
    head = struct.pack('<9sQBQQ', b'MMIDIDX\0\0', 1, 8, len(lengths), len(lengths) + 1)
    arrays = lengths, 2 * (ends - lengths), np.arange(len(lengths) + 1, dtype=np.int64)
    (folder / 'corpus.idx').write_bytes(head + b''.join(array.tobytes() for array in arrays))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def rows_of(dataset: Any, count: int = RANDOM) -> float:
    """Samples in a second, at random places."""
    places = np.random.default_rng(1).integers(0, len(dataset), count).tolist()
    return count / timed(lambda: [dataset[place] for place in places])[1]


def lists_of(read: Callable[[list[int]], Any], documents: int) -> float:
    """Samples in a second, at random places, by lists."""
    places = np.random.default_rng(1).integers(0, documents, (RANDOM // 1000, 1000)).tolist()

    def run() -> None:
        for some in places:
            read(some)

    run()
    return RANDOM / timed(run)[1]


def passes(loader: Any, batches: int) -> dict[str, float]:
    """Processor seconds of the first pass, and of a later one."""

    def run() -> None:
        seen = 0
        for _ in loader:
            seen += 1
            if seen == batches:
                break
        assert seen == batches, (seen, batches)

    return {'epoch 1': timed(run)[1], 'later': timed(run)[1]}


def ours(kind: str, folder: Path, cache: str) -> dict[str, float]:
    from headrace import StreamingDataLoader, StreamingDataset
    from headrace.packing import PackedDataset, Packing

    count = (folder / 'corpus.bin').stat().st_size // 2 // LENGTH // BATCH
    options: dict[str, Any] = {'remote': f'{folder}/corpus*', 'local': cache, 'shuffle': True}
    make: Callable[[], Any]
    if kind == 'packed':
        packing = Packing(
            sequence_length=LENGTH, method='concatenate', sequences_per_epoch=(count - 1) * BATCH, lanes=BATCH
        )
        make = lambda: PackedDataset(packing=packing, **options)  # noqa: E731
    elif kind == 'blocks':
        raw = {'format': 'tokens', 'format_options': {'token_dtype': 'uint16', 'block_size': LENGTH}}
        make = lambda: StreamingDataset(batch_size=BATCH, **{**options, 'remote': f'{folder}/raw'}, **raw)  # noqa: E731
    else:
        make = lambda: StreamingDataset(batch_size=1, **{**options, 'shuffle': False})  # noqa: E731
    dataset, opening = timed(make)
    if kind == 'documents':
        rows_of(dataset)
        found = {'open': opening, 'rows': rows_of(dataset), 'lists': lists_of(dataset.__getitem__, len(dataset))}
        return {**found, 'again': timed(make)[1]}
    found = {'open': opening, **passes(StreamingDataLoader(dataset, batch_size=BATCH), count - 1)}
    if kind == 'blocks':
        found['rows'] = rows_of(dataset)
    return {**found, 'again': timed(make)[1]}


def theirs(kind: str, folder: Path, cache: str) -> dict[str, float]:
    import torch

    count = (folder / 'corpus.bin').stat().st_size // 2 // LENGTH // BATCH
    if kind == 'blocks':
        dataset, opening = timed(lambda: Mapped(folder / 'raw/train.bin'))
        loader: Any = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True)
        return {'open': opening, **passes(loader, count - 1), 'rows': rows_of(dataset)}
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    if kind == 'documents':
        dataset, opening = timed(lambda: IndexedDataset(f'{folder}/corpus'))
        rows_of(dataset)
        found = {'open': opening, 'rows': rows_of(dataset)}
        return {**found, 'lists': lists_of(lambda some: [dataset[place] for place in some], len(dataset))}
    dataset, opening = timed(lambda: gpt_dataset(folder, cache))
    loader = torch.utils.data.DataLoader(dataset, BATCH)
    found = {'open': opening, **passes(loader, count - 1), 'rows': rows_of(dataset)}
    return {**found, 'again': timed(lambda: gpt_dataset(folder, cache))[1]}


class Mapped:
    """Blocks of a raw file."""

    def __init__(self, path: Path) -> None:
        self._tokens = np.memmap(path, np.uint16, mode='r')

    def __len__(self) -> int:
        return len(self._tokens) // LENGTH

    def __getitem__(self, number: int) -> Any:
        import torch

        return {'tokens': torch.from_numpy(np.array(self._tokens[number * LENGTH : (number + 1) * LENGTH]))}


class Tokenizer:
    """The attributes that `GPTDatasetConfig` asks for."""

    vocab_size, eod, pad, unique_identifiers = 50_257, 50_256, 50_256, {'class': 'Tokenizer'}


def gpt_dataset(folder: Path, cache: str) -> Any:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=([f'{folder}/corpus'], None),
        split='1',
        path_to_cache=cache,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        allow_ambiguous_pad_tokens=True,
    )
    indexed = GPTDataset.build_low_level_dataset(f'{folder}/corpus', config)
    numbers = np.arange(len(indexed), dtype=np.int32)
    return GPTDataset(indexed, f'{folder}/corpus', numbers, None, Split.train, config)


def run(name: str, folder: Path) -> dict[str, float]:
    kind, who = name.split(', ')
    with tempfile.TemporaryDirectory() as cache:
        return {'ours': ours, 'theirs': theirs}[who](kind, folder, cache)


if __name__ == '__main__':
    seconds, rate = '{:.3f} s', '{:,.0f}/s'
    in_rounds(
        'benchmarks.tokens',
        [f'{kind}, {who}' for kind in ('documents', 'packed', 'blocks') for who in ('ours', 'theirs')],
        write,
        run,
        {**dict.fromkeys(('open', 'again', 'epoch 1', 'later'), seconds), 'rows': rate, 'lists': rate},
        rounds=5,
    )
