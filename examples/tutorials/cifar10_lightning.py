# %% [markdown]
# # CIFAR-10 with a ResNet, under Lightning
#
# ```
# python examples/tutorials/cifar10_lightning.py
# ```
#
# From the files of CIFAR-10 to a trained network. You learn to convert a known dataset, to read it with its class,
# and to augment images while they are decoded. It takes 1 minute on a laptop's CPU, and seconds with `--small`. It
# needs `pip install '.[lightning,vision,demo]'` in a checkout of headrace.

# %%
import os

import torch
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy
from tutorial_data import SHAPES, SMALL, fresh_folder, make_cifar10
from tutorial_models import small_resnet
from tutorial_pictures import show_images

import lightning as L
from headrace import without_padding
from headrace.lightning import StreamingDataModule
from headrace.vision import StreamingCIFAR10
from headrace.vision.convert.cifar10 import ORIGINAL as CIFAR10

work = fresh_folder('cifar10_lightning')

# %% [markdown]
# ## 1. The files
#
# The owners distribute CIFAR-10 as Python's pickles, in the folder `cifar-10-batches-py`. If you have it, or
# `cifar-10-python.tar.gz`, name the folder that holds it in the variable `CIFAR10`. Otherwise the tutorial makes
# files of the same layout, with drawn shapes as the ten classes.

# %%
original = os.environ.get('CIFAR10') or make_cifar10(work / 'original', rows=80 if SMALL else 600)

# %% [markdown]
# ## 2. Convert them
#
# `headrace convert cifar10 ORIGINAL SHARDS` does the same from the shell. A pickle can run code when it is loaded.
# These are read without. `SHARDS` may be a URL such as `s3://bucket/cifar10`.

# %%
for split, report in CIFAR10.convert(original, work / 'shards', progress_bar=False).items():
    print(f'{split}: {report.rows:,} images, {report.num_errors} broken')

# %% [markdown]
# ## 3. The loaders
#
# Training images are cropped at random, and half of them flipped, while they are decoded to `uint8`. The crop of an
# image follows from the seed, the epoch and the image. So it is the same on any number of GPUs and workers, and after
# a resume. `batch_size` is that of one GPU.

# %%
shards = {'remote': str(work / 'shards'), 'local': str(work / 'cache')}
crops = {'size': 32, 'crop': 'random', 'scale': [0.6, 1], 'flip': 0.5}
data = StreamingDataModule(
    train={**shards, 'split': 'train', 'shuffle': True, 'decode': {'x': crops}},
    val={**shards, 'split': 'val', 'decode': {'x': 'tensor'}},
    dataset_class=StreamingCIFAR10,
    batch_size=25,
)

# %% [markdown]
# ## 4. The network
#
# A batch is a pair of images and classes. On several GPUs, the last batch of an evaluation may need a row that only
# fills it up. `without_padding` leaves that row out, so each image counts once.


# %%
class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = small_resnet(classes=10)
        self.right = MulticlassAccuracy(10, average='micro')

    def training_step(self, batch, batch_idx):
        images, classes = batch
        return cross_entropy(self.network(images), classes)

    def validation_step(self, batch, batch_idx):
        images, classes = without_padding(batch, self.trainer.val_dataloaders.own_samples)
        self.right.update(self.network(images), classes)
        self.log('right', self.right)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f'epoch {self.current_epoch}: {self.right.compute():.1%} of the validation images are right')

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.003, weight_decay=0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


# %% [markdown]
# ## 5. Train
#
# The data module is all that Lightning needs. It takes the number of GPUs from the trainer. `ckpt_path='last'` would
# continue from the last checkpoint: the tutorial [Resume on other GPUs](resume.ipynb) shows it.

# %%
torch.manual_seed(1)
trainer = L.Trainer(
    max_epochs=4 if SMALL else 8,
    default_root_dir=work,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), datamodule=data)

# %%
right = float(trainer.callback_metrics['right'])
print(f'{right:.1%} of the validation images are right. By chance it would be 10%.')

# %% [markdown]
# ## 6. Look at it
#
# Images of the validation, with the class that the network names. A wrong one is followed by the right one.

# %%
PHOTOGRAPHS = 'airplane automobile bird cat deer dog frog horse ship truck'.split()
names = PHOTOGRAPHS if os.environ.get('CIFAR10') else SHAPES
images, classes = next(iter(trainer.val_dataloaders))
with torch.no_grad():
    guesses = trainer.model.eval().network(images).argmax(1)
titles = [
    names[guess] if guess == label else f'{names[guess]}\n({names[label]})'
    for guess, label in zip(guesses[:10], classes[:10], strict=True)
]
axes = show_images(images[:10], titles, work / 'guesses.png')
