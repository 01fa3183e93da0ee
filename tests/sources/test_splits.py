"""Splits and their parts, by the names of files that people have."""

from __future__ import annotations

import contextlib

import pytest

from headrace.errors import EmptyDatasetError, StreamError
from headrace.sources.splits import check_once, check_parts, check_split, choose_split
from headrace.storage import ObjectInfo


def listing(text: str) -> list[ObjectInfo]:
    return [ObjectInfo(name, 1, '') for name in text.split()]


def parts(split: str, count: int, *numbers: int, end: str = '.parquet') -> str:
    return ' '.join(f'{split}-{number:05}-of-{count:05}{end}' for number in numbers or range(count))


@pytest.mark.parametrize(
    ('names', 'splits'),
    [
        (
            'data/train-00000-of-00001-0a1b2c3d4e5f6789.parquet data/test-00000-of-00001-0123456789abcdef.parquet',
            'test, train',
        ),
        ('train_sft-00000-of-00001.parquet train_gen-00000-of-00001.parquet', 'train_gen, train_sft'),
        ('a/train-00000-of-00001.parquet a/unsupervised-00000-of-00001.parquet', 'train, unsupervised'),
        ('c4-train.00000-of-01024.json.gz c4-validation.00000-of-00008.json.gz', 'train, validation'),
        ('imagenet-train-000000.tar imagenet-val-000000.tar', 'train, val'),
        ('train/00000.tar test/00000.tar', 'test, train'),
        ('en/train/a.jsonl.zst en/dev/a.jsonl.zst', 'dev, train'),
        ('train-clean-100/a.tar train-clean-360/a.tar dev-clean/a.tar', 'dev, train'),
        ('train.csv eval.csv', 'eval, train'),
        ('split=train/a.parquet split=test/a.parquet', 'test, train'),
        ('web(train).csv web(test).csv', 'test, train'),
        ('Train_data.tsv Test_data.tsv', 'Test_data, Train_data'),
        ('train/0.arrow validation/0.arrow test/0.arrow', 'test, train, validation'),
        # These are of one split, or of none.
        ('train-00000-of-00001.parquet', ''),
        ('wiki/train-00000-of-00002.parquet books/train-00000-of-00003.parquet', ''),
        ('en-00000-of-00002.parquet de-00000-of-00002.parquet', ''),
        ('train_a.jsonl train_b.jsonl wiki_train.jsonl', ''),
        ('training/a_test.jsonl training/b.jsonl', ''),
        ('pytest-0.tar trainer-0.tar latest.tar contest.tar valid.tar', ''),
        ('shard-000000.tar shard-000001.tar', ''),
    ],
)
def test_several_splits_are_refused_and_nothing_else(names: str, splits: str) -> None:
    says = rf'has several: {splits}\. Choose one, such as `split='
    with pytest.raises(StreamError, match=says) if splits else contextlib.nullcontext():
        check_split(listing(names), None, 'x')
    for split in filter(None, splits.split(', ')):
        assert 0 < len(choose_split(listing(names), split, 'x')) < len(names.split())


@pytest.mark.parametrize(
    ('names', 'split', 'chosen'),
    [
        ('train/0.parquet test/0.parquet', 'train', [0]),
        ('data/train-00000-of-00001.parquet data/train_sft-00000-of-00001.parquet', 'train', [0]),
        ('data/train-00000-of-00001.parquet data/train_sft-00000-of-00001.parquet', 'train_sft', [1]),
        ('train.parquet test.parquet', 'test', [1]),
        ('plain_text/train/0.parquet plain_text/test/0.parquet', 'train', [0]),
        ('imagenet-train-000000.tar imagenet-val-000000.tar', 'train', [0]),
        ('wiki_train_00.csv wiki_train.csv wiki_train_sft.csv', 'train', [0, 1]),
        ('c4-train.00000-of-01024.json.gz c4-validation.00000-of-00008.json.gz', 'train', [0]),
        ('train_sft.jsonl train_gen.jsonl test_sft.jsonl', 'train', 'the splits test_sft, train_gen, train_sft'),
        ('train_sft/0.tar test_sft/0.tar', 'train', 'the splits test_sft, train_sft'),
        ('train_data.csv test_data.csv', 'train', [0]),
        ('train_shard_0.jsonl train_shard_1.jsonl val_shard_0.jsonl', 'train', [0, 1]),
        ('train_part0.tar train_v2.tar train_sft.tar', 'train', [0, 1]),
        ('train_datasets_gen.csv test.csv', 'train', 'the splits test, train_datasets_gen'),
        ('constraint.parquet', 'train', 'the files constraint.parquet'),
    ],
)
def test_a_split_is_found_by_names(names: str, split: str, chosen: list[int] | str) -> None:
    objects = listing(names)
    if isinstance(chosen, list):
        assert choose_split(objects, split, 'x') == [objects[number] for number in chosen]
        return
    with pytest.raises(EmptyDatasetError, match=f'x has {chosen}'):
        choose_split(objects, split, 'x')


@pytest.mark.parametrize(
    ('names', 'error'),
    [
        (parts('data/train', 3, 0, 2), r'2 of them. Missing are data/train-00001-of-00003\.parquet\. Fetch'),
        (parts('train', 2, 1, end='-0a1b2c3d4e5f6789.parquet'), r'train-00000-of-00002\.parquet'),
        (parts('train', 9, 0, end='.jsonl.zst'), r'train-00005-of-00009\.jsonl\.zst and more'),
        ('c4-train.00001-of-00002.json.gz', r'c4-train\.00000-of-00002\.json\.gz'),
        ('part-1-of-99999999999.tar', 'part-2-of-99999999999.tar'),
        (f'{parts("train", 2, 0)} {parts("train", 3, 1, 2)}', 'train-00000-of-00002.parquet and train-00001-of-00003'),
        (f'{parts("train", 1)} {parts("train", 1, end="-0a1b2c3d4e5f6789.parquet")}', 'each is there once'),
        (parts('train', 3), ''),
        (parts('train', 3, 1, 2, 3), ''),
        (f'{parts("a/train", 2)} {parts("b/train", 3)} {parts("a/test", 1)}', ''),
        (f'{parts("x", 2, end=".en.jsonl")} {parts("x", 2, end=".de.jsonl")}', ''),
        (f'state.json {parts("data", 2, 0, end=".arrow")} {parts("data", 1, end=".arrow")}', ''),
        ('0-of-a.tar train-5.tar', ''),
    ],
)
def test_missing_parts_are_named(names: str, error: str) -> None:
    with pytest.raises(StreamError, match=error) if error else contextlib.nullcontext():
        check_parts(listing(names), 'x', str)


@pytest.mark.parametrize(
    ('names', 'twice'),
    [
        ('a.jsonl a.jsonl.gz', 'a.jsonl and a.jsonl.gz.* such as \\*.jsonl'),
        ('x/a.csv.bz2 x/a.csv.zst', 'x/a.csv.bz2 and x/a.csv.zst.* such as \\*.bz2'),
        ('a.tar a.tgz', 'a.tar and a.tgz'),
        ('a.tar.gz a.tgz', 'a.tar.gz and a.tgz'),
        ('a.jsonl b.jsonl.gz x/a.jsonl a.csv', ''),
    ],
)
def test_a_file_in_two_compressions_is_refused(names: str, twice: str) -> None:
    with pytest.raises(StreamError, match=f'x has {twice}') if twice else contextlib.nullcontext():
        check_once(listing(names), 'x')
