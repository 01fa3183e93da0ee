"""The examples of docs/images.md run as they are written."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import torch
from omegaconf import OmegaConf

from headrace import ImageTensor, MDSWriter
from headrace.mixing import load_config
from headrace.tensors.decoding import Decode
from tests.support.formats.pictures import picture, stored

DOC = (Path(__file__).parents[2] / 'docs' / 'images.md').read_text().partition('## Sound')[0]


def blocks(language):
    return re.findall(rf'^```{language}\n(.*?)^```$', DOC, flags=re.MULTILINE | re.DOTALL)


def test_the_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ('train', 'val'):
        with MDSWriter(out=f'data/{split}', columns={'image': 'jpeg', 'label': 'int'}) as writer:
            for number in range(20):
                writer.write({'image': stored(picture(90, 100, number)), 'label': number})
    (program,) = blocks('python')
    # The caches of a test do not belong into the user's temporary folder.
    program = program.replace("remote='data/train'", "local='data/train'").replace(
        "remote='data/val'", "local='data/val'"
    )
    names = {}
    exec(program, names)
    assert names['batch']['image'].shape == (4, 3, 224, 224)
    assert names['images'].dtype == torch.float32
    assert names['evaluation'][0]['image'].shape == (3, 224, 224)


def test_the_yaml():
    block, masks = blocks('yaml')
    image = ImageTensor(size=224, crop='random', flip=0.5)
    mask = dataclasses.replace(image, mode='P', interpolation='nearest')
    assert Decode.of(OmegaConf.to_container(OmegaConf.create(masks))['train']['decode']) == Decode(
        None, (('image', image), ('mask', mask))
    )
    sections = {name: {'local': '/a', **section} for name, section in OmegaConf.create(block).items()}
    loaded = load_config({'device_batch_size': 8, **sections})
    assert loaded.train.decode == Decode(image)


def test_the_table_has_every_setting():
    rows = re.findall(r'^\| (`\w+`(?:, `\w+`)*) \|', DOC, flags=re.MULTILINE)
    assert [name for row in rows for name in re.findall(r'\w+', row)] == [
        field.name for field in dataclasses.fields(ImageTensor)
    ]
