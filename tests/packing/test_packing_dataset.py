"""Datasets of packed documents that are refused."""

from __future__ import annotations

import pytest

from headrace import StreamingDataLoader
from headrace.errors import ConfigError, EmptyDatasetError
from tests.support.packings.refused_packings import dataset


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'column': 'text'}, "takes documents from column 'text', but .* has id, tokens. Set `column`"),
        ({'shuffle_algo': 'py1e', 'shuffle': True}, "`shuffle_algo` must be 'native' with packing, but is 'py1e'"),
        (
            {'on_mixture_change': 'continue', 'sequences_per_epoch': 'all'},
            "`on_mixture_change` must be 'refuse' with sequences_per_epoch 'all', but is 'continue'",
        ),
        ({'lanes': 16}, 'there are 16 lanes and 12 samples'),
    ],
)
def test_datasets(document_folder, options, message):
    with pytest.raises(ConfigError, match=message):
        dataset(document_folder, batch_size=2, **options)


def test_documents_without_tokens(document_folder):
    empty = dataset(document_folder, tokenizer=lambda values: [[] for _ in values], column='tokens')
    with pytest.raises(EmptyDatasetError, match="100 in a row of one lane have none. Check column 'tokens'"):
        next(iter(StreamingDataLoader(empty, batch_size=2)))
