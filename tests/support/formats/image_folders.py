"""Folders of shards with images."""

from __future__ import annotations

from headrace import (
    ImageTensor,
    MDSWriter,
)

RANDOM = ImageTensor(size=16, crop='random', flip=0.5)


def write_images(image_folder, images, encoding='jpeg', size_limit=None):
    """Images as files, each with the number of its sample."""
    with MDSWriter(out=str(image_folder), columns={'id': 'int', 'image': encoding}, size_limit=size_limit) as writer:
        for number, data in enumerate(images):
            writer.write({'id': number, 'image': data})
    return str(image_folder)


def read_images(loader, passes=1):
    """Bytes of each image that is read, with its sample and pass."""
    return [
        (epoch, number, image.numpy().tobytes())
        for epoch in range(passes)
        for batch in loader
        for number, image in zip(batch['id'].tolist(), batch['image'], strict=True)
    ]
