"""Columns that are read as tensors, as Python and YAML name them."""

from __future__ import annotations

import pytest

from headrace import AudioTensor, ImageTensor
from headrace.errors import StreamError
from headrace.tensors.decoding import Decode

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


@pytest.mark.parametrize(
    ('raw', 'message'),
    [
        ({'sample_rate': 16_000}, "`decode` needs the name of its column, such as {'audio'"),
        (AudioTensor(sample_rate=16_000), 'needs the name of its column'),
        ({'audio': {'seconds': 10}}, r"\['sample_rate'\]` must be a whole number of hertz.* but is None"),
        ({'audio': {'samplerate': 16_000}}, 'no key of AudioTensor, which has .* did you mean sample_rate'),
        ({'audio': {'sample_rate': 16_000, 'size': 3}}, 'no key of AudioTensor'),
        ({'image': {'sample_rate': 16_000}}, "AudioTensor of the encoding bytes, but column 'image' of a is `jpeg`"),
    ],
)
def test_other_values_for_sound_are_refused(raw, message):
    with pytest.raises(StreamError, match=message):
        Decode.of(raw).columns({'audio': 'bytes', 'image': 'jpeg'}, None, 'a')
