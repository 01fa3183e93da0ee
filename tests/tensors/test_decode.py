"""Decoded pictures, compared with Pillow on the same bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from headrace import ImageTensor
from headrace.errors import FormatError
from headrace.tensors.images import NUM_DRAWS, choose_box, is_flipped
from tests.support.formats.pictures import by_pillow, jpeg_that_says, of_16_bits, picture, stored


def decoded(data, image, draws=None, encoding='jpeg'):
    opened = image.open(data, encoding)
    out = np.zeros((*(image.out_size or opened[:2]), image.channels), np.uint8)
    opened.read_into(out, draws)
    return out


def cropped_by_pillow(data, image, draws=None):
    """The obvious way: decode, crop, resize, flip."""
    whole = by_pillow(data, image.mode)
    top, left, height, width = choose_box(image, whole.height, whole.width, draws)
    kind = {'bilinear': Image.Resampling.BILINEAR, 'bicubic': Image.Resampling.BICUBIC}[image.interpolation]
    out = whole.crop((left, top, left + width, top + height)).resize(image.out_size[::-1], kind)
    if is_flipped(image, draws):
        out = out.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(out).reshape(*image.out_size, image.channels)


def difference(one, other):
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'subsampling': 0}, {'restart_marker_blocks': 4}])
def test_jpegs_have_the_pixels_of_pillow(options):
    data = stored(picture(37, 53), quality=90, **options)
    assert (decoded(data, ImageTensor()) == np.asarray(by_pillow(data))).all()


@pytest.mark.parametrize(
    ('form', 'mode'),
    [
        ('JPEG', 'L'),
        ('JPEG', 'CMYK'),
        ('PNG', 'RGBA'),
        ('PNG', 'P'),
        ('PNG', 'LA'),
        ('PNG', '1'),
        ('GIF', 'P'),
        ('BMP', 'RGB'),
    ],
)
def test_other_pictures_are_converted_as_pillow_does(form, mode):
    data = stored(picture(20, 30).convert(mode), form)
    assert (decoded(data, ImageTensor()) == np.asarray(by_pillow(data))).all()
    grey = decoded(data, ImageTensor(mode='L'))
    assert grey.shape == (20, 30, 1)
    assert difference(grey[..., 0], np.asarray(by_pillow(data, 'L'))).max() <= 2


def test_raw_images_of_pillow_are_converted():
    from headrace.format.encodings.registry import get_mds_encoding

    raw = get_mds_encoding('pil').encode(picture(20, 30))
    assert (decoded(raw, ImageTensor(), encoding='pil') == np.asarray(picture(20, 30))).all()


@pytest.mark.parametrize('mode', ['RGB', 'L'])
@pytest.mark.parametrize('interpolation', ['bilinear', 'bicubic'])
@pytest.mark.parametrize('crop', [None, 'center', 'random'])
def test_crops_are_those_of_pillow_within_rounding(mode, interpolation, crop):
    image = ImageTensor(size=(24, 32), crop=crop, flip=0.5, mode=mode, interpolation=interpolation)
    rng, flips = np.random.default_rng(3), 0
    for number, (height, width) in enumerate([(60, 80), (24, 32), (90, 31), (10, 300), (20, 20)]):
        data, draws = stored(picture(height, width, number)), rng.random(NUM_DRAWS).tolist()
        flips += is_flipped(image, draws)
        apart = difference(decoded(data, image, draws), cropped_by_pillow(data, image, draws))
        assert apart.mean() < 0.2
        if mode == 'RGB':  # grey is the JPEG's own luminance, which no color clips
            assert apart.max() <= 2
    assert 0 < flips < 5


def test_a_scaled_picture_is_near_the_whole_one_and_no_other_is_scaled():
    data = stored(picture(100, 150).resize((1200, 800)), quality=90)
    image, scaled = ImageTensor(size=64, crop='center'), ImageTensor(size=64, crop='center', scaled=True)
    apart = difference(decoded(data, image), decoded(data, scaled))
    assert 0 < apart.mean() < 5
    # Half of this crop would be smaller than the result.
    near = ImageTensor(size=500, crop='center'), ImageTensor(size=500, crop='center', scaled=True)
    assert (decoded(data, near[0]) == decoded(data, near[1])).all()


@pytest.mark.parametrize('cut', [0.02, 0.5, 0.9])
def test_truncated_pictures_are_refused(cut):
    for form, encoding in (('JPEG', 'jpeg'), ('PNG', 'png')):
        data = stored(picture(64, 64), form)
        with pytest.raises(FormatError, match='cannot be read as an image'):
            decoded(data[: int(cut * len(data))], ImageTensor(), encoding=encoding)


def test_bytes_behind_a_jpeg_do_not_matter():
    data = stored(picture(64, 64))
    assert (decoded(data + b'more', ImageTensor()) == decoded(data, ImageTensor())).all()


@pytest.mark.parametrize(
    ('form', 'mode'), [('PNG', 'L'), ('PNG', 'LA'), ('PNG', 'RGB'), ('PNG', 'RGBA'), ('PPM', 'RGB'), ('TIFF', 'RGB')]
)
@pytest.mark.parametrize('wanted', ['RGB', 'L', 'P'])
def test_pixels_of_more_bits_are_refused(form, mode, wanted):
    with pytest.raises(FormatError, match='8 bits'):
        decoded(of_16_bits(form, mode), ImageTensor(mode=wanted), encoding='bytes')


def test_a_bitmap_of_16_bits_a_pixel_has_no_more_than_8_a_channel():
    data = bytearray(stored(Image.new('RGB', (4, 4)), 'BMP'))
    data[28:30] = struct.pack('<H', 16)
    assert decoded(bytes(data), ImageTensor(), encoding='bytes').shape == (4, 4, 3)


@pytest.mark.parametrize(
    ('wanted', 'message'), [('RGB', "but this one has pixels of mode 'I;16'"), ('P', "pixels of mode 'I;16'. Read it")]
)
def test_grey_of_more_bits_is_refused_with_the_fix(wanted, message):
    data = stored(Image.fromarray(np.full((8, 8), 40_000, np.uint16)), 'PNG')
    with pytest.raises(FormatError, match=message):
        decoded(data, ImageTensor(mode=wanted), encoding='png')


CLASSES = np.zeros((64, 48), np.uint8)
CLASSES[:, 32:], CLASSES[20:40, 10:30] = 200, 7


def mask(mode):
    image = Image.fromarray(CLASSES)
    if mode == 'P':
        image.putpalette([value for n in range(256) for value in (n * 37 % 256, n * 91 % 256, n * 53 % 256)])
    return image if mode in ('L', 'P') else Image.fromarray((CLASSES > 6).astype(np.uint8) * 255).convert(mode)


@pytest.mark.parametrize(('form', 'mode'), [('PNG', 'P'), ('BMP', 'P'), ('PNG', 'L'), ('TIFF', 'L')])
def test_masks_have_the_stored_class_numbers(form, mode):
    found = decoded(stored(mask(mode), form), ImageTensor(mode='P'), encoding='bytes')
    assert (found[:, :, 0] == CLASSES).all()


def test_masks_of_one_bit_have_the_classes_0_and_1():
    assert (decoded(stored(mask('1'), 'PNG'), ImageTensor(mode='P'))[:, :, 0] == (CLASSES > 6)).all()


@pytest.mark.parametrize('mode', ['P', 'L'])
@pytest.mark.parametrize('size', [(24, 24), (17, 31), (100, 90)])
@pytest.mark.parametrize('draw', [None, 0.2, 0.9])
def test_nearest_makes_no_class_that_is_not_there(mode, size, draw):
    image = ImageTensor(mode=mode, interpolation='nearest', size=size, crop='random', flip=0.5)
    draws = None if draw is None else [draw] * NUM_DRAWS
    found = decoded(stored(mask(mode if mode == 'P' else 'L'), 'PNG'), image, draws)
    assert {*found.ravel().tolist()} <= {0, 7, 200}
    assert len({*found.ravel().tolist()}) > 1


def test_nearest_takes_the_pixel_at_the_centre():
    image = ImageTensor(mode='P', interpolation='nearest', size=(21, 16))
    expected = np.asarray(Image.fromarray(CLASSES).resize((16, 21), Image.Resampling.NEAREST))
    assert (decoded(stored(mask('P'), 'PNG'), image)[:, :, 0] == expected).all()


@pytest.mark.parametrize('form', ['JPEG', 'PNG'])
def test_colours_are_not_class_numbers(form):
    with pytest.raises(FormatError, match="this image has pixels of mode 'RGB'. Read it with `mode` 'RGB'"):
        decoded(stored(picture(20, 30), form), ImageTensor(mode='P'), encoding='bytes')


def test_a_jpeg_that_says_too_little_or_too_much_is_an_error_or_a_picture():
    """A wrong header never writes beyond the memory that it asks for."""
    for height, width in ((8, 8), (1, 1), (16, 4000), (4000, 16)):
        try:
            assert decoded(jpeg_that_says(height, width), ImageTensor()).shape == (height, width, 3)
        except FormatError:
            continue


def test_mutated_files_give_pictures_or_errors_of_ours():
    rng = np.random.default_rng(7)
    whole = stored(picture(40, 40)), stored(picture(40, 40), 'PNG'), stored(picture(40, 40), progressive=True)
    image, outcomes = ImageTensor(size=16, crop='random', max_pixels=1 << 20), set()
    for number in range(300):
        data = bytearray(whole[number % 3])
        for at in rng.integers(0, len(data), 1 + number % 8):
            data[at] = rng.integers(256)
        try:
            decoded(bytes(data), image, rng.random(NUM_DRAWS).tolist())
            outcomes.add('picture')
        except FormatError:
            outcomes.add('error')
    assert outcomes == {'picture', 'error'}
