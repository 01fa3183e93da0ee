# %% [markdown]
# # Synthetic NLP: number words
#
# ```
# python examples/tutorials/number_words.py
# ```
#
# A network learns to read numbers: "four hundred six thousand twelve" is 406,012. You learn to write a dataset of
# your own with `MDSWriter`, to look into it, and to make tensors of samples. It takes 1 minute on a
# laptop's CPU, and seconds with `--small`. It needs `pip install '.[lightning,demo]'` in a checkout of headrace.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tutorial_data import SMALL, fresh_folder

import lightning as L
from headrace import MDSWriter, StreamingDataset, without_padding
from headrace.lightning import StreamingDataModule

work = fresh_folder('number_words')

# %% [markdown]
# ## 1. The text
#
# Numbers and their words come from this function.

# %%
ONES = (
    'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen '
    'eighteen nineteen'
).split()
TENS = '- - twenty thirty forty fifty sixty seventy eighty ninety'.split()
WORDS = ['', *ONES, *TENS[2:], 'hundred', 'thousand']


def in_words(number):
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f' {ONES[number % 10]}' if number % 10 else '')
    unit, name = (1000, 'thousand') if number >= 1000 else (100, 'hundred')
    rest = f' {in_words(number % unit)}' if number % unit else ''
    return f'{in_words(number // unit)} {name}{rest}'


# %% [markdown]
# ## 2. Write it
#
# Two splits with different numbers: the network must read numbers that it has never seen. Shards are compressed, and
# the index holds checksums.

# %%
digits = 3 if SMALL else 6
train_rows, val_rows = (700, 100) if SMALL else (6000, 1000)
numbers = np.random.default_rng(1).choice(10**digits, train_rows + val_rows, replace=False).tolist()
columns = {'number': 'int', 'words': 'str'}
for split, chosen in (('train', numbers[:train_rows]), ('val', numbers[train_rows:])):
    out = str(work / 'shards' / split)
    with MDSWriter(out=out, columns=columns, compression='zstd:7', hashes=['xxh64'], size_limit='64kb') as writer:
        for number in chosen:
            writer.write({'number': number, 'words': in_words(number)})

# %% [markdown]
# ## 3. Look inside
#
# `headrace inspect FOLDER --samples 3` shows more.

# %%
dataset = StreamingDataset(local=str(work / 'shards'), split='val', batch_size=1)
print(len(dataset), 'samples, such as', dataset[0])

# %% [markdown]
# ## 4. The loaders
#
# `transform` makes tensors of a sample: the numbers of its words, and its digits. With `num_workers=4`, four
# processes do it.

# %%
LONGEST = 12


class Numbers(StreamingDataModule):
    def transform(self, sample, section):
        words = [WORDS.index(word) for word in sample['words'].split()]
        return {
            'words': torch.tensor(words + [0] * (LONGEST - len(words))),
            'digits': torch.tensor([int(digit) for digit in f'{sample["number"]:0{digits}}']),
        }


shards = {'remote': str(work / 'shards'), 'local': str(work / 'cache')}
data = Numbers(
    train={**shards, 'split': 'train', 'shuffle': True},
    val={**shards, 'split': 'val'},
    batch_size=50,
)

# %% [markdown]
# ## 5. The network
#
# A recurrent network reads the words from the last to the first. Linear layers read a digit each.


# %%
class Reader(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 32)
        self.network = nn.GRU(32, 128, batch_first=True)
        self.digits = nn.Linear(128, 10 * digits)
        self.shares = []

    def forward(self, words):
        _, last = self.network(self.words(words.flip(1)))
        return self.digits(last[0]).unflatten(1, (digits, 10))

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch['words']).flatten(0, 1), batch['digits'].flatten())

    def on_validation_epoch_start(self):
        self.right = []

    def validation_step(self, batch, batch_idx):
        batch = without_padding(batch)
        self.right.append((self(batch['words']).argmax(-1) == batch['digits']).all(dim=1))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            share = torch.cat(self.right).float().mean()
            self.shares.append(float(share))
            print(f'epoch {self.current_epoch}: {share:.1%} of the new numbers are read without a mistake')

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.005)


# %% [markdown]
# ## 6. Train

# %%
torch.manual_seed(1)
model = Reader()
trainer = L.Trainer(
    max_epochs=6,
    default_root_dir=work,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, datamodule=data)

# %%
right = float(torch.cat(model.right).float().mean())
sample = dataset[0]
words = data.transform(sample, 'val')['words']
read = ''.join(str(int(digit)) for digit in model.cpu()(words[None]).argmax(-1)[0])
print(f'"{sample["words"]}" is read as {int(read):,}')
print(f'{right:.1%} of {len(dataset)} new numbers are read without a mistake.')

# %%
figure, axes = plt.subplots(figsize=(5, 2.5))
axes.plot(range(1, len(model.shares) + 1), model.shares, marker='o')
axes.set(xlabel='epochs', ylabel='new numbers read', ylim=(0, 1.05))
figure.tight_layout()
figure.savefig(work / 'shares.png')
