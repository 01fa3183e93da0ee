"""Columns of images as tensors in samples and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import (
    BAD_SAMPLE,
    ImageTensor,
    MDSWriter,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
)
from headrace.errors import CollateError, ShardError
from tests.support.formats.image_folders import RANDOM, read_images, write_images
from tests.support.formats.pictures import by_pillow, jpeg_that_says, picture, stored


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize(('layout', 'shape'), [('CHW', (8, 3, 40, 50)), ('HWC', (8, 40, 50, 3))])
def test_a_batch_has_the_pixels_of_pillow(image_folder, workers, layout, shape):
    dataset = StreamingDataset(local=image_folder, batch_size=8, decode=ImageTensor(layout=layout))
    for batch in StreamingDataLoader(dataset, num_workers=workers):
        images = batch['image']
        assert images.dtype == torch.uint8
        assert images.shape == shape
        hwc = images if layout == 'HWC' else images.permute(0, 2, 3, 1)
        assert hwc.is_contiguous()
        for number, image in zip(batch['id'].tolist(), hwc.numpy(), strict=True):
            assert (image == np.asarray(by_pillow(stored(picture(40, 50, number))))).all()


def test_samples_and_batches_are_the_same(image_folder):
    dataset = StreamingDataset(local=image_folder, batch_size=8, decode={'image': RANDOM})
    columns = read_images(StreamingDataLoader(dataset), 2)

    def collate(samples):
        return {'id': torch.tensor([s['id'] for s in samples]), 'image': [s['image'] for s in samples]}

    fresh = StreamingDataset(local=image_folder, batch_size=8, decode={'image': RANDOM})
    assert read_images(StreamingDataLoader(fresh, collate_fn=collate), 2) == columns

    class Own(StreamingDataset):
        def get_item(self, sample_id):
            return super().get_item(sample_id)

    plain = Own(local=image_folder, batch_size=8, decode={'image': RANDOM})
    assert read_images(DataLoader(plain, batch_size=8), 2) == columns


def test_outside_of_a_pass_crops_are_central(image_folder):
    dataset = StreamingDataset(local=image_folder, decode=RANDOM)
    center = StreamingDataset(local=image_folder, decode=ImageTensor(size=16, crop='center'))
    assert torch.equal(dataset[3]['image'], center[3]['image'])
    assert dataset[3]['image'].shape == (3, 16, 16)


def test_other_columns_and_columns_of_bytes(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'a': 'jpeg', 'b': 'bytes', 'c': 'png', 'text': 'str'}) as writer:
        for number in range(4):
            data = stored(picture(20, 20, number), 'PNG')
            writer.write({'a': data, 'b': data, 'c': data, 'text': 'x'})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=4, decode={'a': RANDOM, 'b': RANDOM, 'c': 'tensor'})
    (batch,) = StreamingDataLoader(dataset)
    assert torch.equal(batch['a'], batch['b'])  # image and mask, for example, get the same crop
    assert batch['c'].shape == (4, 3, 20, 20)
    assert batch['text'] == ['x'] * 4
    assert 'c: uint8 image tensor of any size, RGB, CHW' in repr(dataset)
    (bytes_only,) = StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4, columns=['b', 'text']))
    assert bytes_only['b'][0].startswith(b'\x89PNG')


def run(image_folder, size, ranks=1, workers=0, seed=1, passes=2, decode=RANDOM):
    found = []
    for rank in range(ranks):
        dataset = StreamingDataset(local=image_folder, shuffle=True, shuffle_seed=seed, batch_size=size, decode=decode)
        topology = Topology(rank=rank, world_size=ranks)
        found += read_images(StreamingDataLoader(dataset, topology=topology, num_workers=workers), passes)
    return found


def test_augmentation_is_the_same_on_any_topology(image_folder):
    whole = run(image_folder, size=10)
    assert len({image for _, _, image in whole}) == 80  # another crop in each epoch
    for ranks, workers, size in ((2, 0, 5), (4, 1, 2), (1, 3, 4)):
        assert sorted(run(image_folder, size, ranks, workers)) == sorted(whole)
    assert not {image for _, _, image in whole} & {image for _, _, image in run(image_folder, 10, seed=2)}


@pytest.mark.parametrize('workers', [0, 2])
def test_augmentation_is_the_same_after_a_resume_on_other_ranks(image_folder, workers):
    def make(size, **options):
        dataset = StreamingDataset(local=image_folder, shuffle=True, batch_size=size, decode=RANDOM)
        return StreamingDataLoader(dataset, num_workers=workers, **options)

    whole = read_images(make(8), 2)
    loader = make(8)
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(3)]
    state, found = loader.state_dict(), []
    for rank in range(2):
        again = make(4, topology=Topology(rank=rank, world_size=2))
        again.load_state_dict(state)
        found += [(epoch, number, image) for epoch, number, image in read_images(again, 2)]
    assert sum(len(batch['id']) for batch in begun) == 24
    assert sorted(found) == sorted(whole[24:])


def test_large_batches_of_workers_are_those_of_the_main_process(damaged):
    """They are decoded into the workers' slots, also behind bad images, and never change while they are kept."""
    decode = ImageTensor(size=100, crop='random')

    def batches(workers):
        dataset = StreamingDataset(local=damaged, batch_size=4, decode=decode, on_bad_sample='skip')
        loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
        return [batch for _ in range(4) for batch in loader]

    kept, expected = batches(1), batches(0)
    assert len(kept) == 16
    for one, other in zip(kept, expected, strict=True):
        assert torch.equal(one['image'], other['image'])
        assert torch.equal(one['id'], other['id'])


@pytest.fixture
def damaged(tmp_path):
    """16 images, of which 3 is cut, 9 is none, and 12 is a size bomb."""
    images = [stored(picture(40, 50, number)) for number in range(16)]
    images[3] = images[3][:-300]
    images[9] = b'\xff\xd8nothing'
    images[12] = jpeg_that_says(60_000, 60_000)
    return write_images(tmp_path / 'damaged', images)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_error_names_stream_shard_row_and_column(damaged, workers):
    for decode in (RANDOM, ImageTensor()):
        dataset = StreamingDataset(local=damaged, batch_size=4, decode=decode)
        with pytest.raises(ShardError, match=r"Column 'image' of stream 'stream_0', shard 'shard\.00000\.mds', row 3"):
            list(StreamingDataLoader(dataset, num_workers=workers))
        with pytest.raises(ShardError, match=r'row 9, sample id 9, cannot be decoded: A value of encoding `jpeg`'):
            dataset[9]
        with pytest.raises(ShardError, match=r'sample id 12, .*60000 x 60000'):
            dataset[12]


@pytest.mark.parametrize('workers', [0, 1])
def test_bad_images_are_skipped_and_marked(damaged, workers):
    for decode in (RANDOM, ImageTensor()):
        dataset = StreamingDataset(local=damaged, batch_size=4, decode=decode, on_bad_sample='skip')
        batches = [*StreamingDataLoader(dataset, num_workers=workers)]
        marks = torch.cat([batch[BAD_SAMPLE] for batch in batches])
        assert marks.nonzero().flatten().tolist() == [3, 9, 12]
        first = batches[0]
        assert torch.equal(first['image'][3], first['image'][2])
        assert first['id'].tolist() == [0, 1, 2, 2]


def test_a_batch_without_a_readable_image_takes_others(tmp_path):
    images = [b'\xff\xd8nothing'] * 4 + [stored(picture(40, 50, number)) for number in range(4)]
    dataset = StreamingDataset(local=write_images(tmp_path, images), batch_size=4, decode=RANDOM, on_bad_sample='skip')
    first, second = StreamingDataLoader(dataset)
    assert first[BAD_SAMPLE].all()
    assert first['id'].tolist() == [4] * 4
    assert first['image'].shape == second['image'].shape


def test_images_of_different_sizes_are_refused_with_the_fix(tmp_path):
    images = [stored(picture(40, 50 + (number == 2), number)) for number in range(4)]
    image_folder = write_images(tmp_path, images)
    with pytest.raises(
        CollateError, match=r'row 0, sample id 0, has 40 x 50 .*row 2, sample id 2, has 40 x 51.*`size`'
    ):
        next(iter(StreamingDataLoader(StreamingDataset(local=image_folder, batch_size=4, decode='tensor'))))
    lists = StreamingDataLoader(
        StreamingDataset(local=image_folder, batch_size=4, decode='tensor'),
        collate_fn=lambda rows: [r['image'] for r in rows],
    )
    assert [image.shape[2] for image in next(iter(lists))] == [50, 50, 51, 50]
