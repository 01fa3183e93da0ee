# %% [markdown]
# # CIFAR-10 with a ResNet, under Composer
#
# ```
# python examples/tutorials/cifar10_composer.py
# ```
#
# The same network and data as [under Lightning](cifar10_lightning.ipynb), with Composer's trainer. You learn to make
# a `DataSpec` of a dataset, and to resume from a checkpoint in the middle of an epoch. It takes 1 minute on a laptop's
# CPU, and less with `--small`. It needs `pip install '.[composer,vision,demo]'` in a checkout of headrace, and
# Python 3.10 to 3.12.

# %%
import os

import torch
from composer.models import ComposerClassifier
from tutorial_data import SHAPES, SMALL, fresh_folder, make_cifar10
from tutorial_models import small_resnet
from tutorial_pictures import show_images

from composer import Trainer
from headrace.composer import StreamingPosition, streaming_data_spec
from headrace.vision import StreamingCIFAR10
from headrace.vision.convert.cifar10 import ORIGINAL as CIFAR10

work = fresh_folder('cifar10_composer')

# %% [markdown]
# ## 1. Files to shards
#
# `CIFAR10` may name the folder that holds `cifar-10-batches-py`. Otherwise drawn shapes take the place of the
# photographs. From the shell it is `headrace convert cifar10 ORIGINAL SHARDS`.

# %%
original = os.environ.get('CIFAR10') or make_cifar10(work / 'original', rows=100 if SMALL else 600)
for split, report in CIFAR10.convert(original, work / 'shards', progress_bar=False).items():
    print(f'{split}: {report.rows:,} images, {report.num_errors} broken')

# %% [markdown]
# ## 2. The datasets
#
# `batch_size` is that of one GPU. The crops of an image follow from the seed, the epoch and the image alone.

# %%
shards = {'remote': str(work / 'shards'), 'local': str(work / 'cache'), 'batch_size': 50}
crops = {'size': 32, 'crop': 'random', 'scale': [0.6, 1], 'flip': 0.5}


def loaders():
    train = StreamingCIFAR10(**shards, split='train', shuffle=True, decode={'x': crops})
    val = StreamingCIFAR10(**shards, split='val', decode={'x': 'tensor'})
    return {
        'train_dataloader': streaming_data_spec(train),
        'eval_dataloader': streaming_data_spec(val, 'eval'),
    }


# %% [markdown]
# ## 3. Train
#
# `StreamingPosition` keeps the place in the data with Composer's time. The first run stops in the middle of an epoch,
# as if it had been killed there. The second one continues with the next batch. On a machine with GPUs, `composer -n 8
# program.py` starts 8 ranks, and a run may continue with another number.

# %%
epochs = 3 if SMALL else 8


def train(until, load_path=None):
    torch.manual_seed(1)
    model = ComposerClassifier(small_resnet(classes=10), num_classes=10)
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01),
        max_duration=until,
        **loaders(),
        callbacks=[StreamingPosition()],
        save_folder=str(work / 'checkpoints'),
        save_interval='1ba' if SMALL else '10ba',
        save_num_checkpoints_to_keep=1,
        save_overwrite=True,
        load_path=load_path,
        progress_bar=False,
    )
    trainer.fit()
    return trainer


stopped = train('15ba' if SMALL else '150ba')
print(f'stopped after {int(stopped.state.timestamp.sample):,} images, in epoch {int(stopped.state.timestamp.epoch)}')
trainer = train(f'{epochs}ep', load_path=str(work / 'checkpoints' / 'latest-rank0.pt'))

# %%
images = int(trainer.state.timestamp.sample)
right = float(trainer.state.eval_metrics['eval']['MulticlassAccuracy'].compute())
print(f'trained on {images:,} images in {epochs} epochs')
print(f'{right:.1%} of the validation images are right. By chance it would be 10%.')

# %% [markdown]
# ## 4. Look at it
#
# Images of the validation, with the class that the network names. A wrong one is followed by the right one.

# %%
PHOTOGRAPHS = 'airplane automobile bird cat deer dog frog horse ship truck'.split()
names = PHOTOGRAPHS if os.environ.get('CIFAR10') else SHAPES
images, classes = next(iter(loaders()['eval_dataloader'].dataloader))
with torch.no_grad():
    guesses = trainer.state.model.eval()((images, classes)).argmax(1)
titles = [
    names[guess] if guess == label else f'{names[guess]}\n({names[label]})'
    for guess, label in zip(guesses[:10], classes[:10], strict=True)
]
axes = show_images(images[:10], titles, work / 'guesses.png')
