"""The classes of C4, the Pile and English Wikipedia: tokens of texts, packed or not, and samples for BERT."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace import MDSWriter, StreamingDataLoader
from headrace.errors import ConfigError, FormatError
from headrace.packing import PackedDataset
from headrace.text import StreamingC4, StreamingEnWiki, StreamingPile, StreamingText
from headrace.text.convert.c4 import ORIGINAL as C4
from headrace.text.convert.pile import ORIGINAL as PILE
from tests.support.originals.text_originals import make_c4, make_pile
from tests.support.originals.text_tokenizer import make_tokenizer
from tests.support.sources.sources_to_convert import rows_of


@pytest.fixture(scope='module')
def c4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('c4')
    make_c4(root / 'in', broken=False)
    C4.convert(root / 'in', root / 'out', size_limit=1 << 13, progress_bar=False)
    return root / 'out'


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip('transformers')
    return make_tokenizer(tmp_path_factory.mktemp('tokenizer'))


def test_texts_become_sequences_as_mosaicml_makes_them(c4: Path, tokenizer: str, tmp_path: Path) -> None:
    ours = StreamingC4(
        local=str(c4), split='train', tokenizer_name=tokenizer, max_seq_len=64, group_method='truncate', batch_size=4
    )
    assert isinstance(ours, StreamingText)
    lengths = set()
    for i in range(len(rows_of(c4 / 'train'))):
        found = ours[i]
        assert found['input_ids'].dtype == np.int64
        assert found['input_ids'].shape == found['attention_mask'].shape == (64,)
        lengths.add(int(found['attention_mask'].sum()))
        assert (found['input_ids'][found['attention_mask'] == 0] == 1).all()  # pads with the end of text
    assert max(lengths) == 64 > min(lengths)
    batch = next(iter(StreamingDataLoader(ours, batch_size=4)))
    assert batch['input_ids'].shape == (4, 64)
    text = pytest.importorskip('streaming.text')
    theirs = text.StreamingC4(
        local=str(c4), split='train', tokenizer_name=tokenizer, max_seq_len=64, group_method='truncate', batch_size=4
    )
    for i in (0, 7, 41):
        assert {name: values.tolist() for name, values in ours[i].items()} == dict(theirs[i])


def test_workers_that_are_spawned_read_tokens(c4: Path, tokenizer: str) -> None:
    dataset = pickle.loads(pickle.dumps(StreamingC4(local=str(c4 / 'val'), tokenizer_name=tokenizer, max_seq_len=8)))
    assert dataset[0]['input_ids'].shape == (8,)


@pytest.mark.parametrize('method', ['best_fit', 'concatenate'])
def test_texts_are_packed(c4: Path, tokenizer: str, method: str) -> None:
    dataset: Any = StreamingC4(
        local=str(c4), split='train', tokenizer_name=tokenizer, max_seq_len=128, group_method=method, batch_size=2
    )
    assert isinstance(dataset, PackedDataset)
    loader = iter(StreamingDataLoader(dataset, batch_size=2))
    batches = [next(loader) for _ in range(8)]
    assert {batch['input_ids'].shape for batch in batches} == {(2, 128)}
    assert any((batch['input_ids'] == 1).any() for batch in batches)  # an end of text


def test_the_pile_is_read_by_its_collections(tokenizer: str, tmp_path: Path) -> None:
    made = make_pile(tmp_path / 'in', broken=False)
    PILE.convert(tmp_path / 'in', tmp_path / 'out', splits=['train'], progress_bar=False)
    where = {'pile_set_name': ['ArXiv']}
    dataset = StreamingPile(
        local=str(tmp_path / 'out'), split='train', where=where, tokenizer_name=tokenizer, max_seq_len=16
    )
    assert dataset.size == sum(row['pile_set_name'] == 'ArXiv' for row in made.rows['train'])
    assert 0 < dataset.size < len(made.rows['train'])
    assert dataset[0]['input_ids'].shape == (16,)


def bert(folder: Path, places: list[int]) -> None:
    """Columns as MosaicML's scripts write them, with two used places of four."""
    names = ['input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions', 'masked_lm_ids', 'masked_lm_weights']
    with MDSWriter(out=str(folder), columns=dict.fromkeys([*names, 'next_sentence_labels'], 'bytes')) as writer:
        arrays = [list(range(10, 18)), [1] * 6 + [0] * 2, [0] * 3 + [1] * 5, places, [31, 32, 0, 0]]
        values = [np.array(array, np.int32).tobytes() for array in arrays]
        values += [np.array([1, 1, 0, 0], np.float32).tobytes(), np.array([1], np.int32).tobytes()]
        writer.write(dict(zip([*names, 'next_sentence_labels'], values, strict=True)))


def test_samples_for_bert_are_read_as_mosaicml_reads_them(tmp_path: Path) -> None:
    bert(tmp_path / 'a', [2, 5, 0, 0])
    found = StreamingEnWiki(local=str(tmp_path / 'a'))[0]
    assert found['labels'].tolist() == [-100, -100, 31, -100, -100, 32, -100, -100]
    assert found['token_type_ids'].tolist() == [0] * 3 + [1] * 5
    text = pytest.importorskip('streaming.text')
    theirs = text.StreamingEnWiki(local=str(tmp_path / 'a'), batch_size=1)[0]
    for name in ('input_ids', 'token_type_ids', 'attention_mask'):
        assert np.array_equal(found[name], theirs[name])
        assert found[name].dtype == theirs[name].dtype
    # Its two unused places are 0, so that it gives token 0 a label.
    assert theirs['labels'].tolist() == [0, *found['labels'].tolist()[1:]]
    batch = next(iter(StreamingDataLoader(StreamingEnWiki(local=str(tmp_path / 'a'), batch_size=1))))
    assert batch['labels'].dtype == torch.int64
    bert(tmp_path / 'b', [2, 8, 0, 0])
    with pytest.raises(FormatError, match='places go from 0 to 8'):
        StreamingEnWiki(local=str(tmp_path / 'b'))[0]


def test_articles_are_read_with_a_tokenizer_or_without(tokenizer: str, tmp_path: Path) -> None:
    with MDSWriter(out=str(tmp_path), columns={'id': 'int', 'title': 'str', 'text': 'str'}) as writer:
        writer.write({'id': 7, 'title': 'Rivers', 'text': 'the river runs'})
    assert StreamingEnWiki(local=str(tmp_path))[0] == {'id': 7, 'title': 'Rivers', 'text': 'the river runs'}
    dataset = StreamingEnWiki(local=str(tmp_path), tokenizer_name=tokenizer, max_seq_len=5)
    assert dataset[0]['input_ids'].tolist() == [2, 3, 4, 1, 1]
    packed: Any = StreamingEnWiki(
        local=str(tmp_path), tokenizer_name=tokenizer, max_seq_len=8, group_method='concatenate', batch_size=1
    )
    assert next(iter(StreamingDataLoader(packed, batch_size=1)))['input_ids'].tolist() == [[2, 3, 4, 1, 2, 3, 4, 1]]


def test_wrong_arguments_are_refused(c4: Path, tokenizer: str, tmp_path: Path) -> None:
    local = str(c4 / 'val')
    with pytest.raises(ConfigError, match='`group_method` is one of truncate, best_fit, concatenate'):
        StreamingC4(local=local, tokenizer_name=tokenizer, max_seq_len=8, group_method='truncated')
    with pytest.raises(ConfigError, match='`max_seq_len` is the tokens of a sequence'):
        StreamingC4(local=local, tokenizer_name=tokenizer, max_seq_len=1)
    with pytest.raises(ConfigError, match='no `tokenizer_name`'):
        StreamingEnWiki(local=local, max_seq_len=8, group_method='best_fit')
    with pytest.raises(ConfigError, match='go together'):
        StreamingEnWiki(local=local, max_seq_len=8)
    with pytest.raises(ConfigError, match='cannot be loaded'):
        StreamingC4(local=local, tokenizer_name=str(tmp_path / 'none'), max_seq_len=8)
    bare = make_tokenizer(tmp_path / 'bare', cls_token='<eos>')
    with pytest.raises(ConfigError, match='neither a padding token nor an end of text'):
        StreamingC4(local=local, tokenizer_name=bare, max_seq_len=8)
