"""Columns of images of streams, whose settings and sizes must fit."""

from __future__ import annotations

import pytest

from headrace import (
    ImageTensor,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from headrace.errors import StreamError
from tests.support.formats.image_folders import RANDOM, read_images, write_images
from tests.support.formats.pictures import picture, stored


def test_streams_have_settings_of_their_own_and_share_batches(tmp_path, image_folder):
    other = write_images(tmp_path, [stored(picture(30, 30, number), 'PNG') for number in range(40)], 'png')
    grey = ImageTensor(size=16, crop='center')
    streams = [Stream(local=image_folder, name='a'), Stream(local=other, name='b', decode={'image': grey})]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=20, decode=RANDOM)
    batches = [*StreamingDataLoader(dataset)]
    assert {batch['image'].shape for batch in batches} == {(20, 3, 16, 16)}
    alone = StreamingDataset(local=other, decode=grey)
    expected = {alone[number]['image'].numpy().tobytes() for number in range(40)}
    assert expected <= {image for batch in batches for _, _, image in read_images([batch])}


def test_streams_whose_images_do_not_stack_are_refused(tmp_path, image_folder):
    for settings in ({'size': 16, 'layout': 'HWC'}, {'size': 8}, {'size': 16, 'mode': 'L'}, None):
        one = Stream(local=image_folder, name='a', decode=RANDOM)
        other = Stream(local=image_folder, name='b', decode=settings)
        dataset = StreamingDataset(streams=[one, other], batch_size=4)
        with pytest.raises(StreamError, match="'image' is uint8 image tensor of 16 x 16, RGB, CHW in stream a"):
            next(iter(StreamingDataLoader(dataset)))


def test_wrong_settings_are_refused_when_the_dataset_is_made(image_folder):
    with pytest.raises(StreamError, match="names the column 'imag'.*Did you mean 'image'"):
        StreamingDataset(local=image_folder, decode={'imag': 'tensor'})
    with pytest.raises(StreamError, match='no column of images to read'):
        StreamingDataset(local=image_folder, columns=['id'], decode='tensor')
    with pytest.raises(StreamError, match="column 'id' of stream .* is `int`"):
        StreamingDataset(local=image_folder, decode={'id': 'tensor'})
    with pytest.raises(StreamError, match="must be 'tensor'"):
        Stream(local=image_folder, decode='pil')
