# %% [markdown]
# # Parquet without conversion
#
# ```
# python examples/tutorials/parquet.py
# ```
#
# A network trains on Parquet files as they are. You learn to choose columns and rows, and what is fetched of a file.
# It takes 30 seconds on a laptop's CPU, and less with `--small`. It needs `pip install '.[lightning,arrow,demo]'` in a
# checkout of headrace.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tutorial_data import SMALL, fresh_folder

import lightning as L
from headrace import StreamingDataset, without_padding
from headrace.lightning import StreamingDataModule

work = fresh_folder('parquet')

# %% [markdown]
# ## 1. The files
#
# The names are those of a dataset on the Hugging Face Hub. A row is a point of one of three spirals, and a long note
# that no training needs. With files of your own, `remote` below is their folder, or a URL such as `s3://bucket/table`
# or `hf://datasets/OWNER/NAME`.

# %%
random = np.random.default_rng(1)
table = work / 'table' / 'data'
table.mkdir(parents=True)


def write(name, rows):
    arm = random.integers(0, 3, rows)
    turn = random.uniform(0.2, 1, rows)
    angle = 2 * np.pi * (turn + arm / 3) + random.normal(0, 0.1, rows)
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1).astype(np.float32)
    notes = [random.bytes(200).hex() for _ in range(rows)]
    columns = {'point': pa.FixedSizeListArray.from_arrays(points.ravel(), 2), 'arm': arm, 'note': notes}
    pq.write_table(pa.table(columns), table / name, row_group_size=500)


parts = 2 if SMALL else 8
for part in range(parts):
    write(f'train-{part:05}-of-{parts:05}.parquet', 1500)
write('test-00000-of-00001.parquet', 1000)
size = sum(path.stat().st_size for path in table.glob('train-*'))
print(f'{parts} files for training, {size / 1e3:,.0f} kB')

# %% [markdown]
# ## 2. The loaders
#
# `columns` names those that are read, so the bytes of the notes are not fetched. `split` chooses files by their
# names. Each row group becomes a shard of the cache, when it is first needed.

# %%
place = {'remote': str(work / 'table'), 'local': str(work / 'cache'), 'columns': ['point', 'arm']}
data = StreamingDataModule(
    train={**place, 'split': 'train', 'shuffle': True},
    val={**place, 'split': 'test'},
    batch_size=50,
)

# %% [markdown]
# ## 3. Train


# %%
class Spirals(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.network(batch['point']), batch['arm'])

    def on_validation_epoch_start(self):
        self.right = []

    def validation_step(self, batch, batch_idx):
        batch = without_padding(batch)
        self.right.append(self.network(batch['point']).argmax(1) == batch['arm'])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.005)


torch.manual_seed(1)
model = Spirals()
trainer = L.Trainer(
    max_epochs=6 if SMALL else 4,
    default_root_dir=work,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, datamodule=data)

# %%
right = float(torch.cat(model.right).float().mean())
fetched = trainer.train_dataloader.stats().bytes_downloaded
print(f'{fetched / 1e3:,.0f} of {size / 1e3:,.0f} kB were fetched.')
print(f'{right:.1%} of the test points are right. By chance it would be 33%.')

# %% [markdown]
# What the network says of each place, and the test points.

# %%
sides = torch.linspace(-1.2, 1.2, 200)
with torch.no_grad():
    places = model.cpu().network(torch.cartesian_prod(sides, sides)).argmax(1).reshape(200, 200)
rows = pq.read_table(table / 'test-00000-of-00001.parquet').to_pydict()
figure, axes = plt.subplots(figsize=(4, 4))
axes.imshow(places.T, extent=(-1.2, 1.2, -1.2, 1.2), origin='lower', cmap='Pastel1', vmin=0, vmax=8)
axes.scatter(*np.array(rows['point']).T, c=rows['arm'], cmap='Set1', vmin=0, vmax=8, s=4)
figure.savefig(work / 'spirals.png')

# %% [markdown]
# ## 4. Choose rows
#
# `where` keeps the rows that fit. A run may begin with them at once.

# %%
first_arm = StreamingDataset(**place, split='test', where={'arm': 0}, batch_size=1)
print(f'{len(first_arm)} test points are of the first arm, such as {first_arm[0]["point"]}')
