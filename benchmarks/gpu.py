"""headrace and its peers feed a GPU: how much arrives there, and how long it waits.

usage: python -m benchmarks.gpu [--rounds 3] [--workers 0 2] [--loads copy bag decoder] [--only headrace map]
                                [--seconds 2] [--every 16] [--data DIR] [--json OUT]

All have the same shuffled rows of 2,048 int32 tokens, in batches of 16, from the page cache. Batches are in pinned
memory; "headrace-ahead" copies them itself, with `device='cuda'`. The trainer waits for the GPU every 16 steps, or
`--every`: with 1 it has no step ahead of the GPU. Loads:

- copy: batches are copied to the GPU, and nothing else happens there. GB/s of copies.
- bag: training steps of a bag of words, the shortest there are. decoder: those of a decoder of 12 layers in bfloat16.
  "GPU waits" is the share of a step for which its batch is late. The comparison is a step on a batch that is on the
  GPU already.

"resident" is no loader. Its copies are of one pinned batch, and its steps of one batch that stays on the GPU. One
process has all loaders of a number of workers. Each pass begins a new iterator, whose first batches are not counted;
the contenders take turns within a round. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.loading.contenders import BATCH, CONTENDERS, TOKENS, Settings, written
from benchmarks.machine import machine
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from headrace import StreamingDataLoader

VOCABULARY = 50_257
LAYERS, WIDTH = 12, 768
LOADS = ['copy', 'bag', 'decoder']
AHEAD = 'headrace-ahead'
PEERS = ['headrace', AHEAD, 'mosaicml-streaming', 'litdata', 'map']
UNCOUNTED = 8
"""Batches that begin a pass."""
MOST = 2_000
"""Counted batches of a pass at most; an epoch has more."""


class Bag(nn.Module):
    """A bag of words: the mean of the embeddings of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(VOCABULARY, 64), nn.Linear(64, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens)).square().mean()


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.forward_network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.norms[0](hidden)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joined(seen.transpose(1, 2).flatten(2))
        return hidden + self.forward_network(self.norms[1](hidden))


class Decoder(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Layer(WIDTH) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embedding(tokens) + self.places.weight)
        return cross_entropy(self.head(self.norm(hidden))[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def step_of(load: str) -> Callable[[torch.Tensor], object]:
    """The use of a batch that is on the GPU."""
    if load == 'copy':
        return lambda tokens: tokens
    model = (Bag() if load == 'bag' else Decoder().bfloat16()).to('cuda')
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train(tokens: torch.Tensor) -> None:
        model(tokens.long()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def tokens_of(batch: Any) -> torch.Tensor:
    return batch['tokens'] if isinstance(batch, dict) else batch


def resident(load: str) -> Iterator[torch.Tensor]:
    """One batch, on the GPU for training, and in pinned memory for copies."""
    rows = torch.randint(0, VOCABULARY, (BATCH['tokens'], TOKENS), dtype=torch.int32)
    return itertools.repeat(rows.pin_memory() if load == 'copy' else rows.to('cuda'))


def seconds_a_batch(
    batches: Iterable[Any], step: Callable[[torch.Tensor], object], seconds: float, every: int
) -> float:
    """Mean time of a step with its copy. The measurement ends with the pass, or after this many seconds."""
    ahead = iter(batches)
    for batch in itertools.islice(ahead, UNCOUNTED):
        step(tokens_of(batch).to('cuda', non_blocking=True))
    torch.cuda.synchronize()
    count, begin = 0, time.perf_counter()
    while count < MOST and time.perf_counter() - begin < seconds:
        batch = next(ahead, None)
        if batch is None:
            break
        step(tokens_of(batch).to('cuda', non_blocking=True))
        count += 1
        if not count % every:  # as a trainer that reads its loss; without it, the queue of the GPU would hide waits
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def loader_of(name: str, workers: int, data: Path) -> Iterable[Any]:
    """A contender's loader."""
    if name == AHEAD:
        loader = loader_of('headrace', workers, data)
        assert isinstance(loader, StreamingDataLoader)
        loader.device = 'cuda'
        return loader
    settings = Settings('tokens', written(name, 'tokens', data), workers, 'fork' if workers else None, pinned=True)
    return CONTENDERS[name].read(settings)


def measure(
    load: str, loaders: dict[str, Iterable[Any]], rounds: int, seconds: float, every: int
) -> dict[str, list[float]]:
    """Seconds a batch of all rounds, by contender."""
    torch.manual_seed(0)
    step = step_of(load)
    times: dict[str, list[float]] = {name: [] for name in ('resident', *loaders)}
    seconds_a_batch(resident(load), step, 0.5, every)
    for number in range(rounds):
        names = list(times)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            batches = resident(load) if name == 'resident' else loaders[name]
            times[name].append(seconds_a_batch(batches, step, seconds, every))
    return times


def show(load: str, workers: int, times: dict[str, list[float]]) -> None:
    """A table of a load."""
    figure = 'GB/s' if load == 'copy' else 'GPU waits'
    print(f'\n| {load}, {workers} workers | ms a batch | {figure} | headrace is |\n|---|---|---|---|')
    ours, size = times.get('headrace'), BATCH['tokens'] * TOKENS * 4
    for name, found in sorted(times.items(), key=lambda pair: statistics.median(pair[1])):
        each = statistics.median(found)
        if load == 'copy':
            value = f'{size / each / 1e9:.2f}'
        elif name == 'resident':
            value = ''
        else:
            pairs = zip(times['resident'], found, strict=True)
            value = f'{100 * statistics.median(1 - alone / fed for alone, fed in pairs):.1f} %'
        ratio = '' if ours is None or name == 'headrace' else f'{each / statistics.median(ours):.2f} x'
        label = f'**{name}**' if name == 'headrace' else name
        print(f'| {label} | {1000 * each:.3f} | {value} | {ratio} |', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m benchmarks.gpu')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--workers', type=int, nargs='+', default=[0, 2])
    parser.add_argument('--only', nargs='+', default=PEERS, choices=PEERS)
    parser.add_argument('--loads', nargs='+', default=LOADS, choices=LOADS)
    parser.add_argument('--seconds', type=float, default=2)
    parser.add_argument('--every', type=int, default=16)
    parser.add_argument('--data', type=Path, default=Path(tempfile.gettempdir()) / 'headrace-benchmark')
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit('benchmarks.gpu measures an NVIDIA GPU, and PyTorch finds none here.')
    # A copy of headrace's sources need not be installed.
    packages = [CONTENDERS[name].package for name in options.only if name not in ('headrace', AHEAD)]
    described = f'{torch.cuda.get_device_name()}; {machine("torch", *filter(None, packages))}'
    results: list[dict[str, Any]] = []
    for workers in options.workers:
        loaders = {name: loader_of(name, workers, options.data) for name in options.only}
        for load in options.loads:
            times = measure(load, loaders, options.rounds, options.seconds, options.every)
            show(load, workers, times)
            results.append({'load': load, 'workers': workers, 'seconds': times})
    print(f'\n{described}. Medians of {options.rounds} rounds.')
    if options.json:
        options.json.write_text(json.dumps({'machine': described, 'results': results}, indent=1))


if __name__ == '__main__':
    main()
