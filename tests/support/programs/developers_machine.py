"""A process reads data of each format and runs commands, or trains with each trainer, and writes what it saw as JSON.

``python developers_machine.py FOLDER read|train OUT``: the folder has a dataset of each format, by name.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from headrace import StreamingDataLoader, StreamingDataset
from headrace.cli import main
from headrace.errors import HeadraceError


def row(dataset: StreamingDataset, number: int) -> str:
    """A sample, or the error that it raises: some seeds have a picture that is none."""
    try:
        return repr(sorted(dataset[number].items()))
    except HeadraceError as error:
        return str(error)


def read(folder: Path) -> dict[str, str]:
    seen: dict[str, str] = {}
    for data in sorted(folder.iterdir()):
        cache = tempfile.mkdtemp()
        dataset = StreamingDataset(
            remote=str(data),
            local=cache,
            format=None if data.name == 'mds' else data.name,
            batch_size=1,
            allow_unsafe_types=True,
        )
        assert len(dataset)
        seen[data.name] = '\n'.join(row(dataset, number) for number in range(len(dataset))).replace(cache, 'CACHE')
    for command in (['--help'], ['inspect', str(folder / 'mds')], ['verify', str(folder / 'mds')]):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):  # of --help
            assert main(command) == 0
        seen[command[0]] = out.getvalue()
    return seen


def train(folder: Path) -> dict[str, list[Any]]:
    import lightning.pytorch
    import torch
    import transformers

    import composer
    from headrace.composer import StreamingDataSpec
    from headrace.transformers import StreamingTrainer

    seen: dict[str, list[Any]] = {}

    def loader(trainer: str) -> Any:
        seen[trainer] = []
        dataset = StreamingDataset(remote=str(folder / 'train'), local=tempfile.mkdtemp(), shuffle=True, batch_size=4)
        return StreamingDataLoader(dataset, batch_size=4)

    class Model(lightning.pytorch.LightningModule):
        trainer_name = 'lightning'

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor, trainer: str = 'transformers') -> dict[str, torch.Tensor]:
            seen[trainer].append(x.tolist())
            return {'loss': (x * self.weight).sum()}

        def training_step(self, batch: Any, _: int) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return self(batch['x'], 'lightning')['loss']

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class ComposerModel(composer.ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Model()

        def forward(self, batch: Any) -> torch.Tensor:
            return self.inside(batch['x'], 'composer')['loss']

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            return outputs

    quiet: Any = {'logger': False, 'enable_checkpointing': False, 'enable_progress_bar': False}
    lightning.pytorch.Trainer(max_epochs=1, accelerator='cpu', enable_model_summary=False, **quiet).fit(
        Model(), loader('lightning')
    )
    model = ComposerModel()
    composer.Trainer(
        model=model,
        train_dataloader=StreamingDataSpec(loader('composer')),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration='1ep',
        device='cpu',
        progress_bar=False,
    ).fit()
    options: Any = {'use_cpu': True, 'report_to': [], 'disable_tqdm': True, 'save_strategy': 'no'}
    arguments = transformers.TrainingArguments(output_dir=tempfile.mkdtemp(), num_train_epochs=1, **options)
    StreamingTrainer(Model(), arguments, loader=loader('transformers')).train()
    return seen


if __name__ == '__main__':
    result = {'read': read, 'train': train}[sys.argv[2]](Path(sys.argv[1]))
    Path(sys.argv[3]).write_text(json.dumps(result))
