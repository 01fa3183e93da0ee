"""A rank program, `composer_statistics.py OUT FOLDER...`: trains with `DataStatistics`, and writes what it logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from composer.core import Callback
from composer.loggers import InMemoryLogger
from composer.utils import dist

from composer import Trainer
from headrace.composer import DataStatistics, StreamingPosition, streaming_data_spec
from headrace.dataset import StreamingDataset
from tests.support.programs.processes import end_rank
from tests.support.trainers.composer_legs import Linear
from tests.support.trainers.statistics_mix import mix


class Ids(Callback):
    def __init__(self) -> None:
        self.ids: list[int] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.ids += state.batch['id'].tolist()


def train(
    dataset: StreamingDataset, *, size: int, loggers: Sequence[Any] = (), **options: Any
) -> tuple[dict[str, list[Any]], list[int], Any]:
    """Logged values by name, the ids that this rank trained on, and the trainer's loader."""
    model, logger, ids = Linear(), InMemoryLogger(), Ids()
    spec = streaming_data_spec(dataset, batch_size=size, get_num_tokens_in_batch=lambda batch: 10 * len(batch['id']))
    statistics = DataStatistics(1, sync_dist=True)
    trainer = Trainer(
        model=model,
        train_dataloader=spec,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        callbacks=[StreamingPosition(), statistics, ids],
        loggers=[logger, *loggers],
        device='cpu',
        progress_bar=False,
        **{'max_duration': '1ep', **options},
    )
    trainer.fit()
    logged = {
        name: [value for _, value in entries]
        for name, entries in logger.data.items()
        if name.startswith(('data/', 'mix/'))
    }
    loader = trainer.state.train_dataloader
    trainer.close()
    return logged, ids.ids, loader


def main() -> None:
    torch.set_num_threads(1)
    out, *folders = sys.argv[1:]
    rank = dist.get_global_rank()
    dataset = mix(dict(zip('ab', folders, strict=True)), Path(out, f'cache{rank}'), batching_method='stratified')
    logged, ids, loader = train(dataset, size=4)
    found = {'logged': logged, 'ids': ids, 'bytes': loader.stats().bytes_downloaded}
    Path(out, f'rank{rank}.json').write_text(json.dumps(found))


if __name__ == '__main__':
    main()
    end_rank()
