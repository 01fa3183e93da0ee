"""The options of a stream, and the signature, the attributes and the YAML that are made of them."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from headrace import Stream
from headrace.mixing import SelectionConfig, StreamConfig, TransferConfig
from headrace.options.constraints import all_field_texts
from headrace.options.streams import StreamOptions


def test_the_signature_of_a_stream_is_that_of_its_options() -> None:
    names = [option.name for option in dataclasses.fields(StreamOptions)]
    assert list(inspect.signature(Stream).parameters) == names
    assert list(inspect.signature(Stream.__init__).parameters) == ['self', *names]
    stream = Stream(local='/data')
    assert all(getattr(stream, name) is None for name in names if name != 'local')


def test_the_yaml_has_the_same_keys() -> None:
    assert all_field_texts(StreamConfig).keys() == all_field_texts(StreamOptions).keys()


@pytest.mark.parametrize('cls', [TransferConfig, SelectionConfig, StreamOptions])
def test_each_option_has_a_text(cls: type) -> None:
    texts = all_field_texts(cls)
    assert texts.keys() == {option.name for option in dataclasses.fields(cls)}
    assert all(text.endswith('.') for text in texts.values())
