"""The settings of columns of images."""

from __future__ import annotations

import pytest

from headrace import ImageTensor
from headrace.errors import StreamError
from headrace.images import Decode

STORED = {'id': 'int', 'image': 'jpeg', 'mask': 'png', 'file': 'bytes'}


def columns(raw, read=None):
    return Decode.of(raw).columns(STORED, read, 'stream a')


def test_a_name_or_settings_hold_for_all_columns_of_images():
    assert columns('tensor') == {'image': ImageTensor(), 'mask': ImageTensor()}
    assert columns({'size': 32, 'crop': 'center'}) == dict.fromkeys(
        ['image', 'mask'], ImageTensor(size=32, crop='center')
    )
    assert columns('tensor', read=['image', 'id']) == {'image': ImageTensor()}


def test_columns_have_their_own():
    raw = {'image': 'tensor', 'file': {'size': [3, 4], 'ratio': [1, 1]}, 'mask': ImageTensor(mode='L')}
    assert columns(raw) == {
        'image': ImageTensor(),
        'file': ImageTensor(size=(3, 4), ratio=(1, 1)),
        'mask': ImageTensor(mode='L'),
    }


@pytest.mark.parametrize(
    'raw', ['tensor', {'size': [8, 9], 'flip': 0.5}, {'size': 'tensor', 'b': {'size': 3, 'scale': [0.2, 0.5]}}]
)
def test_settings_are_written_as_they_are_read(raw):
    assert Decode.of(raw).plain == raw


def test_a_column_may_have_the_name_of_a_setting():
    assert Decode.of({'size': 'tensor'}) == Decode(None, (('size', ImageTensor()),))
    assert Decode.of({'crop': {'size': 8}}) == Decode(None, (('crop', ImageTensor(size=8)),))


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'layout': 'WHC'}, "`layout` of an ImageTensor must be one of 'CHW', 'HWC', but is 'WHC'"),
        ({'mode': 'RGBA'}, 'mode'),
        ({'mode': None}, 'mode'),
        ({'size': 0}, 'size'),
        ({'size': (8, 0)}, 'size'),
        ({'size': (8, 8, 8)}, 'size'),
        ({'size': 2.5}, 'size'),
        ({'size': True}, 'size'),
        ({'size': 1 << 17}, 'size'),
        ({'crop': 'random'}, '`crop` of an ImageTensor needs `size`'),
        ({'size': 8, 'crop': 'centre'}, "must be one of 'random', 'center'"),
        ({'size': 8, 'crop': ['random']}, 'crop'),
        ({'scale': (0, 1)}, 'scale'),
        ({'scale': (0.5, 0.4)}, 'scale'),
        ({'scale': (0.5, 1.4)}, 'scale'),
        ({'scale': (float('nan'), 1.0)}, 'scale'),
        ({'scale': 0.5}, 'scale'),
        ({'ratio': (2, 1)}, 'ratio'),
        ({'ratio': ('a', 'b')}, 'ratio'),
        ({'center_fraction': 0}, 'center_fraction'),
        ({'flip': 1.5}, 'flip'),
        ({'flip': True}, 'flip'),
        ({'interpolation': 'nearest'}, 'interpolation'),
        ({'scaled': True}, '`scaled` of an ImageTensor needs `size`'),
        ({'scaled': 'yes', 'size': 8}, 'scaled'),
        ({'max_pixels': 0}, 'max_pixels'),
        ({'max_pixels': 1e6}, 'max_pixels'),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(StreamError, match=message):
        ImageTensor(**options)
    with pytest.raises(StreamError, match=r"decode\['image'\]\['(" + '|'.join(options) + r")'\]"):
        Decode.of({'image': options})


@pytest.mark.parametrize(
    ('raw', 'message'),
    [
        ('pil', "`decode` must be 'tensor' or an ImageTensor"),
        (3, "`decode` must be 'tensor'"),
        ({}, 'no column of images|must be'),
        ({'image': 'pil'}, r"`decode\['image'\]` must be 'tensor'"),
        ({'image': {'sise': 3}}, r"`decode\['image'\]\['sise'\]` is no key of ImageTensor.*did you mean size"),
        ({3: 'tensor'}, 'name of a column'),
        ({'imag': 'tensor'}, "names the column 'imag', but stream a has .* Did you mean 'image'"),
        ({'id': 'tensor'}, "column 'id' of stream a is `int`"),
        ({'sise': 3, 'crop': 'center'}, r'sise'),
    ],
)
def test_other_values_are_refused(raw, message):
    with pytest.raises(StreamError, match=message):
        columns(raw)


def test_columns_without_images_are_refused():
    with pytest.raises(StreamError, match='no column of images to read: id: int'):
        columns('tensor', read=['id'])
