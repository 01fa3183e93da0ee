"""The recipes for other trainers train what the plan says, on other ranks after a resume too."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from tests.support.programs.processes import Program, clean_environment, run_well, torchrun
from tests.support.programs.waiting import until
from tests.support.servers.process import free_port
from tests.support.trainers.ranks import run_ranks

EXAMPLES = Path(__file__).parents[2] / 'examples'
GLOBAL_BATCH = 32


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f'{", ".join(missing)} not installed: pip install -e ".[recipes]"')


def run(example: str, folder: Path, steps: int, *, ranks: int, **environ: str) -> list[list[int]]:
    """The global batches that a call of an example trains, each sorted."""
    for path in folder.glob('rank*.txt'):
        path.unlink()
    program = [str(EXAMPLES / example), str(folder), str(steps)]
    if example == 'ray_train.py':
        command = [sys.executable, *program, str(ranks)]
    else:
        command = [*(torchrun(ranks) if ranks > 1 else [sys.executable]), *program]
    # Ray keeps a token in the home folder.
    run_well(command, environ=clean_environment(RAY_USAGE_STATS_ENABLED='0', HOME=str(folder), **environ))
    return trained_batches(folder, ranks)


def trained_batches(folder: Path, ranks: int, steps: int | None = None) -> list[list[int]]:
    """The global batches that ranks say they trained, each sorted; by default all of them."""
    files = sorted(folder.glob('rank*.txt'))
    assert len(files) == ranks
    read = [
        [[int(i) for i in line.split(',')] for line in re.findall(r'ids \[(.*)\]', path.read_text())][:steps]
        for path in files
    ]
    return [sorted(sum(batch, [])) for batch in zip(*read, strict=True)]


def planned(folder: Path, steps: int) -> list[list[int]]:
    data = StreamingDataset(local=str(folder / 'cache'), shuffle=True)
    plan = data.plan(epoch=0, global_batch_size=GLOBAL_BATCH)
    return [sorted(data.order(0).at(plan.global_positions(k)).tolist()) for k in range(steps)]


def test_plain_pytorch_continues_where_it_ended(tmp_path: Path) -> None:
    parts: list[str] = []
    for steps in (6, 7):
        done = run_well([sys.executable, str(EXAMPLES / 'plain_pytorch.py'), str(tmp_path), str(steps)])
        parts += done.stdout.splitlines()
    assert [int(re.findall(r'^epoch 0 sample (\d+) loss', line)[0]) for line in parts] == list(range(32, 417, 32))
    assert [sorted(map(int, re.findall(r'\d+', line.partition('ids')[2]))) for line in parts] == planned(tmp_path, 13)


@needs('accelerate')
def test_accelerate(tmp_path: Path) -> None:
    trained: list[list[int]] = []
    for ranks, steps in ((2, 7), (1, 6)):
        run_ranks('accelerate', ranks, EXAMPLES / 'accelerate_train.py', tmp_path, steps, folder=tmp_path)
        trained += trained_batches(tmp_path, ranks)
        for path in tmp_path.glob('rank*.txt'):
            path.unlink()
    assert trained == planned(tmp_path, 13)


@pytest.mark.slow
@needs('accelerate', 'transformers')
def test_hf_trainer(tmp_path: Path) -> None:
    first = run('hf_trainer.py', tmp_path, 8, ranks=2)
    shutil.rmtree(tmp_path / 'run' / 'checkpoint-8')  # as if it had been killed before its end
    second = run('hf_trainer.py', tmp_path, 13, ranks=1)
    assert first == planned(tmp_path, 8)
    assert second == planned(tmp_path, 13)[5:]


def test_torchtitan_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed on two ranks and resumed on one, it trains the batches after the last complete checkpoint."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from plain_pytorch import write_shards

    write_shards(tmp_path / 'shards')
    program = [str(EXAMPLES / 'torchtitan_train.py'), str(tmp_path), '250']
    with Program([*torchrun(2), *program]) as killed:
        until(lambda: killed.process.poll() is not None or (tmp_path / 'step-000010' / '.metadata').exists(), 280)
        assert killed.process.poll() is None, killed.errors()
    step = max(int(path.parent.name.removeprefix('step-')) for path in tmp_path.glob('step-*/.metadata'))
    first = trained_batches(tmp_path, 2, step)
    alone = {'RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port())}
    second = run('torchtitan_train.py', tmp_path, step + 7, ranks=1, **alone)
    assert first + second == planned(tmp_path, step + 7)


@pytest.mark.slow
@needs('ray', 'pyarrow')
def test_ray_train(tmp_path: Path) -> None:
    first = run('ray_train.py', tmp_path, 8, ranks=2)
    second = run('ray_train.py', tmp_path, 13, ranks=1)
    assert first == planned(tmp_path, 8)
    assert second == planned(tmp_path, 13)[5:]


@needs('accelerate', 'transformers')
@pytest.mark.filterwarnings('ignore')
def test_hf_trainer_continues_from_every_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an epoch, at its end, and in a later one."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from hf_trainer import LoggingTrainer, Model, TrainingArguments

    with MDSWriter(out=str(tmp_path / 'data'), columns={'id': 'int', 'tokens': 'ndarray:uint8:65'}) as writer:
        for number in range(40):
            writer.write({'id': number, 'tokens': np.full(65, number, np.uint8)})

    def train(output: str, resume_from_checkpoint: str | None) -> tuple[list[str], int, float]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path / output / 'run'),
            num_train_epochs=3,
            per_device_train_batch_size=8,
            save_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        data = StreamingDataset(local=str(tmp_path / 'data'), shuffle=True, batch_size=8)
        trainer = LoggingTrainer(Model(), arguments, loader=StreamingDataLoader(data))
        trainer.train(resume_from_checkpoint=resume_from_checkpoint)
        weights = sum(parameter.double().sum().item() for parameter in trainer.model.parameters())
        return (tmp_path / output / 'rank0.txt').read_text().splitlines(), trainer.state.global_step, weights

    whole, steps, weights = train('whole', None)
    assert steps == len(whole) == 15
    for step in (1, 4, 5, 6, 10, 12):
        end = train(f'from{step}', str(tmp_path / 'whole' / 'run' / f'checkpoint-{step}'))
        assert end == (whole[step:], 15, weights), step
