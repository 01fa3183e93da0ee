"""Trains on a YAML of two streams with Composer, and writes down what every rank trained and logged.

`python composer_mix.py LEGS.json` runs all legs of the file one after another, under any launcher. A sample's loss is
what `row_loss` says of its id, whatever the weights are.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from composer.loggers import InMemoryLogger
from composer.utils import dist
from torchmetrics.classification import BinaryAccuracy

from composer import Callback, ComposerModel, Trainer
from headrace import STREAM
from headrace.composer import LossSpikes, StreamingPosition, stream_metrics, streaming_data_spec, streaming_evaluators
from headrace.metrics import PerStream, PerStreamMean
from tests.support.programs.processes import end_rank

STREAMS = ['a', 'b']


@dataclass
class MixLeg:
    name: str
    out: str
    config: str
    overrides: list[str] = field(default_factory=list)
    duration: str = '2ep'
    load: str | None = None
    save: str | None = None
    evaluate: bool = False
    poison: list[int] = field(default_factory=list)
    spikes: dict[str, Any] | None = None

    @property
    def checkpoints(self) -> Path:
        return Path(self.out, self.name)


def row_loss(ids: torch.Tensor) -> torch.Tensor:
    return 1 + ids.float() / 1000


class Model(ComposerModel):
    def __init__(self, poison: list[int]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.poison = torch.tensor(poison, dtype=torch.int64)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        ids = batch['id']
        nothing = self.layer(ids.float()[:, None])[:, 0] * 0
        return row_loss(ids) + nothing + torch.isin(ids, self.poison) * 100.0

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return outputs.mean()

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        losses = stream_metrics(PerStreamMean(STREAMS, prefix='loss/'))
        right = stream_metrics(PerStream(BinaryAccuracy(), STREAMS, prefix='accuracy/'))
        return losses if is_train else losses | right

    def update_metric(self, batch: Any, outputs: torch.Tensor, metric: Any) -> None:
        if isinstance(metric.metric, PerStreamMean):
            metric.update(outputs, streams=batch[STREAM])
        else:
            metric.update(batch['id'] % 3 == 0, batch['id'] % 2 == 0, streams=batch[STREAM])


class Recorder(Callback):
    def __init__(self, leg: MixLeg) -> None:
        self.file = open(Path(leg.out) / f'{leg.name}.rank{dist.get_global_rank()}.jsonl', 'w')  # noqa: SIM115

    def batch_end(self, state: Any, logger: Any) -> None:
        line = {'batch': int(state.timestamp.batch) - 1, 'ids': state.batch['id'].tolist()}
        print(json.dumps(line), file=self.file, flush=True)


def run(leg: MixLeg) -> Trainer:
    model, logger = Model(leg.poison), InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=streaming_data_spec(leg.config, overrides=leg.overrides),
        eval_dataloader=streaming_evaluators(leg.config, overrides=leg.overrides) if leg.evaluate else None,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration=leg.duration,
        callbacks=[
            StreamingPosition(),
            *([] if leg.spikes is None else [LossSpikes(**leg.spikes)]),
            Recorder(leg),
        ],
        loggers=[logger],
        load_path=leg.load,
        save_folder=None if leg.save is None else str(leg.checkpoints),
        save_filename='ba{batch}.pt',
        save_interval=leg.save or '1ep',
        eval_interval='1ep',
        device_train_microbatch_size=2,
        device='cpu',
        seed=3,
        progress_bar=False,
        auto_log_hparams=False,
    )
    trainer.fit()
    trainer.close()
    logged = {
        name: [[int(time.batch), float(value)] for time, value in values]
        for name, values in logger.data.items()
        if name.startswith(('metrics/', 'spikes/', 'loss/'))
    }
    (Path(leg.out) / f'{leg.name}.rank{dist.get_global_rank()}.logged.json').write_text(json.dumps(logged))
    return trainer


if __name__ == '__main__':
    warnings.simplefilter('ignore')
    for options in json.loads(Path(sys.argv[1]).read_text()):
        run(MixLeg(**options))
    end_rank()
