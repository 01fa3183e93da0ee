"""How long `import headrace` takes, compared with `import torch`: pairs of fresh processes, median of the ratios.

usage: python benchmarks/imports.py [PAIRS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def seconds(statement: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, '-c', statement], check=True)
    return time.perf_counter() - begin


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    seconds('import headrace')  # the page cache's share, once
    both = [(seconds('import torch'), seconds('import headrace')) for _ in range(pairs)]
    ratio = statistics.median(headrace / torch for torch, headrace in both)
    torch, headrace = (statistics.median(column) for column in zip(*both, strict=True))
    print(f'import torch {torch:.2f} s, import headrace {headrace:.2f} s, median ratio of {pairs} pairs {ratio:.2f}')


if __name__ == '__main__':
    main()
