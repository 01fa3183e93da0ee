"""Evaluates under Composer on all ranks that there are: `python composer_evaluation.py FOLDER REPLICATION SIZE...`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from composer.utils import dist
from torchmetrics import MeanMetric

from composer import Callback, ComposerModel, Evaluator, Trainer
from headrace.composer import streaming_data_spec
from tests.support.programs.processes import end_rank


class Model(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.mean = MeanMetric()
        self.forwards = 0

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        self.forwards += 1
        return self.layer(batch['id'].float()[:, None])[:, 0] * 0 + batch['id']

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return outputs.mean()

    def eval_forward(self, batch: dict[str, Any], outputs: Any = None) -> torch.Tensor:
        return self.forward(batch)

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else {'mean': self.mean}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs)


class Samples(Callback):
    """The samples that Composer counted."""

    def __init__(self) -> None:
        self.counted: list[int] = []

    def eval_end(self, state: Any, logger: Any) -> None:
        self.counted.append(int(state.eval_timestamp.sample))


def main() -> None:
    warnings.simplefilter('ignore')
    folder, replication, *sizes = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    results: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {
        'plain': {},
        'marked': {'remainder': 'exact'},
        'own count': {'get_num_samples_in_batch': lambda batch: len(batch['id']) / replication}
        if replication > 1
        else {'get_num_samples_in_batch': lambda batch: len(batch['id'])},
    }
    for size in sizes:
        evaluators = [
            Evaluator(
                label=way,
                dataloader=streaming_data_spec(
                    section='eval',
                    local=str(folder / size),
                    global_batch_size=8,
                    shuffle=True,
                    num_workers=1,
                    replication=replication,
                    **options,
                ),
                device_eval_microbatch_size=2,
            )
            for way, options in ways.items()
        ]
        model, samples = Model(), Samples()
        trainer = Trainer(
            model=model, eval_dataloader=evaluators, callbacks=[samples], device='cpu', progress_bar=False
        )
        trainer.eval()
        trainer.eval()  # a second pass gives the same
        results[size] = {
            'means': {way: float(found['mean'].compute()) for way, found in trainer.state.eval_metrics.items()},
            'samples': samples.counted,
            'forwards': model.forwards,
        }
    (folder / f'rank{dist.get_global_rank()}.json').write_text(json.dumps(results))


if __name__ == '__main__':
    main()
    end_rank()
