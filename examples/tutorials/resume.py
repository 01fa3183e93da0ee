# %% [markdown]
# # Resume on other GPUs
#
# ```
# python examples/tutorials/resume.py
# ```
#
# A run on 2 ranks is stopped, continues with 4, and then with 1. Its batches are those of a run without interruption.
# You learn what a checkpoint holds, and why the number of GPUs does not matter. It takes 1 minute on a laptop: the
# ranks are processes on the CPU, and talk by gloo. It needs `pip install '.[lightning,demo]'` in a checkout of
# headrace.

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from tutorial_data import SMALL, fresh_folder

import lightning as L
from headrace import MDSWriter
from headrace.lightning import StreamingDataModule

work = fresh_folder('resume')
ROWS, STEPS = (96, 24) if SMALL else (640, 120)

# %% [markdown]
# ## 1. The data
#
# Each sample has an `id`, so that we can see which samples a step trains on.

# %%
random = np.random.default_rng(1)
with MDSWriter(out=str(work / 'shards'), columns={'id': 'int', 'x': 'ndarray:float32:8'}, size_limit='4kb') as writer:
    for number in range(ROWS):
        writer.write({'id': number, 'x': random.normal(size=8).astype(np.float32)})

# %% [markdown]
# ## 2. One program for any number of ranks
#
# The file gives the batch size of all ranks together. So 1, 2 and 4 ranks train on the same batches of 8.

# %%
(work / 'data.yaml').write_text(f"""
global_batch_size: 8
train: {{remote: {work}/shards, local: {work}/cache, shuffle: true}}
""")


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        return (self.layer(batch['x']) - batch['x'].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Record(Callback):
    """Writes the ids of each step, and the loss, to a file of this rank."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        line = {'step': trainer.global_step, 'ids': batch['id'].tolist(), 'loss': float(outputs['loss'])}
        with open(self.folder / f'rank{trainer.global_rank}.jsonl', 'a') as file:
            file.write(json.dumps(line) + '\n')


def train(name, ranks, steps, checkpoints):
    """Continue from the last checkpoint, if there is one, until this step; returns sorted ids and mean loss by step."""
    folder = work / name
    folder.mkdir()
    last = checkpoints / 'last.ckpt'
    saver = ModelCheckpoint(checkpoints, filename='last', every_n_train_steps=1, enable_version_counter=False)
    torch.manual_seed(1)
    trainer = L.Trainer(
        accelerator='cpu',
        devices=ranks,
        strategy='ddp_fork',
        max_steps=steps,
        callbacks=[Record(folder), saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), datamodule=StreamingDataModule(work / 'data.yaml'), ckpt_path=last if last.exists() else None)
    lines = [json.loads(line) for path in folder.glob('rank*.jsonl') for line in path.read_text().splitlines()]
    batches = {}
    for step in sorted({line['step'] for line in lines}):
        of_step = [line for line in lines if line['step'] == step]
        ids = sorted(number for line in of_step for number in line['ids'])
        batches[step] = ids, sum(line['loss'] for line in of_step) / len(of_step)
    print(f'steps {min(batches):3} to {max(batches):3} {name}')
    return batches


# %% [markdown]
# `strategy='ddp_fork'` works in a notebook, too. In a program on GPUs it is `strategy='ddp'`, with torchrun, SLURM or
# Lightning's own processes. Nothing else changes.
#
# ## 3. Stop, and continue with other ranks

# %%
first, second = STEPS // 3 + 1, STEPS * 2 // 3 + 2
saved = work / 'checkpoints'
resumed = train('on two ranks', 2, first, saved)
position = json.loads((saved / 'last.headrace.json').read_text())
resumed |= train('on four ranks', 4, second, saved)
resumed |= train('on one rank', 1, STEPS, saved)

# %% [markdown]
# The place in the data is a number of samples, not of batches of a rank. It is in the checkpoint, and beside it for
# people. After the first run:

# %%
print(*position['summary'], sep='\n')

# %% [markdown]
# ## 4. The proof
#
# The same on one rank, without interruption.

# %%
whole = train('without interruption', 1, STEPS, work / 'other checkpoints')
same = sum(resumed[step][0] == whole[step][0] for step in whole)
difference = max(abs(resumed[step][1] - whole[step][1]) for step in whole)
print(f'{same} of {len(whole)} steps trained on the same ids. The losses differ by at most {difference:.1e}.')

# %%
figure, axes = plt.subplots(figsize=(6, 2.5))
axes.plot(whole.keys(), [loss for _, loss in whole.values()], color='lightgray', linewidth=5, label='uninterrupted')
for ranks, begin, end in ((2, 0, first), (4, first, second), (1, second, STEPS)):
    steps = range(begin + 1, end + 1)
    axes.plot(steps, [resumed[step][1] for step in steps], label=f'{ranks} ranks' if ranks > 1 else '1 rank')
axes.set(xlabel='step', ylabel='loss', yscale='log')
axes.legend(ncols=4, loc='lower center', bbox_to_anchor=(0.5, 1))
figure.tight_layout()
figure.savefig(work / 'losses.png')
