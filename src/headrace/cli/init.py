"""The command `init`: a first configuration and training script, from five questions."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.cli.arguments import count, printing_to_stderr, show_examples
from headrace.cli.commands import command
from headrace.errors import ConfigError, HeadraceError, ObjectNotFoundError
from headrace.errors.display import printable
from headrace.errors.redaction import redact

_TOKENS: Final = ('input_ids', 'tokens')
_LABELS: Final = ('label', 'labels', 'class', 'cls', 'target', 'fine_label', 'y')
_ROW_OF_INTEGERS: Final = re.compile(r'u?int\d+ array of shape \((\d+),\)')
_ONE_SHAPE: Final = re.compile(r'(u?int|float)\d+( array of shape \(.*\))?|str|bytes|image')


@dataclass(frozen=True)
class FirstData:
    place: str  # folder, URL or glob
    format: str  # as `headrace inspect` names it; 'imagefolder': image files, which are converted before the run
    columns: Mapping[str, str]  # by name, the type in a batch, such as 'int64' or 'image'
    tokens: str | None = None  # column of token ids in rows of one length
    image: str | None = None  # column of images; None without `label`
    label: str | None = None  # column of the classes' numbers

    @property
    def is_remote(self) -> bool:
        from headrace.storage.resolve import local_path

        return local_path(self.place) is None

    @property
    def needs_conversion(self) -> bool:
        return self.format == 'imagefolder'

    @property
    def varying(self) -> list[str]:
        """Columns whose values may differ in shape or kind, which no tensor can hold."""
        return [name for name, kind in self.columns.items() if not _ONE_SHAPE.fullmatch(kind)]

    @property
    def has_images(self) -> bool:
        return 'image' in self.columns.values()


def look_at(place: str) -> FirstData:
    """Find the kind of the data, as streams do; or a folder of images, which streams do not read."""
    import numpy as np

    from headrace.inspect.content import open_content

    place = str(Path(place).expanduser()) if place.startswith('~') else place
    try:
        content = open_content(place, None)
    except ObjectNotFoundError:
        folder = _image_folder(place)
        if folder is None:
            raise
        return folder
    filled = np.flatnonzero(content.shards.samples)
    if not len(filled):
        raise ConfigError(f'A first run needs samples, but {place} holds none. Write some, or name other data.')
    return _found(place, content.format, content.shards[int(filled[0])].schema.kinds())


def _image_folder(place: str) -> FirstData | None:
    from headrace.convert.inputs.files import ImageFolder, list_images
    from headrace.convert.stored_dataset import PATIENT
    from headrace.storage import StoreOptions, open_store

    store = open_store(place, StoreOptions())
    images, ledger = list_images(store, PATIENT, is_known=False)
    if not images:
        return None
    folder = ImageFolder(store, images, columns=None, retry=PATIENT, ledger=ledger)
    return _found(place, folder.kind, {'image': 'image', 'label': 'int64'})


def _found(place: str, kind: str, columns: Mapping[str, str]) -> FirstData:
    if pickled := [name for name, column in columns.items() if column == 'pickled object']:
        raise ConfigError(
            f'{place} has pickled objects in column {pickled[0]!r}, which run code when they are read. If you trust '
            f'the data, write a configuration of your own with `allow_unsafe_types: true`.'
        )
    tokens = (name for name in _TOKENS if _is_row_of_tokens(columns.get(name, '')))
    images = [name for name, column in columns.items() if column == 'image']
    label = next((name for name in _LABELS if re.fullmatch(r'u?int\d+', columns.get(name, ''))), None)
    is_classified = len(images) == 1 and label is not None
    return FirstData(
        place,
        kind,
        columns,
        tokens=next(tokens, None),
        image=images[0] if is_classified else None,
        label=label if is_classified else None,
    )


def _is_row_of_tokens(kind: str) -> bool:
    """Whether values are rows of integers of one length, and long enough to predict from."""
    match = _ROW_OF_INTEGERS.fullmatch(kind)
    return match is not None and int(match[1]) > 1


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
_CLASS: Final = {'pytorch': 'torch.nn.Module', 'lightning': 'L.LightningModule', 'composer': 'ComposerModel'}

_SETTINGS: Final = """
HERE = Path(__file__).resolve().parent
STEPS = 100
SAVE_EVERY = 50  # steps
"""

_LANGUAGE_MODEL: Final = '''\
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

_IMAGE_MODEL: Final = '''\
CLASSES = 1_000  # labels are taken modulo this; set it to the number of yours


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
        return torch.nn.functional.cross_entropy(self.layers(batch[{image!r}]), batch[{label!r}].long() % CLASSES)
'''

_UNKNOWN_MODEL: Final = '''\


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

_COLLATE: Final = '''\
VARYING = {varying!r}  # columns whose values differ in length or kind


def collate(samples):
    """A batch: `VARYING` columns are lists, others tensors. Put yours in its place, or `pad` in config.yaml."""
    columns = {{name: [sample[name] for sample in samples] for name in samples[0]}}
    stack = torch.utils.data.default_collate
    return {{name: values if name in VARYING else stack(values) for name, values in columns.items()}}


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
    loader = build_loader(load_config(HERE / 'config.yaml').train{collate})
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
    trainer.fit(Model(), datamodule=StreamingDataModule(HERE / 'config.yaml'{collate}), ckpt_path='last')
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
        train_dataloader=streaming_data_spec(HERE / 'config.yaml'{collate}),
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
    base = _CLASS[framework]
    more = ''
    if data.tokens is not None:
        model = _LANGUAGE_MODEL.format(base=base, tokens=data.tokens)
    elif data.image is not None:
        more = 'from headrace import NormalizeImages\n'
        model = _IMAGE_MODEL.format(base=base, image=data.image, label=data.label)
    else:
        model = _UNKNOWN_MODEL.format(base=base)
    imports = _IMPORTS[framework].format(more=more)
    collate = _COLLATE.format(varying=data.varying) if data.varying else ''
    run = _RUN[framework].replace('{collate}', ', collate_fn=collate' if collate else '')
    return _HEAD + imports + _SETTINGS + collate + model.lstrip('\n' if collate else '') + _METHODS[framework] + run


_FILES: Final = ('config.yaml', 'train.py')
_PACKAGES: Final = {'pytorch': 'torch', 'lightning': 'lightning', 'composer': 'composer'}
_SIZE: Final = 64  # pixels of a side of the first model's images
_T = TypeVar('_T')


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--data', metavar='PLACE', help='folder or URL of the data')
    parser.add_argument('--framework', choices=FRAMEWORKS, help='what trains (default with --yes: pytorch)')
    parser.add_argument('--batch-size', type=count, metavar='N', help='global batch (default with --yes: 32)')
    parser.add_argument('--local', metavar='DIR', help='cache of remote data (default with --yes: OUT/cache)')
    parser.add_argument('--out', type=Path, metavar='DIR', help='folder for the files (default with --yes: .)')
    parser.add_argument(
        '--yes', action='store_true', help='ask nothing: use the default of each option that is not given'
    )
    show_examples(
        parser,
        'headrace init',
        'headrace init --data s3://bucket/tokens --framework lightning --batch-size 64 --out first --yes',
        'headrace init --data pictures --yes && python train.py',
    )


@command('init', _add_init, json='print JSON; questions go to stderr')
def _run_init(arguments: argparse.Namespace) -> int:
    with printing_to_stderr(arguments.json):
        written = _write(arguments)
    if arguments.json:
        print(redact(json.dumps(written)))
    return 0


def _write(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the files, and say so; returns what is said, for programs."""
    from headrace.storage.output import make_folder

    ask = _Questions(is_silent=arguments.yes)
    data = ask('Where is the data: a folder, or the URL of a bucket?', arguments.data, None, look_at)
    print(_summary(data))
    framework = ask(f'What trains: {", ".join(FRAMEWORKS)}?', arguments.framework, 'pytorch', _framework)
    batch_size = ask('How many samples has a global batch?', arguments.batch_size, '32', count)
    local: str | None = arguments.local
    if data.is_remote and not data.needs_conversion:
        local = ask('In which folder is the cache? Empty: in the folder of the files.', local, '', str)
    elif local is not None:
        raise ConfigError('--local is the cache of remote data, but these are read where they are. Leave it out.')
    out = ask('In which folder shall the files be?', arguments.out, '.', _out).resolve()
    cache = Path(local).expanduser().resolve() if local else out / 'cache'
    texts = (_configuration(data, batch_size, cache, out), training_script(data, framework))
    make_folder(out)
    for name, text in zip(_FILES, texts, strict=True):
        with open(out / name, 'x', encoding='utf-8') as file:
            file.write(text)
    print(f'Wrote {printable(str(out / _FILES[0]))} and {_FILES[1]}.')
    package = _PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        print(f"{package} is not installed: pip install 'headrace[{framework}]'")
    commands = [f'python {shlex.quote(str(out / _FILES[1]))}']
    if data.needs_conversion:
        commands.insert(0, f'headrace convert {shlex.quote(data.place)} {shlex.quote(str(out / "shards"))}')
    print('\n  '.join(['Next:', *commands]))
    files = [str(out / name) for name in _FILES]
    return {'format': data.format, 'columns': dict(data.columns), 'files': files, 'next': commands}


class _Questions:
    """Questions on the terminal, or through a pipe; a wrong answer is followed by its rule and the same question."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent

    def __call__(self, question: str, given: Any, default: str | None, read: Callable[[str], _T]) -> _T:
        """The answer: `given`, or one that `read` accepts. An empty line, or nobody to ask, gives `default`."""
        if given is not None or (self._is_silent and default is not None):
            answer = default if given is None else given
            return read(str(answer))
        if self._is_silent:
            raise ConfigError('With --yes nothing is asked, but where the data is has no default. Add --data PLACE.')
        shown = f'{question} [{default}] ' if default else f'{question} '
        while True:
            print(shown, end='', flush=True)
            line = sys.stdin.readline()
            if not line:
                raise ConfigError(
                    'headrace init asks questions, but its input has ended before the answers. Give the answers as '
                    'options, with --yes.'
                )
            text = line.strip() or default
            if text is None:
                continue
            try:
                return read(text)
            except (HeadraceError, OSError, argparse.ArgumentTypeError) as error:
                print(printable(redact(str(error)), keep='\n'))


def _framework(text: str) -> str:
    if text.lower() not in FRAMEWORKS:
        raise ConfigError(f'The framework is one of {", ".join(FRAMEWORKS)}, but is {text!r:.80}.')
    return text.lower()


def _out(text: str) -> Path:
    from headrace.storage.output import check_output

    folder = Path(text).expanduser()
    check_output(folder)
    for path in (folder / name for name in _FILES):
        if path.exists():
            raise ConfigError(
                f'headrace init overwrites nothing, but {path} exists. Name another folder, or move the file.'
            )
    return folder


def _summary(data: FirstData) -> str:
    columns = ', '.join(f'{name}: {kind}' for name, kind in data.columns.items())
    return printable(redact(f'Found {data.format} with the columns {columns}.'))


def _configuration(data: FirstData, batch_size: int, cache: Path, out: Path) -> str:
    from headrace.config.resolver import yaml_text
    from headrace.storage.resolve import local_path

    path = local_path(data.place)
    if data.needs_conversion:
        place = {'local': str(out / 'shards')}
    elif path is not None:
        place = {'local': str(Path(path).resolve())}
    else:
        place = {'remote': data.place, 'local': str(cache)}
    crops: dict[str, object] = {'crop': 'random', 'flip': 0.5} if data.image is not None else {}
    decode = {'decode': {'size': _SIZE, **crops}} if data.has_images else {}
    head = '# Written by `headrace init`. docs/configuration.md has all keys; `headrace config check` finds mistakes.\n'
    return head + yaml_text({'global_batch_size': batch_size, 'train': {**place, 'shuffle': True, **decode}})
