"""Hugging Face's Trainer on a loader. `test_recipes.py` resumes it from every checkpoint, and on other ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.errors import ConfigError, ResumeError

pytest.importorskip('accelerate', reason='pip install -e ".[recipes]"')
pytest.importorskip('transformers', reason='pip install -e ".[recipes]"')

from transformers import Trainer, TrainingArguments

from headrace.transformers import StreamingMixin, StreamingTrainer
from tests.support.trainers import transformers_evaluation
from tests.support.trainers.ranks import run_ranks


class _AnyWait:
    def __eq__(self, other: object) -> bool:
        return bool(re.fullmatch(r'waited \d+\.\d % for data', str(other)))


class Model(torch.nn.Module):
    """Notes the samples that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[float]] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(x.tolist())
        return {'loss': (x * self.weight).sum()}


class Mine(StreamingMixin, Trainer):
    """As for a Trainer of another package."""


@pytest.fixture
def loader(tmp_path: Path) -> StreamingDataLoader:
    with MDSWriter(columns={'x': 'float32'}, out=str(tmp_path / 'data')) as writer:
        for number in range(24):
            writer.write({'x': np.float32(number)})
    return StreamingDataLoader(StreamingDataset(local=str(tmp_path / 'data')), batch_size=4)


def trainer(kind: Any, loader: StreamingDataLoader, folder: Path, max_steps: int = -1, **options: Any) -> Any:
    given: Any = {'use_cpu': True, 'report_to': [], 'disable_tqdm': True, 'save_steps': 1, 'num_train_epochs': 1}
    arguments = TrainingArguments(output_dir=str(folder), max_steps=max_steps, **given)
    return kind(Model(), arguments, loader=loader, **options)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', [StreamingTrainer, Mine])
def test_it_trains_and_evaluates_on_loaders(kind: Any, loader: StreamingDataLoader, tmp_path: Path) -> None:
    evaluation = StreamingDataLoader(loader.dataset.__class__(local=loader.dataset.streams[0].local), 6, fixed_epoch=0)
    training = trainer(kind, loader, tmp_path / 'run', eval_dataset=evaluation)
    training.train()
    assert training.model.seen == [list(range(first, first + 4)) for first in range(0, 24, 4)]
    training.model.seen.clear()
    training.evaluate()
    assert training.model.seen == [list(range(first, first + 6)) for first in range(0, 24, 6)]


@pytest.mark.filterwarnings('ignore')
def test_evaluations_may_be_named_and_mixed_with_data_of_the_trainer(
    loader: StreamingDataLoader, tmp_path: Path
) -> None:
    def again() -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(local=loader.dataset.streams[0].local), 6)

    own = [{'x': np.float32(number)} for number in range(3)]
    training = trainer(StreamingTrainer, loader, tmp_path / 'run', eval_dataset={'a': again(), 'own': own})
    assert {'eval_a_loss', 'eval_own_loss'} - training.evaluate().keys() == {'eval_a_loss', 'eval_own_loss'}
    seen = [list(range(first, first + 6)) for first in range(0, 24, 6)]
    assert training.model.seen == [*seen, [0, 1, 2]]
    training.model.seen.clear()
    training.predict(again())
    training.predict(own)
    assert training.model.seen == [*seen, [0, 1, 2]]
    training.eval_dataset = again()
    assert training.get_eval_dataloader() is training.eval_dataset
    assert isinstance(training.get_eval_dataloader(own), torch.utils.data.DataLoader)
    for _ in range(2):  # the same epoch each time
        training.model.seen.clear()
        training.evaluate()
        assert training.model.seen == seen


@pytest.mark.filterwarnings('ignore')
def test_evaluation_on_the_training_loader_is_refused(loader: StreamingDataLoader, tmp_path: Path) -> None:
    training = trainer(StreamingTrainer, loader, tmp_path / 'run', eval_dataset=loader)
    with pytest.raises(ConfigError, match=r'another StreamingDataLoader of the same data, with `fixed_epoch=0`'):
        training.evaluate()
    assert loader.fixed_epoch is None
    assert loader.state_dict()['sample_in_epoch'] == 0


@pytest.mark.filterwarnings('ignore')
def test_the_legacy_loop_is_refused(loader: StreamingDataLoader, tmp_path: Path) -> None:
    again = StreamingDataLoader(StreamingDataset(local=loader.dataset.streams[0].local), 6)
    training = trainer(StreamingTrainer, loader, tmp_path / 'run', eval_dataset=again)
    training.args.use_legacy_prediction_loop = True
    with pytest.raises(ConfigError, match='Set `use_legacy_prediction_loop` of its arguments to False'):
        training.evaluate()


@pytest.mark.parametrize(('ranks', 'samples'), [(1, 13), (2, 13), (3, 11)])
def test_each_sample_counts_once_on_any_ranks(ranks: int, samples: int, tmp_path: Path) -> None:
    """In the last batch the second of 2 ranks has padding only, and the last of 3 has a sample and padding."""
    result = tmp_path / 'result.json'
    program = Path(transformers_evaluation.__file__)
    run_ranks('transformers', ranks, program, tmp_path, samples, result, folder=tmp_path)
    counted = json.loads(result.read_text())

    numbers = list(range(samples))
    of_trainer = counted['trainer']
    for name in ('labels', 'inputs', 'predicted', 'by_batch'):
        assert sorted(of_trainer[name]) == numbers, name
    assert of_trainer['labels'] == of_trainer['values'] == of_trainer['inputs']
    assert of_trainer['losses'] == pytest.approx([np.mean(numbers)] * 2)
    assert of_trainer['ends'] == [False] * (len(of_trainer['ends']) - 1) + [True]
    for name in ('accelerate', *(['replicated'] if ranks % 2 == 0 else [])):
        of_accelerate = counted[name]
        assert sorted(of_accelerate['tensors']) == numbers
        assert of_accelerate['flat'] == [number for number in of_accelerate['tensors'] for _ in range(2)]
        assert of_accelerate['texts'] == list(map(str, of_accelerate['tensors']))
        assert of_accelerate['after'] == 2 * ranks  # Accelerate's own, after the pass


@pytest.mark.filterwarnings('ignore')
def test_a_checkpoint_without_a_position_is_refused(loader: StreamingDataLoader, tmp_path: Path) -> None:
    (tmp_path / 'run' / 'checkpoint-3').mkdir(parents=True)
    with pytest.raises(ResumeError, match=r'headrace\.json, but there is no .*checkpoint-3'):
        trainer(StreamingTrainer, loader, tmp_path / 'run').train(resume_from_checkpoint=True)


@pytest.mark.filterwarnings('ignore')
def test_it_says_where_a_resumed_training_continues_and_how_long_it_waited(
    loader: StreamingDataLoader, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer(StreamingTrainer, loader, tmp_path / 'run').train()
    assert re.findall('^headrace: (.*)', capfd.readouterr().err, re.MULTILINE) == [_AnyWait()]
    again = StreamingDataLoader(StreamingDataset(local=loader.dataset.streams[0].local), batch_size=4)
    trainer(StreamingTrainer, again, tmp_path / 'run').train(str(tmp_path / 'run' / 'checkpoint-2'))
    said = re.findall('^headrace: (.*)', capfd.readouterr().err, re.MULTILINE)
    assert said == ['the data continue at epoch 0, sample 8', _AnyWait()]


@pytest.mark.filterwarnings('ignore')
def test_skipped_samples_need_a_number_of_steps(loader: StreamingDataLoader, tmp_path: Path) -> None:
    """They make the first epoch shorter than others, and the Trainer takes its length for theirs."""
    local = loader.dataset.streams[0].local

    def skipping() -> StreamingDataLoader:
        return StreamingDataLoader(StreamingDataset(local=local, skip=[(0, 8), (24 + 16, 24 + 24)]), batch_size=4)

    plans = [skipping().plan(epoch) for epoch in range(3)]
    assert [plan.num_batches for plan in plans] == [4, 4, 6]
    expected = [plan.ids(k).tolist() for plan in plans for k in range(plan.num_batches)]
    with pytest.raises(ConfigError, match='with `skip` they differ. Set `max_steps` of its.* is -1'):
        trainer(StreamingTrainer, skipping(), tmp_path)
    whole = trainer(StreamingTrainer, skipping(), tmp_path / 'run', max_steps=len(expected))
    whole.train()
    assert whole.model.seen == expected
    rest = trainer(StreamingTrainer, skipping(), tmp_path / 'run', max_steps=len(expected))
    rest.train(resume_from_checkpoint=str(tmp_path / 'run' / 'checkpoint-5'))
    assert rest.model.seen == expected[5:]


class OfTokens(Model):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(attention_mask.sum(dim=1).tolist())
        return {'loss': (input_ids * self.weight).sum()}


@pytest.mark.filterwarnings('ignore')
def test_a_model_gets_padded_tokens_and_their_mask(tmp_path: Path) -> None:
    with MDSWriter(columns={'input_ids': 'ndarray:int64'}, out=str(tmp_path / 'data')) as writer:
        for number in range(24):
            writer.write({'input_ids': np.arange(1 + number % 5)})
    pad = {'input_ids': {'value': 0, 'mask': 'attention_mask', 'length': False, 'multiple_of': 4}}
    padded = StreamingDataLoader(StreamingDataset(local=str(tmp_path / 'data')), batch_size=4, pad=pad)
    training = trainer(StreamingTrainer, padded, tmp_path / 'run')
    training.model = training.model_wrapped = OfTokens()
    training.train()
    assert sum(training.model.seen, []) == [1 + number % 5 for number in range(24)]


@pytest.mark.filterwarnings('ignore')
def test_epochs_of_different_lengths_need_a_number_of_steps(tmp_path: Path) -> None:
    with MDSWriter(columns={'x': 'float32', 'length': 'int'}, out=str(tmp_path / 'data')) as writer:
        for number in range(60):
            writer.write({'x': np.float32(number), 'length': number})

    def loader() -> StreamingDataLoader:
        how: dict[str, Any] = {'shuffle': True, 'cost': 'length', 'bucket': 2, 'batch_cost': 480, 'columns': ['x']}
        return StreamingDataLoader(StreamingDataset(local=str(tmp_path / 'data'), batch_size=16, **how))

    plans = [loader().plan(epoch) for epoch in range(3)]
    assert len({plan.num_batches for plan in plans}) > 1
    expected = [plan.ids(k).tolist() for plan in plans for k in range(plan.num_batches)]
    with pytest.raises(ConfigError, match='with `batch_cost` they differ. Set `max_steps` of its.* is -1'):
        trainer(StreamingTrainer, loader(), tmp_path)
    whole = trainer(StreamingTrainer, loader(), tmp_path / 'run', max_steps=len(expected))
    whole.train()
    assert whole.model.seen == expected
    for step in (1, plans[0].num_batches, plans[0].num_batches + 2):
        rest = trainer(StreamingTrainer, loader(), tmp_path / 'run', max_steps=len(expected))
        rest.train(resume_from_checkpoint=str(tmp_path / 'run' / f'checkpoint-{step}'))
        assert rest.model.seen == expected[step:]
