"""How well the orders shuffle and what they need in shards, side by side: the tables of docs/shuffle_quality.md.

usage: python benchmarks/shuffle_quality.py [--gains] [--seeds N] [--only TEXT] [ALGORITHM ...]

Each line is the median over seeds of one case and one order; with --gains, one case: how many thousandths of a bit the
native order has more than py1e, mean over seeds ± its standard error, and means of the rest, native / py1e.

Bits are the entropy of neighbours' differences, of sample ids and of shard numbers, in the whole sequence and in a
canonical node's (mean over nodes). The rest is of a node (mean over nodes): shards open, new shards in a node's batch
of 512 samples, and shards of its first batch.
"""

from __future__ import annotations

import argparse

import numpy as np

from headrace.order.arrays import IntArray
from headrace.testing.order_quality import bits, node_use, sequence_of

ALGORITHMS = ('native', 'py1e', 'py1br', 'py1b', 'py1s', 'naive')
NODE_BATCH = 512
COLUMNS = ('samples', 'shards', 'node samples', 'node shards', 'open', 'max', 'new sd', 'max', 'first batch')


def cases() -> list[tuple[str, IntArray, int, int]]:
    """Return names, shard sizes int64[shards], numbers of canonical nodes, and block sizes."""
    random = np.random.default_rng(7)
    equal = np.full(400, 1000)
    uneven = random.integers(200, 3801, 400)
    lognormal = np.maximum(1, (np.exp(random.normal(0, 1, 400)) * 1000).astype(np.int64))
    small = random.integers(20, 80, 4000)
    found = [(f'400 shards of 1000, C={c}, block 2^14', equal, c, 1 << 14) for c in (1, 2, 4, 8)]
    for c in (1, 4, 8):
        found.append((f'400 of 200 to 3800, C={c}, block 2^15', uneven, c, 1 << 15))
        found.append((f'400 lognormal, C={c}, block 2^15', lognormal, c, 1 << 15))
        found.append((f'4000 of 20 to 79, C={c}, block 2^12', small, c, 1 << 12))
    for c in (1, 4):
        blocks = (500, 1500, 4000, 1 << 15, 1 << 17, 1 << 20)
        found.extend((f'400 shards of 1000, C={c}, block {block}', equal, c, block) for block in blocks)
    found.append(('400 of 200 to 3800, C=4, block 1000', uneven, 4, 1000))
    found.append(('400 of 200 to 3800, C=4, block 6000', uneven, 4, 6000))
    found.append(('400 lognormal, C=4, block 6000', lognormal, 4, 6000))
    return found


def measure(algorithm: str, sizes: IntArray, num_nodes: int, block_size: int, seed: int) -> list[float]:
    """Return the figures of COLUMNS."""
    sequence = sequence_of(algorithm, sizes, num_nodes, block_size, seed)
    of_nodes = []
    for c in range(num_nodes):
        node = sequence.node(c)
        use = node_use(node.shards, NODE_BATCH)
        later = use.new[1:-1]
        figures = use.open.mean(), use.open.max(), later.std(), later.max(), use.new[0]
        of_nodes.append([bits(node.samples), bits(node.shards), *figures])
    return [bits(sequence.samples), bits(sequence.shards), *np.mean(of_nodes, 0)]


def print_gains(names: list[str], seeds: int) -> None:
    print(f'| shards, nodes, block | {" | ".join(COLUMNS)} |\n{"|---" * (len(COLUMNS) + 1)}|')
    for name, *case in cases():
        if name not in names:
            continue
        native, py1e = (np.array([measure(a, *case, seed) for seed in range(seeds)]) for a in ('native', 'py1e'))
        gains = 1000 * (native - py1e)[:, :4]
        errors = gains.std(0, ddof=1) / np.sqrt(seeds)
        cells = [f'{mean:+.1f} ± {error:.1f}' for mean, error in zip(gains.mean(0), errors, strict=True)]
        cells += [f'{x:.2f} / {y:.2f}' for x, y in zip(native.mean(0)[4:], py1e.mean(0)[4:], strict=True)]
        print(f'| {name} | {" | ".join(cells)} |', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('algorithms', nargs='*', default=list(ALGORITHMS))
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--only', default='', help='cases whose name has this text')
    parser.add_argument('--gains', action='store_true', help='native beside py1e')
    args = parser.parse_args()
    names = [case[0] for case in cases() if args.only in case[0]]
    if args.gains:
        print_gains(names, args.seeds)
        return
    for name, sizes, num_nodes, block_size in cases():
        if name not in names:
            continue
        print(f'\n{name}\n\n| | {" | ".join(COLUMNS)} |\n{"|---" * (len(COLUMNS) + 1)}|')
        for algorithm in args.algorithms:
            figures = [measure(algorithm, sizes, num_nodes, block_size, seed) for seed in range(args.seeds)]
            medians = np.median(figures, 0)
            line = ' | '.join(f'{x:.3f}' if i < 4 else f'{x:.2f}' for i, x in enumerate(medians))
            print(f'| {algorithm} | {line} |', flush=True)


if __name__ == '__main__':
    main()
