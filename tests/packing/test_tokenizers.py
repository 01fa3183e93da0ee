"""Tokens are the library's own, by whichever way they are made; and a run knows the tokenizer that it began with."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError, MissingDependencyError
from headrace.packing import Packing, load_tokenizer
from headrace.packing.tokenizers import encoder_of, fingerprint
from tests.support.trainers.packed_text import make_text, texts


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    pytest.importorskip('tokenizers')
    path = tmp_path_factory.mktemp('text')
    make_text(path)
    return path


@pytest.fixture(scope='module')
def tokenizer(folder):
    return load_tokenizer('tokenizers', str(folder / 'tokenizer.json'))


@pytest.fixture(scope='module')
def tiktoken_encoding(tokenizer):
    tiktoken = pytest.importorskip('tiktoken')
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {text.encode(): 256 + rank for rank, text in enumerate([' t', 'he', ' the', 'in', 'er', ' a'])}
    return tiktoken.Encoding('local', pat_str=r'\s?\S+|\s+', mergeable_ranks=ranks, special_tokens={})


def tokens(tokenizer, values, **options) -> list[list[int]]:
    encode = encoder_of(Packing(sequence_length=8, tokenizer=tokenizer, **options))
    documents = encode(values)
    assert all(document.tokens.dtype == np.int32 for document in documents)
    return [document.tokens.tolist() for document in documents]


def test_a_fast_tokenizer_of_transformers_is_the_one_that_it_wraps(tokenizer):
    transformers = pytest.importorskip('transformers')
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token='<eos>')
    assert tokens(wrapped, texts()) == wrapped(texts(), add_special_tokens=False)['input_ids']
    assert tokens(tokenizer, texts()) == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts()]
    assert fingerprint(wrapped) == fingerprint(wrapped.backend_tokenizer) == fingerprint(tokenizer)


def test_a_slow_tokenizer_of_transformers_makes_the_same(folder):
    transformers = pytest.importorskip('transformers')

    class Bytes(transformers.PreTrainedTokenizer):
        vocab_size = 256

        def get_vocab(self):
            return {str(byte): byte for byte in range(256)}

        def _tokenize(self, text):
            return [str(byte) for byte in text.encode()]

        def _convert_token_to_id(self, token):
            return int(token)

    assert tokens(Bytes(), ['abc', 'é']) == [[97, 98, 99], [195, 169]]
    assert fingerprint(Bytes()).startswith('transformers ')


def test_tiktoken(tiktoken_encoding):
    expected = [tiktoken_encoding.encode_ordinary(text) for text in texts()]
    assert tokens(tiktoken_encoding, texts()) == expected
    assert fingerprint(tiktoken_encoding) == fingerprint(pickle.loads(pickle.dumps(tiktoken_encoding)))


def test_ends_of_documents_are_marked(tokenizer):
    (plain,) = tokens(tokenizer, ['some text'])
    assert tokens(tokenizer, ['some text', ''], bos_token_id=7, eos_token_id=9) == [[7, *plain, 9], [7, 9]]


def test_a_function_may_say_what_to_predict():
    encode = encoder_of(
        Packing(
            sequence_length=8,
            tokenizer=lambda values: [{'input_ids': [1, 2, 3], 'labels': [-100, -100, 3]} for _ in values],
            eos_token_id=5,
        )
    )
    (document,) = encode(['x'])
    assert document.labels is not None
    assert (document.tokens.tolist(), document.labels.tolist()) == ([1, 2, 3, 5], [-100, -100, 3, 5])
    with pytest.raises(ConfigError, match='`labels` of a document must be as many'):
        encoder_of(Packing(sequence_length=8, tokenizer=lambda _: [{'input_ids': [1, 2], 'labels': [1]}]))(['x'])


def test_stored_tokens():
    assert tokens(None, [np.array([1, 2], np.uint16), [3]]) == [[1, 2], [3]]
    assert tokens(None, [np.array([1, 2], np.uint16).tobytes(), b''], token_dtype='uint16') == [[1, 2], []]
    for dtype in ('u1', 'u2', 'u4', 'i8', 'u8'):
        arrays = [np.array(values, dtype) for values in ([1, 2], [], [3])]
        assert tokens(None, arrays) == [[1, 2], [], [3]]
        assert tokens(None, arrays, bos_token_id=2**31 - 1, eos_token_id=0)[0] == [2**31 - 1, 1, 2, 0]
    assert tokens(None, np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ('options', 'values', 'message'),
    [
        ({}, ['a text'], 'must be an array of integers'),
        ({}, [np.array([0.5])], r'it is array\(\[0\.5\]\)'),
        ({}, [b'1234'], 'needs a `token_dtype` that divides them, but 4 bytes have None'),
        ({'token_dtype': 'int32'}, [b'12345'], '5 bytes'),
        ({}, [np.array([1], np.uint32), np.array([2**31], np.uint32)], 'below 2147483648'),
    ],
)
def test_what_is_no_tokens_is_refused(options, values, message):
    with pytest.raises(ConfigError, match=message):
        tokens(None, values, **options)


def test_another_tokenizer_has_another_fingerprint(tokenizer, tiktoken_encoding, folder):
    import tokenizers

    other = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    assert fingerprint(other) == fingerprint(tokenizer)
    other.add_tokens(['another'])
    assert len({fingerprint(found) for found in (tokenizer, other, tiktoken_encoding, None, texts)}) == 5


def test_a_tokenizer_that_cannot_be_loaded(folder, monkeypatch):
    with pytest.raises(ConfigError, match='cannot be loaded'):
        load_tokenizer('tokenizers', str(folder / 'nothing.json'))
    with pytest.raises(ConfigError, match="must be one of .*, but is 'words'"):
        load_tokenizer('words', 'x')
    monkeypatch.setitem(sys.modules, 'tiktoken', None)
    with pytest.raises(MissingDependencyError, match='pip install tiktoken'):
        load_tokenizer('tiktoken', 'cl100k_base')
    with pytest.raises(ConfigError, match='must be one of tokenizers, transformers or tiktoken, or a function'):
        encoder_of(Packing(sequence_length=8, tokenizer='gpt2'))


def test_what_a_tokenizer_was_used_for_before_makes_no_difference(tokenizer, folder):
    transformers = pytest.importorskip('transformers')
    import tokenizers

    used = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token='<eos>', pad_token='<eos>')
    used(texts()[:3], padding=True, truncation=True, max_length=2)
    saved = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
    saved.enable_truncation(3)
    saved.enable_padding(length=9)
    assert tokens(used, texts()[:9]) == tokens(saved, texts()[:9]) == tokens(tokenizer, texts()[:9])
    assert fingerprint(used) == fingerprint(saved) == fingerprint(tokenizer)
    assert saved.truncation is not None  # what it is to others, it stays


def test_special_tokens_in_a_text_are_text(tokenizer):
    (found,) = tokens(tokenizer, ['a <eos> b'])
    assert tokenizer.token_to_id('<eos>') not in found
    assert [tokenizer.id_to_token(token) for token in found][2:7] == [*'<eos>']
