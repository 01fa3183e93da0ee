"""The program of docs/kubernetes.md saves at a SIGTERM of torchrun, and continues on other ranks."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from headrace import MDSWriter
from tests.support.pages.page_code import DOCS, blocks
from tests.support.programs.processes import Program, clean_environment, torchrun
from tests.support.programs.waiting import until

# The ranks wait for the signal, so that it arrives in the fourth step on any machine.
STEP = """
    print(*batch['id'].tolist(), file=ids, flush=True)
    Path('in-step-4').touch() if number == 3 else None
    while number == 3 and not stops and not saved.exists():
        signal.sigtimedwait((), 0.01)
"""


@pytest.mark.once
@pytest.mark.timeout(600)
def test_the_loop_saves_at_sigterm_and_continues_on_other_ranks(tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path / 'data'), columns={'id': 'int'}) as writer:
        writer.write_batch({'id': list(range(10 * 512))})
    (program,) = blocks((DOCS / 'kubernetes.md').read_text(), 'python')
    program = program.replace('    ...  # the step\n', STEP)
    (tmp_path / 'train.py').write_text(f'{program}'.replace('stops:', "ids = open(f'ids{os.getpid()}', 'w')\nstops:"))
    environ = clean_environment(CUDA_VISIBLE_DEVICES='')
    places = ['train.py', 'data', 'cache', '.']

    with Program([*torchrun(2), *places], cwd=tmp_path, environ=environ) as stopped:
        until((tmp_path / 'in-step-4').exists, 280)
        stopped.process.send_signal(signal.SIGTERM)
        assert stopped.wait().returncode != 0  # torchrun's own: its ranks ended well
    with Program([*torchrun(1), *places], cwd=tmp_path, environ=environ) as resumed:
        done = resumed.wait()
        assert done.returncode == 0, done.stderr

    files = [file.read_text().split() for file in tmp_path.glob('ids*')]
    assert sorted(map(len, files)) == [4 * 256, 4 * 256, 6 * 512]
    assert set(Counter(int(i) for ids in files for i in ids).items()) == {(i, 1) for i in range(10 * 512)}
