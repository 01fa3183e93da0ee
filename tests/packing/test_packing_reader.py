"""Workers that tokenise documents, and documents that cannot be read."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

import numpy as np
import pytest

from headrace import BAD_SAMPLE, PADDING, MDSWriter, StreamingDataLoader
from headrace.dataset.prefetch.prefetcher import Prefetcher
from headrace.errors import ChecksumError, ConfigError, DocumentError, FormatError
from headrace.order import Mixture, OrderConfig, StreamSize
from headrace.packing import ChatTokenizer, PackedDataset, Packing
from headrace.packing.document_order import StreamLanes
from headrace.packing.reader import BLOCK, ComingDocuments
from tests.support import panics
from tests.support.packings.packed_orders import METHODS, SIZE, expected, make, sequences, unpadded, world, write


@pytest.mark.parametrize(
    'options',
    [
        {'num_workers': 1},
        {'num_workers': 3},
        {'num_workers': 2, 'persistent_workers': True},
        {'num_workers': 1, 'multiprocessing_context': 'spawn', 'persistent_workers': True},
    ],
    ids=str,
)
def test_workers_change_nothing(many_documents, options):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 96)
    loader = make(folder, sequences_per_epoch=48, **options)
    assert len(loader) == 12
    assert sequences(loader) == whole[:48]
    assert sequences(loader, 5) == whole[48:68]
    state = loader.state_dict()
    assert (state['epoch'], state['sample_in_epoch']) == (1, 20)
    # An abandoned pass continues, and a loaded state goes back; persistent workers serve both.
    loader.load_state_dict(state)
    assert sequences(loader) == whole[68:]


def test_looking_ahead_begins_anew_with_each_pass(many_documents, tmp_path, monkeypatch):
    followed: list[int] = []
    follow = Prefetcher.follow
    monkeypatch.setattr(
        Prefetcher,
        'follow',
        lambda self, upcoming, *, first, **rest: followed.append(first) or follow(self, upcoming, first=first, **rest),
    )
    packing = Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32', sequences_per_epoch=32)
    dataset = PackedDataset(remote=many_documents[0], local=str(tmp_path), shuffle=True, packing=packing)
    loader = StreamingDataLoader(dataset, batch_size=4, fixed_epoch=0)
    for _ in range(2):
        assert len(sequences(loader)) == 32
    assert followed == [0, 0]


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('workers', [0, 2])
def test_a_document_that_cannot_be_read_is_in_no_sequence(damaged_documents, method, workers):
    folder, lengths = damaged_documents
    loader = make(folder, method=method, num_workers=workers, on_bad_sample='skip')
    assert sequences(loader, 40) == expected(folder, lengths, 160, method=method)  # one and a half passes
    assert BAD_SAMPLE not in next(iter(make(folder, on_bad_sample='skip')))
    (count,) = loader.dataset.document_counts.values()
    assert count.tokens == 20 * (count.documents - count.left_out)
    assert loader.stats().bad_samples == count.left_out >= lengths.count(0)
    with pytest.raises(ChecksumError):
        sequences(make(folder, method=method), 40)


@pytest.mark.parametrize('fault', [ZeroDivisionError, MemoryError])
def test_what_a_subclass_raises_for_a_document(many_documents, fault):
    class Refusing(PackedDataset):
        def __getitem__(self, at: Any) -> Any:
            if at % 2:
                raise fault('odd')
            return super().__getitem__(at)

    packing = Packing(sequence_length=SIZE, lanes=4, window=3, token_dtype='int32')
    dataset = Refusing(local=many_documents[0], shuffle=True, shuffle_seed=7, packing=packing, on_bad_sample='skip')
    loader = StreamingDataLoader(dataset, batch_size=4)
    if fault is MemoryError:
        with pytest.raises(MemoryError, match='odd'):
            next(iter(loader))
    else:
        lengths = [0 if number % 2 else length for number, length in enumerate(many_documents[1])]
        assert sequences(loader, 40) == expected(many_documents[0], lengths, 160)


def test_where_no_document_can_be_read_the_error_is_raised(tmp_path):
    folder = write(tmp_path, [20] * 90)
    for shard in tmp_path.glob('*.mds'):
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ChecksumError):
        sequences(make(folder, on_bad_sample='skip'), 1)


def tokenizer_of(library: str) -> Any:
    """A tokenizer with a token for each of a, b and c."""
    if library == 'panics':
        return panics.encode
    if library == 'callable':
        return lambda texts: [[ord(letter) - ord('a') for letter in text] for text in texts]
    if library == 'tiktoken':
        tiktoken = pytest.importorskip('tiktoken')
        ranks = {bytes([(byte + 97) % 256]): byte for byte in range(256)}
        return tiktoken.Encoding('bytes', pat_str='.', mergeable_ranks=ranks, special_tokens={})
    tokenizers = pytest.importorskip('tokenizers')
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({'a': 0, 'b': 1, 'c': 2, '?': 3}, unk_token='?'))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split('', 'isolated')
    if library == 'tokenizers':
        return made
    transformers = pytest.importorskip('transformers')
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token='?')
    if library == 'chat':
        made.chat_template = (
            '{% for m in messages %}'
            "{% if m.role == 'no' %}{{ raise_exception('bad role') }}{% endif %}"
            '{{ m.content }}{% endfor %}'
        )
        return ChatTokenizer(made)
    return made


def chat(content: object, role: str = 'assistant') -> list[dict[str, object]]:
    return [{'role': role, 'content': content}]


BAD_DOCUMENTS = [
    *(
        (library, bad, 'must be text')
        for library in ('tokenizers', 'tiktoken', 'transformers')
        for bad in (None, 5, ['a', 'b'])
    ),
    *(
        (library, 'a\ud800', 'lone surrogate .* at character 1')
        for library in ('tokenizers', 'tiktoken', 'transformers')
    ),
    *(('callable', bad, 'NoneType|int') for bad in (None, 5)),
    *(('none', bad, 'must be an array of integers') for bad in (None, 5, 'text', [0.5], [[1], [2, 3]])),
    *(('chat', bad, 'must be a list of messages') for bad in (None, 5, chat(None), chat(5), chat('a', 5))),
    ('chat', chat('b\ud800'), 'lone surrogate'),
    ('chat', chat('a', 'no'), 'bad role'),
    ('panics', 'a\tb', 'A library panicked: PanicException: called'),
]


@pytest.mark.parametrize(('library', 'bad', 'message'), BAD_DOCUMENTS, ids=str)
def test_a_document_that_is_none(tmp_path, caplog, library, bad, message):
    (tmp_path / 'in').mkdir()
    good = {'none': [[0, 1], [2]], 'chat': [chat('ab'), chat('c')]}.get(library, ['ab', 'c'])
    lines = [json.dumps({'it': value}) + '\n' for value in (good[0], bad, good[1])]
    (tmp_path / 'in' / 'a.jsonl').write_text(''.join(lines))

    def loader(policy: str, **options: Any) -> StreamingDataLoader:
        tokenizer = None if library == 'none' else tokenizer_of(library)
        packing = Packing(sequence_length=3, tokenizer=tokenizer, column='it', method='concatenate')
        options = {'remote': str(tmp_path / 'in'), 'local': str(tmp_path / 'cache'), 'packing': packing, **options}
        # Without `predownload`, it would look hundreds of passes over three documents ahead.
        return StreamingDataLoader(PackedDataset(**options, predownload=2, on_bad_sample=policy), batch_size=1)

    with pytest.raises(Exception, match=message) as raised:
        next(iter(loader('raise')))
    said = '\n'.join([str(raised.value), *getattr(raised.value, '__notes__', [])])
    assert "stream 'stream_0'" in said
    assert 'row 1, sample id 1' in said
    if isinstance(raised.value, DocumentError):
        assert isinstance(raised.value, (ConfigError, FormatError))
        assert "Column 'it'" in said
        assert 'on_bad_sample: skip' in said
        assert (bad is None) == ('where: {it: {not: null}}' in said)
    with caplog.at_level(logging.WARNING, 'headrace'):
        skipping = loader('skip')
        batch = next(iter(skipping))
    assert batch['input_ids'].tolist() == [[0, 1, 2]]
    assert skipping.dataset.document_counts['stream_0'].left_out >= 1
    assert 'Sample 1, row 1 of shard' in caplog.text
    if bad is None and library != 'callable':
        kept = loader('raise', where={'it': {'not': None}}, local=str(tmp_path / 'kept'))
        assert next(iter(kept))['input_ids'].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize('workers', [0, 1])
def test_where_no_document_is_one_the_error_is_raised(tmp_path, workers):
    with MDSWriter(out=str(tmp_path), columns={'text': 'int'}) as writer:
        for number in range(20):
            writer.write({'text': number})
    packing = Packing(sequence_length=3, tokenizer=tokenizer_of('tokenizers'))
    dataset = PackedDataset(local=str(tmp_path), packing=packing, on_bad_sample='skip')
    with pytest.raises(DocumentError, match=r"Column 'text' of .*must be text for its tokenizer, but it is 0\."):
        next(iter(StreamingDataLoader(dataset, batch_size=1, num_workers=workers)))


def test_stored_tokens_of_a_document_cut_short(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'tokens': 'bytes'}) as writer:
        for tokens in ([0, 1], [2]):
            writer.write({'tokens': np.array(tokens, np.int32).tobytes()})
        writer.write({'tokens': b'12345'})
    packing = Packing(sequence_length=3, token_dtype='int32', method='concatenate')
    dataset = PackedDataset(local=str(tmp_path), packing=packing, on_bad_sample='skip')
    assert next(iter(StreamingDataLoader(dataset, batch_size=1)))['input_ids'].tolist() == [[0, 1, 2]]
    dataset = PackedDataset(local=str(tmp_path), packing=packing)
    with pytest.raises(DocumentError, match="Column 'tokens' of .* row 2, .*needs a `token_dtype` that divides them"):
        next(iter(StreamingDataLoader(dataset, batch_size=1)))


def test_rows_that_fill_up_the_last_batch_are_empty(many_documents):
    folder, lengths = many_documents
    whole = expected(folder, lengths, 12, lanes=6)
    _, (state, _) = world(folder, 2, None, 1, exchange=True, lanes=6, sequences_per_epoch=12)
    found: list[list[int]] = []
    for rank in range(3):
        loader = make(folder, lanes=6, sequences_per_epoch=12, rank=rank, ranks=3, batch=6, remainder='exact')
        loader.load_state_dict(state)
        for batch in loader:
            is_padding = batch[PADDING].tolist()
            assert [used == 0 for used in batch['num_tokens'].tolist()] == is_padding
            found += [row for row in unpadded(batch) if row]
    assert sorted(found) == sorted(whole[4:])


def test_streams_have_documents_by_their_shares_and_lengths():
    sizes = {'short': 3.0, 'long': 1.0}
    mixture = Mixture.resolve([StreamSize(name=name, shard_sizes=[999], proportion=p) for name, p in sizes.items()])
    coming = ComingDocuments(StreamLanes(4, mixture, OrderConfig().resolve_defaults(mixture)), 64)
    coming.begin(0)
    coming.count(0, 100, 1000)
    coming.count(4, 10, 2000)
    assert coming.reach(1, 160)
    assert coming.reach(5, 16)
    assert not coming.reach(2, 170)
    documents = [found for _, found in itertools.islice(coming.blocks(), 61)]
    short, long = (sum(len(found[stream]) for found in documents) for stream in (0, 1))
    assert short + long in range(61 * BLOCK - 2, 61 * BLOCK + 1)
    assert round(short / long) == 60  # three times the tokens, in documents of a twentieth of the length
    assert coming.block(0, 160) == 0
    assert coming.block(4, 17) in range(2, 5)
    assert documents[0][0].start == 160
    assert documents[0][1].start == 16
