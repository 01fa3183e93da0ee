# %% [markdown]
# # Images from a bucket
#
# ```
# python examples/tutorials/images_from_bucket.py
# ```
#
# A folder of pictures goes to a bucket, and a network trains on it from there. You learn to convert to a URL, to crop
# and flip images while they are decoded, and to see what is downloaded. It takes 1 minute on a laptop's CPU, and
# seconds with `--small`. It needs `pip install '.[lightning,vision,s3,demo]' 'moto[server]'` in a checkout of headrace.

# %%
import os

import boto3
import torch
from moto.server import ThreadedMotoServer
from torch.nn.functional import cross_entropy
from tutorial_data import SMALL, fresh_folder, make_pictures
from tutorial_models import small_resnet
from tutorial_pictures import show_images

import lightning as L
from headrace import without_padding
from headrace.convert import convert
from headrace.lightning import StreamingDataModule

work = fresh_folder('images_from_bucket')

# %% [markdown]
# ## 1. A bucket
#
# Name yours in the variable `BUCKET`, such as `s3://my-bucket/pictures`: it must be empty, and is filled. `gs://`,
# `azure://` and [others](../../docs/stores.md) work alike. Without it, a server on this machine answers as S3 does.

# %%
bucket, server = os.environ.get('BUCKET'), None
if not bucket:
    server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)
    server.start()
    os.environ['S3_ENDPOINT_URL'] = 'http://{}:{}'.format(*server.get_host_and_port())
    os.environ |= {'AWS_ACCESS_KEY_ID': 'any', 'AWS_SECRET_ACCESS_KEY': 'any', 'AWS_DEFAULT_REGION': 'us-east-1'}
    boto3.client('s3', endpoint_url=os.environ['S3_ENDPOINT_URL']).create_bucket(Bucket='made')
    bucket = 's3://made/pictures'

# %% [markdown]
# ## 2. Pictures to shards in the bucket
#
# One folder for each class, as torchvision's `ImageFolder` wants it. The shards are uploaded while they are written.
# `headrace convert PICTURES s3://bucket/pictures` does the same from the shell.

# %%
pictures = make_pictures(work / 'pictures', rows=240 if SMALL else 2000)
report = convert(pictures, bucket, size_limit='200kb', progress_bar=False)
print(f'{report.rows:,} pictures, shards: {report.shards}, columns: {report.columns}')

# %% [markdown]
# ## 3. The loaders
#
# `decode` gives `uint8` tensors of one size. Pictures of training are cropped and flipped at random, the same way on
# any number of GPUs. Fetched shards stay in `local`: a `cache_limit` would bound them.

# %%
shards = {'remote': bucket, 'local': str(work / 'cache')}
crops = {'size': 32, 'crop': 'random', 'scale': [0.6, 1], 'flip': 0.5}
data = StreamingDataModule(
    train={**shards, 'fraction': [0, 0.9], 'shuffle': True, 'decode': crops},
    val={**shards, 'fraction': [0.9, 1], 'decode': {'size': 32}},
    batch_size=20,
)

# %% [markdown]
# ## 4. Train
#
# The loader counts what it downloads.


# %%
class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = small_resnet(classes=4)
        self.downloaded = []
        self.seen = []

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.seen.append(batch['image'][:4])
        return cross_entropy(self.network(batch['image']), batch['label'])

    def on_train_epoch_end(self):
        self.downloaded.append(self.trainer.train_dataloader.stats().bytes_downloaded - sum(self.downloaded))

    def on_validation_epoch_start(self):
        self.right = []

    def validation_step(self, batch, batch_idx):
        batch = without_padding(batch)
        self.right.append(self.network(batch['image']).argmax(1) == batch['label'])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.003)


torch.manual_seed(1)
model = Classifier()
trainer = L.Trainer(
    max_epochs=4,
    default_root_dir=work,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model, datamodule=data)
if server:
    server.stop()

# %%
right = float(torch.cat(model.right).float().mean())
print('Downloaded in each epoch:', ', '.join(f'{count / 1e3:,.0f} kB' for count in model.downloaded))
print(f'{right:.1%} of the validation pictures are right. By chance it would be 25%.')

# %% [markdown]
# The first four pictures of each epoch, as the network saw them: in another order each time, cropped and flipped.

# %%
titles = [f'epoch {epoch}' if number == 0 else '' for epoch in range(4) for number in range(4)]
axes = show_images(torch.cat(model.seen[:4]).cpu(), titles, work / 'crops.png')
