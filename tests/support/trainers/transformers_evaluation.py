"""Evaluation by Hugging Face's Trainer and by Accelerate on each rank; rank 0 prints what it counted.

usage: transformers_evaluation.py FOLDER SAMPLES RESULT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import EvalPrediction, TrainingArguments

from headrace import MDSWriter, StreamingDataLoader, StreamingDataset
from headrace.accelerate import prepare
from headrace.transformers import StreamingTrainer


def loader(folder: Path, *, replication: int = 1, evaluates: bool = True) -> StreamingDataLoader:
    dataset = StreamingDataset(local=str(folder), batch_size=2, shuffle=True, replication=replication)
    return StreamingDataLoader(dataset, fixed_epoch=0 if evaluates else None)


class Model(torch.nn.Module):
    """The mean of the samples' numbers as loss, whatever the Trainer says of the batches of other ranks."""

    main_input_name = 'number'

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(100.0))

    def forward(self, number: torch.Tensor, labels: torch.Tensor, **of_loss: Any) -> dict[str, Any]:
        assert not {'is_padding', 'is_bad_sample'} & of_loss.keys()
        values = self.weight[number]
        return {'loss': values.mean(), 'logits': values[:, None].expand(-1, 3), 'states': (values, -values)}


def of_trainer(folder: Path) -> dict[str, Any]:
    counted: dict[str, Any] = {'by_batch': [], 'ends': []}

    def whole(prediction: EvalPrediction) -> dict[str, float]:
        (values, states), inputs = prediction.predictions, prediction.inputs
        assert values[:, 0].tolist() == states[0].tolist() == (-states[1]).tolist()
        counted.update(labels=prediction.label_ids.tolist(), values=values[:, 0].tolist(), inputs=inputs.tolist())
        return {'accuracy': float((values[:, 0] == prediction.label_ids).mean())}

    def by_batch(prediction: EvalPrediction, compute_result: bool) -> dict[str, float]:
        counted['by_batch'] += prediction.label_ids.tolist()
        counted['ends'].append(compute_result)
        return {}

    given: dict[str, Any] = {'report_to': [], 'use_cpu': True, 'disable_tqdm': True, 'label_names': ['labels']}
    arguments = TrainingArguments(str(folder / 'run'), include_for_metrics=['inputs'], **given)
    first, second = loader(folder / 'data'), loader(folder / 'data')
    made = {'loader': loader(folder / 'data', evaluates=False), 'compute_metrics': whole}
    trainer = StreamingTrainer(Model(), arguments, eval_dataset={'first': first, 'second': second}, **made)
    metrics = trainer.evaluate()
    counted['losses'] = [metrics['eval_first_loss'], metrics['eval_second_loss']]
    counted['predicted'] = trainer.predict(first).label_ids.tolist()
    arguments = TrainingArguments(str(folder / 'run'), batch_eval_metrics=True, **given)
    StreamingTrainer(Model(), arguments, eval_dataset=first, **made | {'compute_metrics': by_batch}).evaluate()
    return counted


def of_accelerate(folder: Path, replication: int) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True)
    batches = prepare(accelerator, loader(folder / 'data', replication=replication))
    tensors: list[int] = []
    flat: list[int] = []
    texts: list[str] = []
    for batch in batches:
        ids, again = accelerator.gather_for_metrics(
            (batch['number'], batch['number'][:, None].expand(-1, 2).reshape(-1))
        )
        tensors += ids.tolist()
        flat += again.tolist()
        texts += accelerator.gather_for_metrics([str(number) for number in batch['number'].tolist()])
    after = accelerator.gather_for_metrics(torch.zeros(2))
    return {'tensors': tensors, 'flat': flat, 'texts': texts, 'after': len(after)}


def main() -> None:
    folder, samples, result = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        if not (folder / 'data').exists():
            with MDSWriter(columns={'number': 'int', 'labels': 'int'}, out=str(folder / 'data')) as writer:
                for number in range(samples):
                    writer.write({'number': number, 'labels': number})
    ranks = accelerator.num_processes
    counted: dict[str, Any] = {'trainer': of_trainer(folder), 'accelerate': of_accelerate(folder, 1)}
    if ranks % 2 == 0:
        counted['replicated'] = of_accelerate(folder, 2)
    if accelerator.is_main_process:
        result.write_text(json.dumps(counted))
    accelerator.wait_for_everyone()  # instead of `end_training`: PyTorch's threads of the group may block its end


if __name__ == '__main__':
    main()
