from __future__ import annotations

import numpy as np
import pytest

from examples.demo.corpora import CORPORA, columns, corpus_ids, corpus_rows, samples
from headrace.errors import ConfigError


@pytest.mark.parametrize('corpus', CORPORA)
def test_a_corpus_has_as_many_rows_as_asked_for_is_text_and_the_same_every_time(corpus: str) -> None:
    rows, again = (corpus_rows(corpus, rows=200, row_bytes=129) for _ in range(2))

    assert rows.shape == (200, 129)
    assert rows.dtype == np.uint8
    printable = np.isin(rows, np.frombuffer(bytes(range(32, 127)) + b'\n\t', np.uint8)).mean()
    assert printable > 0.95
    assert np.array_equal(rows, again)


def test_rows_come_from_all_over_the_text() -> None:
    rows = corpus_rows('code', rows=500, row_bytes=129)

    assert len(np.unique(rows, axis=0)) > 490


def test_no_two_samples_share_an_id() -> None:
    ids = [i for corpus in CORPORA for i in corpus_ids(corpus, 5000)]

    assert len(set(ids)) == len(ids)


def test_samples_have_the_columns_of_the_shards() -> None:
    rows = corpus_rows('code', rows=3, row_bytes=17)

    written = list(samples('code', rows))

    assert [sample['id'] for sample in written] == list(corpus_ids('code', 3))
    assert all(sample.keys() == columns(17).keys() for sample in written)


def test_more_rows_than_there_is_text_are_refused() -> None:
    with pytest.raises(ConfigError, match='needs 100000000 rows of 129 bytes of code'):
        corpus_rows('code', rows=100_000_000, row_bytes=129)
