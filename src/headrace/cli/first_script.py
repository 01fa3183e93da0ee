"""The training script that ``headrace init`` writes: a small model, and its trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.cli.first_data import FirstData

__all__ = ['FRAMEWORKS', 'training_script']

FRAMEWORKS: Final = ('pytorch', 'lightning', 'composer')

_HEAD: Final = '''\
"""A first training run on the data of config.yaml. Written by `headrace init`; change it as you like.

Start it with `python train.py`. Stop it at any time: the next start continues from the last checkpoint.
"""

from pathlib import Path

'''

_IMPORTS: Final = {
    'pytorch': 'import torch\n\n{more}from headrace.mixing import build_loader, load_config\n',
    'lightning': (
        'import lightning as L\nimport torch\nfrom lightning.pytorch.callbacks import ModelCheckpoint\n\n'
        '{more}from headrace.lightning import StreamingDataModule\n'
    ),
    'composer': (
        'import torch\nfrom composer import Trainer\nfrom composer.models import ComposerModel\n\n'
        '{more}from headrace.composer import StreamingPosition, streaming_data_spec\n'
    ),
}
_CLASS: Final = {
    'pytorch': 'torch.nn.Module',
    'lightning': 'L.LightningModule',
    'composer': 'ComposerModel',
}

_SETTINGS: Final = """
HERE = Path(__file__).resolve().parent
STEPS = 100
SAVE_EVERY = 50  # steps
"""

_TOKENS: Final = '''\
VOCABULARY = 256  # ids are taken modulo this, so that the first run is quick


class Model({base}):
    """A small language model, which predicts each token from those before it. Put yours in its place."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 64)
        self.read = torch.nn.GRU(64, 64, batch_first=True)
        self.head = torch.nn.Linear(64, VOCABULARY)

    def forward(self, batch):
        """The loss of a batch."""
        tokens = batch[{tokens!r}][:, :33].long() % VOCABULARY
        states, _ = self.read(self.embed(tokens[:, :-1]))
        return torch.nn.functional.cross_entropy(self.head(states).mT, tokens[:, 1:])
'''

_IMAGES: Final = '''\
CLASSES = 1_000  # above the largest label


class Model({base}):
    """A small convolutional network, which tells classes apart. Put yours in its place."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            NormalizeImages(),  # uint8 to float32, on the model's device
            torch.nn.Conv2d(3, 16, 5, stride=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 5, stride=2),
            torch.nn.ReLU(),
            torch.nn.AdaptiveMaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(128, CLASSES),
        )

    def forward(self, batch):
        """The loss of a batch."""
        return torch.nn.functional.cross_entropy(self.layers(batch[{image!r}]), batch[{label!r}].long())
'''

_UNKNOWN: Final = '''\


def described(value):
    """Shape and dtype of a column of a batch, or the types of its values."""
    if hasattr(value, 'shape'):
        return f'shape {{tuple(value.shape)}}, {{value.dtype}}'
    if isinstance(value, (list, tuple)):
        return f'{{len(value)}} values of type {{type(value[0]).__name__}}'
    return type(value).__name__


class Model({base}):
    """The place of your model. Until then the run reads batches, and shows the columns of the first one."""

    def __init__(self):
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(()))  # YOUR MODEL: its layers
        self.has_shown = False

    def forward(self, batch):
        """The loss of a batch."""
        if not self.has_shown:
            self.has_shown = True
            for name, value in batch.items():
                print(f'{{name}}: {{described(value)}}')
        return 0 * self.nothing  # YOUR MODEL: its loss
'''

_METHODS: Final = {
    'pytorch': '',
    'lightning': """
    def training_step(self, batch, _):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)
""",
    'composer': """
    def loss(self, outputs, batch):
        return outputs
""",
}

_RUN: Final = {
    'pytorch': """

def main():
    torch.manual_seed(1)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    loader = build_loader(load_config(HERE / 'config.yaml').train)
    model, step, saved = Model().to(device), 0, HERE / 'checkpoint.pt'
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    if saved.exists():
        state = torch.load(saved, map_location=device)
        step = state['step']
        loader.load_state_dict(state['loader'])
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
    while step < STEPS:
        for batch in loader:  # one epoch
            batch = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in batch.items()}
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f'Step {step}: loss {loss.item():.3f}')
            if step % SAVE_EVERY == 0 or step == STEPS:
                state = {'step': step, 'loader': loader.state_dict()}
                torch.save({**state, 'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, saved)
            if step == STEPS:
                break
    print(f'Step {step} of {STEPS} is done. Checkpoint: {saved}')


if __name__ == '__main__':
    main()
""",
    'lightning': """

def main():
    L.seed_everything(1, verbose=False)
    saver = ModelCheckpoint(HERE / 'checkpoints', save_last=True, every_n_train_steps=SAVE_EVERY)
    trainer = L.Trainer(max_steps=STEPS, callbacks=saver, logger=False)
    trainer.fit(Model(), datamodule=StreamingDataModule(HERE / 'config.yaml'), ckpt_path='last')
    print(f'Step {trainer.global_step} of {STEPS} is done. Checkpoints: {saver.dirpath}')


if __name__ == '__main__':
    main()
""",
    'composer': """

def main():
    torch.manual_seed(1)
    model = Model()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.003),
        train_dataloader=streaming_data_spec(HERE / 'config.yaml'),
        callbacks=[StreamingPosition()],  # before other callbacks
        max_duration=f'{STEPS}ba',
        save_folder=str(HERE / 'checkpoints'),
        save_interval=f'{SAVE_EVERY}ba',
        autoresume=True,
        run_name='first',
    )
    if trainer.state.timestamp.batch.value < STEPS:
        trainer.fit()
    print(f'Step {trainer.state.timestamp.batch.value} of {STEPS} is done. Checkpoints: {HERE / "checkpoints"}')


if __name__ == '__main__':
    main()
""",
}


def training_script(data: FirstData, framework: str) -> str:
    """The text of ``train.py``.

    Args:
        data: what the run trains on.
        framework: one of `FRAMEWORKS`.
    """
    base = _CLASS[framework]
    more = ''
    if data.tokens is not None:
        model = _TOKENS.format(base=base, tokens=data.tokens)
    elif data.image is not None:
        more = 'from headrace import NormalizeImages\n'
        model = _IMAGES.format(base=base, image=data.image, label=data.label)
    else:
        model = _UNKNOWN.format(base=base)
    imports = _IMPORTS[framework].format(more=more)
    return _HEAD + imports + _SETTINGS + model + _METHODS[framework] + _RUN[framework]
