"""Streams: their folders, and arguments that are refused."""

from __future__ import annotations

import hashlib
import os
import tempfile

import pytest

from headrace import (
    Stream,
)
from headrace.errors import ConfigError


def test_a_stream_without_local_gets_a_folder_named_after_its_remote():
    stream = Stream(remote='s3://bucket/data', split='train')
    digest = hashlib.blake2s(b's3://bucket/data', digest_size=16).hexdigest()
    assert stream.local == os.path.join(tempfile.gettempdir(), digest, 'train')


def test_another_value_is_refused():
    with pytest.raises(ConfigError, match=r"'refresh' or 'refuse', but is 'ask'"):
        Stream(remote='/none', on_changed_data='ask')
