"""Padding and unequal work of samplers, and the loss of a small GPT with and without `bucket` on texts."""

from __future__ import annotations

import ast
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.figures.results import BLUE, GRAY, ORANGE, Made, Result
from benchmarks.lengths import CONTENDERS, figures, lengths
from benchmarks.machine import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH, EPOCHS, BUCKET = 32, 2, 64
LONGEST = 256
"""Bytes of a text; longer ones are cut."""
TRAINED, TESTED = 6144, 512
EVERY = 64
"""Steps between two tests."""
RANKS, ROWS = 8, 32
NEEDS = {'group_by_length': 'transformers', 'Lhotse': 'lhotse'}
RUNS = {'random batches': {}, 'bucket: 64': {'bucket': BUCKET}}
COLORS = dict(zip(RUNS, (ORANGE, BLUE), strict=True))


def docstrings() -> list[bytes]:
    """Docstrings of the standard library, without those that are there already, in a fixed random order."""
    found: dict[bytes, None] = {}
    root = Path(sysconfig.get_path('stdlib'))
    for path in sorted(root.rglob('*.py')):
        if not {'test', 'tests', 'site-packages', 'lib2to3', 'idlelib'} & set(path.relative_to(root).parts):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                    found[text.encode()[:LONGEST]] = None
    texts = [text for text in found if len(text) > 1]
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[number] for number in order[: TRAINED + TESTED]]


def train(folder: Path, tests: list[Any], epochs: int, seed: int, **how: Any) -> Result:
    """Train, and give the loss on the tests, in nats per byte, and the places computed so far, padding included."""
    import torch

    from examples.demo.model import make_model, make_optimizer
    from headrace import StreamingDataLoader, StreamingDataset

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    dataset = StreamingDataset(
        local=str(folder), batch_size=BATCH, shuffle=True, shuffle_seed=seed, cost='text', remainder='drop', **how
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH, pad={'text': {'value': 0, 'mask': True}})
    model = make_model()
    optimizer = make_optimizer(model)

    def loss_of(batch: Any) -> torch.Tensor:
        rows, mask = batch['text'].long(), batch['text_mask'][:, 1:]
        return torch.nn.functional.cross_entropy(model(rows[:, :-1])[mask], rows[:, 1:][mask])

    def tested() -> float:
        with torch.no_grad():
            sizes = [int(batch['text_mask'][:, 1:].sum()) for batch in tests]
            return float(np.average([loss_of(batch).item() for batch in tests], weights=sizes))

    losses, places, step, computed = [tested()], [0], 0, 0
    for _ in range(epochs):
        for batch in loader:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, computed = step + 1, computed + batch['text'].numel()
            if not step % EVERY:
                losses.append(tested())
                places.append(computed)
    return {'loss': losses, 'places': places}


def write(folder: Path, texts: list[bytes]) -> None:
    from headrace import MDSWriter

    with MDSWriter(out=str(folder), columns={'text': 'ndarray:uint8'}, size_limit='64kb') as writer:
        for text in texts:
            writer.write({'text': np.frombuffer(text, np.uint8)})


def measure(small: bool) -> Result:
    from headrace import StreamingDataLoader, StreamingDataset

    described, texts = machine('torch'), docstrings()
    seeds, epochs = (1, 1) if small else (3, EPOCHS)
    if small:
        texts = texts[: EVERY * BATCH + TESTED]
    runs: dict[str, list[Result]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        trained, held_out = Path(folder, 'trained'), Path(folder, 'tested')
        write(trained, texts[:-TESTED])
        write(held_out, texts[-TESTED:])
        pad = {'text': {'value': 0, 'mask': True}}
        tests = list(StreamingDataLoader(StreamingDataset(local=str(held_out)), batch_size=BATCH, pad=pad))
        for seed in range(seeds):
            for name, how in RUNS.items():
                runs[name].append(train(trained, tests, epochs, seed, **how))
    values = lengths('chat', 20_000 if small else 100_000)
    samplers = {
        name: figures(contender(values, RANKS, ROWS))
        for name, contender in CONTENDERS.items()
        if find_spec(NEEDS.get(name, 'numpy'))
    }
    last = {name: np.array([run['loss'][-1] for run in found]) for name, found in runs.items()}
    return {
        'machine': described,
        'settings': {
            'texts': 'docstrings of the standard library',
            'trained': len(texts) - TESTED,
            'tested': TESTED,
            'bytes of a text at most': LONGEST,
            'mean bytes of a text': float(np.mean([len(text) for text in texts])),
            'batch': BATCH,
            'epochs': epochs,
            'seeds': seeds,
            'steps between tests': EVERY,
        },
        'samplers': samplers,
        'runs': runs,
        'last loss': {name: {'mean': float(of.mean()), 'deviation': float(of.std())} for name, of in last.items()},
        'places': {name: found[0]['places'][-1] for name, found in runs.items()},
    }


def claims(result: Result) -> dict[str, bool]:
    random, bucketed = (result['last loss'][name] for name in RUNS)
    places, samplers = result['places'], result['samplers']
    return {
        'the stated losses are those of the runs': all(
            result['last loss'][name]['mean'] == float(np.mean([run['loss'][-1] for run in runs]))
            for name, runs in result['runs'].items()
        ),
        'both see as many samples': len({len(run['loss']) for runs in result['runs'].values() for run in runs}) == 1,
        'the losses with `bucket` end within 0.05 of those without': abs(random['mean'] - bucketed['mean']) < 0.05,
        'they are lower after as many places': bucketed['mean']
        < min(
            loss
            for run in result['runs']['random batches']
            for loss, at in zip(run['loss'], run['places'], strict=True)
            if at <= places['bucket: 64']
        ),
        'they take less than two thirds of the places': places['bucket: 64'] < 2 / 3 * places['random batches'],
        'a wider window pads less': (
            samplers['random']['padding'] > samplers['bucket 16']['padding'] > samplers['bucket 256']['padding']
        ),
        '`balance` makes ranks equal': samplers['balance 1']['max/mean'] < 1.02 < samplers['random']['max/mean'],
    }


def draw(result: Result) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.3, 6.2))
    figure.suptitle('`bucket` reaches a loss with half of the work; `balance` makes the work of ranks equal')
    (padding, work), (by_samples, by_places) = figure.subplots(2, 2)
    names, samplers = list(result['samplers']), result['samplers']
    at = np.arange(len(names))[::-1]
    colors = [GRAY if name in ('group_by_length', 'Lhotse') else BLUE for name in names]
    padding.barh(at, [100 * samplers[name]['padding'] for name in names], color=colors, height=0.7)
    padding.set_yticks(at, names)
    padding.set(title=f'padding in percent, {RANKS} x {ROWS} chats')
    work.barh(at, [100 * (samplers[name]['max/mean'] - 1) for name in names], color=colors, height=0.7)
    work.set_yticks(at, [])
    work.set(title='excess work of the slowest rank, percent')
    settings = result['settings']
    for name, runs in result['runs'].items():
        losses, places = (np.array([run[key] for run in runs]) for key in ('loss', 'places'))
        samples = np.arange(losses.shape[1]) * settings['steps between tests'] * settings['batch']
        mean = losses.mean(0)
        for axes, x in ((by_samples, samples), (by_places, places.mean(0) / 1e6)):
            axes.plot(x[1:], mean[1:], color=COLORS[name], label=name)
            axes.fill_between(x[1:], losses.min(0)[1:], losses.max(0)[1:], color=COLORS[name], alpha=0.25, linewidth=0)
    by_samples.set(title='loss on held-out texts, nats per byte', xlabel='samples seen')
    by_places.set(title='the same, by computed places', xlabel='millions of places, padding included')
    by_samples.legend()
    return figure


FIGURE = Made(measure, claims, draw)
