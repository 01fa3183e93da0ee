"""Cells run one after the other in one process, as a notebook's kernel does: `python notebook_run.py FIRST SECOND`.

The arguments are the fields of `Run`s, as JSON.
"""

from __future__ import annotations

import code
import sys

CELLS = (
    # What is open, mapped and read before Lightning forks the ranks must not disturb them.
    """
import json
import torch
from headrace import StreamingDataLoader
from tests.support.trainers.lightning_run import Crash, Run, dataset, train
first, second = (Run(**json.loads(fields)) for fields in sys.argv[1:])
looked_at = next(iter(StreamingDataLoader(dataset(first), batch_size=8, num_workers=1)))
print(torch.ones(64, 64).mm(torch.ones(64, 64)).sum(), looked_at['id'])
""",
    'train(first)',
    'train(second)',
)


def main() -> None:
    kernel = code.InteractiveInterpreter({'sys': sys, '__name__': '__main__'})
    failures: list[str] = []
    kernel.write = failures.append  # what it would print of an exception
    for cell in CELLS:
        kernel.runcode(compile(cell, 'cell', 'exec'))
        if failures:
            sys.exit(''.join(failures))


if __name__ == '__main__':
    main()
