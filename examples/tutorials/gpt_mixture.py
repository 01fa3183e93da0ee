# %% [markdown]
# # A GPT from two streams
#
# ```
# python examples/tutorials/gpt_mixture.py
# ```
#
# A small GPT trains on prose first, and more and more on code. You learn to mix streams by a schedule, to pack
# documents into sequences, and to see the loss of each stream. It takes 1 minute on a laptop's CPU, and seconds with
# `--small`. It needs `pip install '.[lightning,text,demo]'` in a checkout of headrace.

# %%
import json
import math

import matplotlib.pyplot as plt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from tutorial_data import SMALL, fresh_folder, make_documents

import lightning as L
from headrace import STREAM
from headrace.lightning import StreamingDataModule
from headrace.metrics import PerStreamMean
from headrace.packing import attention_mask

work = fresh_folder('gpt_mixture')

# %% [markdown]
# ## 1. The text
#
# Each stream is a folder of JSONL with the column `text`: documentation and source code that Python ships. headrace
# reads it as it is. A byte-pair tokenizer is trained on both.

# %%
make_documents(work)
texts = [
    json.loads(line)['text']
    for name in ('prose', 'code')
    for line in (work / name / 'documents.jsonl').read_text().splitlines()
]
VOCABULARY = 512
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=VOCABULARY,
    special_tokens=['<end>'],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
tokenizer.train_from_iterator(texts, trainer)
tokenizer.save(str(work / 'tokenizer.json'))
print(f'{len(texts):,} documents, {sum(map(len, texts)):,} characters')

# %% [markdown]
# ## 2. The mix
#
# `schedule` counts documents of the run. Nine of ten are prose at first. Their share falls along a line until four of
# five are code. `fraction` keeps a part of each stream for validation.

# %%
LENGTH, BATCH, STEPS = 128, 8, 40 if SMALL else 400
(work / 'gpt.yaml').write_text(f"""
global_batch_size: {BATCH}            # sequences of {LENGTH} tokens
variables:
  prose: &prose {{remote: {work}/prose, local: {work}/cache/prose}}
  code: &code {{remote: {work}/code, local: {work}/cache/code}}
  packing: &packing
    sequence_length: {LENGTH}
    tokenizer: {{library: tokenizers, path: {work}/tokenizer.json}}
    eos_token_id: 0
train:
  streams:
    prose: {{<<: *prose, fraction: [0, 0.96]}}
    code: {{<<: *code, fraction: [0, 0.96]}}
  schedule:
    - {{at: 0, proportions: {{prose: 9, code: 1}}}}
    - {{at: {BATCH * STEPS}, proportions: {{prose: 1, code: 4}}, change: linear}}
  epoch_size: 1k                # documents
  shuffle: true
  packing: *packing
  loader: {{mark_streams: true}}
eval:
  prose: {{<<: *prose, fraction: [0.96, 1], packing: &whole {{<<: *packing, sequences_per_epoch: all}}}}
  code: {{<<: *code, fraction: [0.96, 1], packing: *whole}}
""")

# %% [markdown]
# `headrace config check tutorial-output/gpt_mixture/gpt.yaml` names every mistake with its line.
#
# ## 3. The model
#
# A decoder of two blocks. A sequence holds pieces of several documents. `attention_mask` keeps attention within each.
# `STREAM` is the number of the stream of each token. `PerStreamMean` takes the loss by stream with it.

# %%
WIDTH, HEADS = 64, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        query, key, value = self.project(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.after(x))


class GPT(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
        self.losses = PerStreamMean(['prose', 'code'])
        self.shares = []
        self.history = []
        self.totals = {}

    def loss_of_tokens(self, batch):
        """The loss of each token but the first of a sequence: float32[rows, length - 1], 0 where there is no label."""
        mask = attention_mask(batch['cu_seqlens'], LENGTH)
        x = self.tokens(batch['input_ids']) + self.places(batch['position_ids'])
        for block in self.blocks:
            x = block(x, mask)
        return cross_entropy(self.head(x)[:, :-1].mT, batch['labels'][:, 1:], reduction='none')

    def training_step(self, batch, batch_idx):
        losses, labels = self.loss_of_tokens(batch), batch['labels'][:, 1:]
        streams = batch[STREAM][:, 1:].masked_fill(labels == -100, -1)
        self.losses.update(losses.detach(), streams)
        self.shares.append(float((streams == 1).sum() / (streams >= 0).sum()))
        return losses.sum() / (labels != -100).sum().clamp(min=1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        every = STEPS // 5
        if self.global_step % every == 0:
            means = {name: float(loss) for name, loss in self.losses.compute().items()}
            share = sum(self.shares[-every:]) / every
            self.history.append((self.global_step, share, means['prose'], means['code']))
            print(
                f'step {self.global_step:3}: {share:.0%} of the tokens are code; '
                f'loss of prose {means["prose"]:.2f}, of code {means["code"]:.2f}'
            )
            self.losses.reset()

    def on_validation_epoch_start(self):
        self.totals = {name: [0.0, 0] for name in ('prose', 'code')}

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        total = self.totals['code' if dataloader_idx else 'prose']
        total[0] += float(self.loss_of_tokens(batch).sum())
        total[1] += int((batch['labels'][:, 1:] != -100).sum())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.005)


# %% [markdown]
# ## 4. Train
#
# The number of sequences is not known before the documents are read. So the epoch of packed data does not end, and
# `max_steps` ends the run.

# %%
torch.manual_seed(1)
data = StreamingDataModule(work / 'gpt.yaml')
model = GPT()
trainer = L.Trainer(
    max_steps=STEPS,
    default_root_dir=work,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model, datamodule=data)

# %% [markdown]
# ## 5. What it learned
#
# These documents were kept aside. A model that has learned nothing guesses one of 512 tokens: a loss of 6.24.

# %%
trainer.validate(model, datamodule=data, verbose=False)
losses = {name: total / tokens for name, (total, tokens) in model.totals.items()}
print(
    f'Loss of new documents: prose {losses["prose"]:.2f}, code {losses["code"]:.2f}. '
    f'Without training it is {math.log(VOCABULARY):.2f}.'
)

# %%
steps, shares, *means = zip(*model.history, strict=True)
figure, (above, below) = plt.subplots(2, 1, figsize=(5, 4), sharex=True)
above.plot(steps, shares, color='gray')
above.set(ylabel='tokens that are code', ylim=(0, 1))
for name, values in zip(('prose', 'code'), means, strict=True):
    below.plot(steps, values, marker='o', label=name)
below.set(xlabel='step', ylabel='loss')
below.legend()
figure.tight_layout()
figure.savefig(work / 'losses.png')
