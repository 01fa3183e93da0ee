"""Passes that are left before their end: at the end of the interpreter, and in a forked process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import MDSWriter

_PROGRAM = """
import itertools
import os
import sys

import headrace
import headrace.dataset.iterate
import headrace.dataset.loader
import headrace.dataset.progress
import headrace.dataset.reading.sample_pool
import headrace.dataset.workers.worker_pool

def begin(kind):
    dataset = headrace.StreamingDataset(local=sys.argv[1], batch_size=2)
    workers = 1 if kind == 'workers' else 0
    passes = iter(dataset if kind == 'dataset' else headrace.StreamingDataLoader(dataset, 2, num_workers=workers))
    next(passes)
    return dataset, passes

if __name__ == '__main__':
    kept = [begin(kind) for kind in sys.argv[2:]]
    if not (child := os.fork()):
        try:
            for _, passes in kept:
                passes.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print([dataset.progress.ended(rank=0) for dataset, _ in kept])
    print([len(list(itertools.islice(passes, 4))) for _, passes in kept])
"""


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_a_pass_is_ended_by_its_own_process_only_and_without_a_word_at_the_end_of_the_interpreter(
    tmp_path: Path,
) -> None:
    with MDSWriter(out=tmp_path / 'data', columns={'x': 'int'}) as writer:
        for number in range(20):
            writer.write({'x': number})
    program = tmp_path / 'program.py'
    program.write_text(_PROGRAM)
    command = [sys.executable, '-W', 'ignore', str(program), str(tmp_path / 'data'), 'dataset', 'loader', 'workers']
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout == '[False, False, False]\n[4, 4, 4]\n'
    assert 'Exception ignored' not in run.stderr, run.stderr
