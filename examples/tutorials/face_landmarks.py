# %% [markdown]
# # Landmarks of faces
#
# ```
# python examples/tutorials/face_landmarks.py
# ```
#
# Images with keypoints, in the layout of FaceSynthetics: a network learns where the 70 landmarks of a face are. You
# learn to convert files of your own layout by a `Dataset`, and to train on a column of arrays. It takes 1 minute on a
# laptop's CPU, and seconds with `--small`. It needs `pip install '.[lightning,vision,demo]'` in a checkout of headrace.

# %%
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from tutorial_data import SMALL, fresh_folder, make_faces
from tutorial_pictures import show_images

import lightning as L
from headrace import NormalizeImages, without_padding
from headrace.convert import convert
from headrace.lightning import StreamingDataModule

work = fresh_folder('face_landmarks')

# %% [markdown]
# ## 1. The files
#
# FaceSynthetics has three files for each face: `000000.png`, `000000_seg.png` with the regions, and
# `000000_ldmks.txt` with a line "x y" for each landmark. Name its folder in the variable `FACES` if you have it.
# Otherwise faces are drawn.

# %%
faces = Path(os.environ.get('FACES') or make_faces(work / 'original', rows=150 if SMALL else 2000))
print(*sorted(path.name for path in faces.iterdir())[:3], '...')

# %% [markdown]
# ## 2. Convert them
#
# `convert` takes any `Dataset` of torch. The PNG files keep their bytes. Landmarks are stored as parts of the width
# and the height. `convert(..., workers=8)` takes 8 processes, and writes the same shards.


# %%
class Faces(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.paths = sorted(path for path in folder.glob('*.png') if path.stem.isdigit())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, number):
        path = self.paths[number]
        width, height = Image.open(path).size
        landmarks = np.loadtxt(path.with_name(f'{path.stem}_ldmks.txt')) / [width, height]
        return {'image': path, 'landmarks': landmarks.astype(np.float32)}


original = Faces(faces)
columns = {'image': 'png', 'landmarks': 'ndarray:float32:70,2'}
report = convert(original, work / 'shards', columns=columns, size_limit='4mb', progress_bar=False)
print(f'{report.rows:,} faces, shards: {report.shards}')

# %% [markdown]
# ## 3. The loaders
#
# `fraction` splits the one dataset: nine of ten faces are for training. The images are made smaller while they are
# decoded.

# %%
shards = {'remote': str(work / 'shards'), 'local': str(work / 'cache'), 'decode': {'size': 64}}
data = StreamingDataModule(
    train={**shards, 'fraction': [0, 0.9], 'shuffle': True},
    val={**shards, 'fraction': [0.9, 1]},
    batch_size=20,
)

# %% [markdown]
# ## 4. The network
#
# It begins with the mean face, and learns how each face differs from it.

# %%
known = np.stack([face['landmarks'] for face in original])
last = len(known) * 9 // 10
mean_face = torch.from_numpy(known[:last].mean(axis=0))


class Landmarks(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [NormalizeImages()]
        for channels, out in ((3, 16), (16, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(channels, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 140))
        self.register_buffer('mean_face', mean_face)
        self.errors = []

    def forward(self, images):
        return self.mean_face + 0.1 * self.network(images).unflatten(1, (70, 2))

    def training_step(self, batch, batch_idx):
        return (self(batch['image']) - batch['landmarks']).abs().mean() * 100

    def validation_step(self, batch, batch_idx):
        batch = without_padding(batch)
        found = self(batch['image'])
        self.errors.append((found - batch['landmarks']).norm(dim=-1).mean(dim=1))

    def on_validation_epoch_end(self):
        self.error = float(torch.cat(self.errors).mean())
        self.errors.clear()
        if not self.trainer.sanity_checking:
            print(f'epoch {self.current_epoch}: landmarks are off by {self.error:.1%} of the width')

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.004)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


# %% [markdown]
# ## 5. Train

# %%
torch.manual_seed(1)
model = Landmarks()
trainer = L.Trainer(
    max_epochs=5 if SMALL else 10,
    default_root_dir=work,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, datamodule=data)

# %%
without = float((torch.from_numpy(known[last:]) - mean_face).norm(dim=-1).mean())
print(f'Landmarks of new faces are off by {model.error:.1%} of the width. The mean face is off by {without:.1%}.')

# %% [markdown]
# ## 6. Look at it
#
# Faces that it has not seen, with the landmarks that it places.

# %%
batch = next(iter(trainer.val_dataloaders))
with torch.no_grad():
    placed = model.cpu().eval()(batch['image']) * batch['image'].shape[-1]
for place, points in zip(show_images(batch['image'][:6], [''] * 6, work / 'faces.png'), placed, strict=False):
    place.plot(*points.T, '.', color='cyan', markersize=2)
place.figure.savefig(work / 'faces.png')
