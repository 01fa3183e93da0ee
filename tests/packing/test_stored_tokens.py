"""What packing knows of the tokenizer of stored tokens, and what it says of texts that it tokenises again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from headrace import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, Topology
from headrace.convert import copy_dataset, reshard, tokenize
from headrace.errors import ConfigError
from headrace.packing import PackedDataset, Packing, StreamPacking
from headrace.packing.tokenizers import fingerprint, meaning_of_tokens, origin_of_tokens
from tests.support.sources.tokenized import TEXTS, byte_tokenizer


def text_folder(folder: Path, texts: list[str]) -> str:
    with MDSWriter(out=str(folder), columns={'text': 'str'}, size_limit=2000) as writer:
        for text in texts:
            writer.write({'text': text})
    return str(folder)


@pytest.fixture(scope='module')
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return text_folder(tmp_path_factory.mktemp('texts') / 'web', TEXTS)


@pytest.fixture(scope='module')
def tokens(texts: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp('tokens') / 'web'
    tokenize(texts, out, tokenizer=byte_tokenizer(), progress_bar=False)
    return str(out)


def packed(local: str, **settings: Any) -> PackedDataset:
    return PackedDataset(local=local, packing=Packing(sequence_length=64, **settings))


def test_a_meaning_names_the_tokenizer() -> None:
    made = byte_tokenizer()
    meaning = meaning_of_tokens(made)
    assert origin_of_tokens(meaning) == (made.get_vocab_size(), fingerprint(made))
    assert origin_of_tokens(meaning_of_tokens(text_folder)) == (None, fingerprint(text_folder))
    assert origin_of_tokens('timestamp[us]') is None


def test_copies_know_the_tokenizer(tokens: str, tmp_path: Path) -> None:
    copy_dataset(tokens, str(tmp_path / 'copy'))
    reshard(tokens, tmp_path / 'again', size_limit=1000)
    for folder in (tokens, tmp_path / 'copy', tmp_path / 'again'):
        (schema,) = StreamingDataset(local=str(folder)).pool.streams[0].shards.schemas
        assert schema.meaning_of == {'tokens': meaning_of_tokens(byte_tokenizer())}


def test_refuses_tokens_of_two_tokenizers(texts: str, tokens: str, tmp_path: Path) -> None:
    tokenize(texts, tmp_path / 'other', tokenizer=byte_tokenizer(merges=3), progress_bar=False)
    streams = [Stream(local=tokens), Stream(local=str(tmp_path / 'other'))]
    with pytest.raises(ConfigError, match=r'of one tokenizer, but there are two: tokenizers \w+ of stream .*other'):
        PackedDataset(streams=streams, packing=Packing(sequence_length=64))
    mixed = [Stream(local=texts), Stream(local=tokens, packing=StreamPacking(column='tokens'))]
    with pytest.raises(ConfigError, match=r'the `tokenizer` of `packing`.*headrace tokenize SOURCE OUT'):
        PackedDataset(streams=mixed, packing=Packing(sequence_length=64, tokenizer=byte_tokenizer(merges=3)))


def test_mixes_texts_with_tokens_of_the_same_tokenizer(texts: str, tokens: str) -> None:
    streams = [Stream(local=texts), Stream(local=tokens, packing=StreamPacking(column='tokens'))]
    dataset = PackedDataset(streams=streams, packing=Packing(sequence_length=64, tokenizer=byte_tokenizer()))
    assert len(next(iter(StreamingDataLoader(dataset, batch_size=4)))['input_ids']) == 4


def test_warns_of_special_tokens_beyond_the_tokenizer(tokens: str, caplog: pytest.LogCaptureFixture) -> None:
    size = byte_tokenizer().get_vocab_size()
    packed(tokens, eos_token_id=size - 1)
    assert not caplog.records
    packed(tokens, eos_token_id=size)
    (record,) = caplog.records
    assert f'`eos_token_id` is {size}, but tokens of stream' in record.getMessage()


def test_says_once_that_texts_are_tokenised_again(texts: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger='headrace')
    dataset = packed(texts, tokenizer=byte_tokenizer())
    loader = StreamingDataLoader(dataset, batch_size=4)
    batches = iter(loader)
    while dataset.document_counts[dataset.stream_names[0]].documents <= len(TEXTS):
        assert 'tokenised' not in caplog.text
        next(batches)
    for _ in range(100):
        next(batches)
    said = [record for record in caplog.records if 'tokenised again' in record.getMessage()]
    assert len(said) == 1
    assert f'headrace tokenize {texts} OUT --tokenizer FILE --column text.' in said[0].getMessage()
    assert said[0].levelno == logging.INFO


def test_says_nothing_of_tokens_or_functions_or_other_ranks(
    texts: str, tokens: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger='headrace')
    for dataset in (
        packed(tokens),
        packed(texts, tokenizer=lambda values: [[1, 2, 3]] * len(values)),
        PackedDataset(
            local=texts,
            packing=Packing(sequence_length=64, tokenizer=byte_tokenizer(), lanes=4),
            topology=Topology(rank=1, world_size=2, num_nodes=1),
        ),
    ):
        batches = iter(StreamingDataLoader(dataset, batch_size=2))
        while dataset.document_counts[dataset.stream_names[0]].documents <= 2 * len(TEXTS):
            next(batches)
    assert 'tokenised' not in caplog.text
