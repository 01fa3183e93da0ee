"""How tests start programs."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.programs.processes import Program, is_alive, run_program, run_well
from tests.support.programs.waiting import until
from tests.support.trainers.ranks import run_ranks

HANGS = """
import subprocess, sys, time
inside = 'import time\\ndef deep_inside():\\n print("inside", flush=True)\\n time.sleep(600)\\ndeep_inside()'
child = subprocess.Popen([sys.executable, '-c', inside], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
def outside():
    print(child.pid, flush=True)
    time.sleep(600)
outside()
"""


@pytest.mark.skipif(not Path('/proc/self/environ').exists(), reason='what descends from a program is found in /proc')
def test_a_program_that_hangs_says_where_and_leaves_nothing():
    with Program([sys.executable, '-c', HANGS]) as program:
        until(lambda: program.output().endswith('\n'))
        with pytest.raises(AssertionError, match='still ran after 2 s') as failure:
            program.wait(2)
        assert 'in outside' in str(failure.value)
        assert 'in deep_inside' in str(failure.value)
        assert not is_alive(int(program.output()))


def test_leaving_the_block_ends_a_program():
    begin = time.monotonic()
    with Program([sys.executable, '-c', 'import time; time.sleep(600)']) as program:
        pass
    assert program.process.returncode == -9
    assert time.monotonic() - begin < 100


def test_a_program_that_is_not_to_be_found_yet_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, '_processes', lambda _: iter(()))  # as in the middle of its exec, without environment
    with Program([sys.executable, '-c', 'import time; time.sleep(600)']) as program:
        pass
    assert program.process.returncode == -9


def test_what_it_printed_and_its_exit_status_are_told(monkeypatch):
    monkeypatch.setenv('RANK', '3')
    code = "import os, sys; print(os.environ.get('RANK')); print('wrong', file=sys.stderr); sys.exit(7)"
    done = run_program([sys.executable, '-c', code])
    assert (done.returncode, done.stdout, done.stderr) == (7, 'None\n', 'wrong\n')
    with pytest.raises(AssertionError, match=r'exit status 7\nNone\n\nwrong'):
        run_well([sys.executable, '-c', code])


RANKS = """
import os, sys, time
from pathlib import Path
import torch.distributed

torch.distributed.init_process_group('gloo')
total = torch.tensor(int(os.environ['RANK']))
torch.distributed.all_reduce(total)
Path(os.environ['RANK']).write_text(f'{total} {sys.argv[1:]} {os.environ["WORLD_SIZE"]} {__name__}')
print('what rank', os.environ['RANK'], 'said')
if sys.argv[1] == 'fails':
    sys.exit(int(os.environ['RANK']))
while sys.argv[1] == 'hangs':
    time.sleep(1)
"""


@pytest.mark.slow
def test_ranks_without_a_launcher(tmp_path: Path) -> None:
    program = tmp_path / 'program.py'
    program.write_text(RANKS)
    run_ranks('torch', 3, program, 'does', 'well', folder=tmp_path)
    assert {(tmp_path / str(rank)).read_text() for rank in range(3)} == {"3 ['does', 'well'] 3 __main__"}
    with pytest.raises(AssertionError, match=r'program.py on 2 ranks: RuntimeError: ranks failed: \{1: 1\}') as caught:
        run_ranks('torch', 2, program, 'fails', folder=tmp_path)
    assert 'what rank 0 said' in str(caught.value)
    assert 'what rank 1 said' in str(caught.value)
    with pytest.raises(AssertionError, match=r'HangError: ranks \[0, 1\] did not end within 3 s') as caught:
        run_ranks('torch', 2, program, 'hangs', folder=tmp_path, seconds=3)
    assert 'in <module>' in str(caught.value)  # where it hung


GIVEN_UP = """
import os, signal, subprocess, sys, time
from pathlib import Path

status, tester = map(int, sys.argv[1:])
if tester:
    worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
    Path('pids').write_text(f'{os.getpid()} {worker.pid}')
    os.kill(tester, signal.SIGALRM)
    time.sleep(600)
sys.exit(status)
"""


@pytest.mark.slow
def test_the_answer_of_ranks_that_a_test_gave_up_is_not_the_next_ones(tmp_path: Path) -> None:
    def give_up(*_: object) -> None:
        raise TimeoutError

    program = tmp_path / 'program.py'
    program.write_text(GIVEN_UP)
    previous = signal.signal(signal.SIGALRM, give_up)
    try:
        run_ranks('torch', 1, program, 0, 0, folder=tmp_path)
        with pytest.raises(TimeoutError):
            run_ranks('torch', 1, program, 0, os.getpid(), folder=tmp_path)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not any(is_alive(int(pid)) for pid in (tmp_path / 'pids').read_text().split())
    with pytest.raises(AssertionError, match=r'ranks failed: \{0: 7\}'):
        run_ranks('torch', 1, program, 7, 0, folder=tmp_path)
