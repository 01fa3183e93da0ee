"""Shares of streams that follow their losses, as DoReMi's do: killed, resumed on other ranks, and repeated.

usage: [torchrun --nproc-per-node N] python examples/online_mixture.py FOLDER [STEPS] [--repeat]

The first call writes three streams to FOLDER. Each call trains to step STEPS (400), from FOLDER/checkpoint.pt if a call
was killed. It decides new shares every 10 steps, and draws FOLDER/shares.png, where matplotlib is installed. With
--repeat it trains from the beginning, and takes the decisions of the checkpoint in place of the losses.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from headrace import STREAM, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.metrics import PerStreamMean, proportions_by_loss

EVERY, GLOBAL_BATCH = 10, 48
TOKENS = 64  # of each stream
REFERENCES = {'count': 0.0, 'coin': math.log(2), 'noise': math.log(TOKENS)}  # the losses of a perfect model


def write_streams(folder: Path, samples: int = 3000) -> None:
    random = np.random.default_rng(5)
    for number, name in enumerate(REFERENCES):
        with MDSWriter(out=str(folder / name), columns={'id': 'int', 'tokens': 'ndarray:int64:17'}) as writer:
            for sample in range(samples):
                steps = np.ones(17, np.int64) if name == 'count' else random.integers(1, 3, 17)
                tokens = random.integers(TOKENS, size=17) if name == 'noise' else np.cumsum(steps) + sample
                writer.write({'id': number * samples + sample, 'tokens': tokens % TOKENS + number * TOKENS})


def train(
    folder: Path,
    until: int,
    *,
    repeat: bool = False,
    workers: int = 1,
    after_step: Callable[[int, Any], object] = lambda step, batch: None,  # noqa: ARG005
) -> list[dict[str, dict[str, float]]]:
    """Train to a step; returns, for each decision, the shares that were decided and those of the steps before it."""
    checkpoint = folder / 'checkpoint.pt'
    saved = torch.load(checkpoint) if checkpoint.exists() else None
    dataset = StreamingDataset(
        streams=[Stream(local=str(folder / name), name=name, proportion=1) for name in REFERENCES],
        global_batch_size=GLOBAL_BATCH,
        epoch_size=200 * GLOBAL_BATCH,
        shuffle=True,
        decisions=saved['data'] if repeat and saved else (),
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0, mark_streams=True)
    model = torch.nn.Embedding(3 * TOKENS, 3 * TOKENS)
    torch.nn.init.zeros_(model.weight)
    losses, history, step = PerStreamMean(dataset.stream_names), list[dict[str, dict[str, float]]](), 0
    if saved and not repeat:
        model.load_state_dict(saved['model'])
        loader.load_state_dict(saved['data'])
        history, step = saved['history'], saved['step']
    shares = history[-1]['decided'] if history else dict.fromkeys(REFERENCES, 1 / 3)
    counted = loader.mix()
    while step < until:
        for batch in loader:
            tokens = batch['tokens']
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:], reduction='none').mean(1)
            losses.update(loss, batch[STREAM])
            (gradient,) = torch.autograd.grad(loss.sum() / GLOBAL_BATCH, [model.weight])
            if dist.is_initialized():
                dist.all_reduce(gradient)
            with torch.no_grad():
                model.weight -= 30 * gradient
            step += 1
            after_step(step, batch)
            if step % EVERY == 0:
                now = loader.mix()
                before = {name: counted[name].samples if counted else 0 for name in now}
                seen = {name: (now[name].samples - before[name]) / EVERY / GLOBAL_BATCH for name in now}
                if not repeat:
                    means = {name: float(mean) for name, mean in losses.compute().items()}
                    shares = proportions_by_loss(shares, means, references=REFERENCES, rate=0.3, floor=0.02)
                    loader.set_proportions(shares, by='examples/online_mixture.py')
                    losses.reset()
                history.append({'seen': seen, 'decided': shares})
                counted = now
                if not repeat and loader.dataset.topology.rank == 0:
                    state = {'model': model.state_dict(), 'data': loader.state_dict(), 'history': history, 'step': step}
                    torch.save(state, f'{checkpoint}.new')
                    Path(f'{checkpoint}.new').replace(checkpoint)
            if step == until:
                break
    return history


def draw(history: list[dict[str, dict[str, float]]], path: Path) -> None:
    from matplotlib import pyplot as plt

    _, axes = plt.subplots(figsize=(7, 3), layout='constrained')
    steps = np.arange(1, len(history) + 1) * EVERY
    for name in REFERENCES:
        (line,) = axes.plot(steps, [one['decided'][name] for one in history], label=name)
        axes.plot(steps - EVERY / 2, [one['seen'][name] for one in history], '.', color=line.get_color(), markersize=3)
    axes.set(xlabel='step', ylabel='share: decided (line), of batches (dots)', ylim=(0, 1))
    axes.legend()
    plt.savefig(path, dpi=130)


def main() -> None:
    folder, repeat = Path(sys.argv[1]), '--repeat' in sys.argv
    until = int(sys.argv[2]) if sys.argv[2:] and sys.argv[2].isdecimal() else 400
    if 'RANK' in os.environ:
        dist.init_process_group('gloo')
    if not (folder / 'noise' / 'index.json').exists() and int(os.environ.get('RANK', '0')) == 0:
        write_streams(folder)
    if dist.is_initialized():
        dist.barrier()
    history = train(folder, until, repeat=repeat)
    if int(os.environ.get('RANK', '0')) == 0 and not repeat:
        draw(history, folder / 'shares.png')


if __name__ == '__main__':
    main()
