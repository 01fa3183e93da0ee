"""Mistakes of a first day: each error says what was meant, and what to write."""

from __future__ import annotations

import decimal
import inspect

import numpy as np
import pytest
import torch

from headrace import CSVWriter, JSONWriter, MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from headrace.errors import ArgumentError, ConfigError, EmptyDatasetError, ObjectNotFoundError
from headrace.packing import PackedDataset, Packing

# -- encodings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('writer', 'encoding', 'message'),
    [
        (
            MDSWriter,
            int,
            "unsupported encoding <class 'int'>. An encoding is a text. Write 'int' or 'int32' or 'int64'",
        ),
        (MDSWriter, float, "Write 'float64' or 'float32'."),
        (MDSWriter, str, "Write 'str'."),
        (MDSWriter, dict, "Write 'json'."),
        (MDSWriter, bool, "Write 'uint8' or 'int'."),
        (MDSWriter, decimal.Decimal, "Write 'str_decimal'."),
        (MDSWriter, np.ndarray, "Write 'ndarray'. .*ndarray:<dtype>:<d0>"),
        (MDSWriter, np.float32, "Write 'float32'."),
        (MDSWriter, np.dtype('int16'), "Write 'int16'."),
        (MDSWriter, torch.float16, "Write 'float16'."),
        (MDSWriter, torch.Tensor, "Write 'ndarray'."),
        (MDSWriter, None, 'encoding None. An encoding is a text. The encodings are bytes, '),
        (MDSWriter, ['int'], r"encoding \['int'\]. An encoding is a text. Write 'int'. The encodings are bytes, "),
        (
            MDSWriter,
            'jpg',
            "unsupported encoding `jpg`. Did you mean 'jpeg'. The encodings are bytes, float16, .*uint8",
        ),
        (MDSWriter, 'string', "Did you mean 'str'"),
        (MDSWriter, 'folat32', "Did you mean 'float32'"),
        (MDSWriter, 'ndarray:flot32', 'but got `flot32`. The dtypes are uint8, int8, .*float64'),
        (MDSWriter, 'int:1', '`int` takes no parameters'),
        (JSONWriter, int, "Write 'int'. The encodings are float, int, str"),
        (
            JSONWriter,
            'jpg',
            'JSONWriter passed column `x` with unsupported encoding `jpg`. The encodings are float, int',
        ),
        (CSVWriter, np.float64, "CSVWriter passed .* Write 'float'."),
    ],
)
def test_an_encoding_that_is_none(tmp_path, writer, encoding, message):
    with pytest.raises(ConfigError, match=message):
        writer(out=str(tmp_path / 'out'), columns={'id': 'int', 'x': encoding})
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('columns', [['x'], 'x', 7, {3: 'int'}])
def test_columns_that_are_none(tmp_path, columns):
    with pytest.raises(ConfigError, match=r'olumns.* of MDSWriter must '):
        MDSWriter(out=str(tmp_path / 'out'), columns=columns)


# -- folders without an index --------------------------------------------------------------------------------------


def folder_of(tmp_path, kind):
    folder = tmp_path / 'data'
    if kind != 'absent':
        folder.mkdir()
    for name in {'images': ['b.jpg', 'a.jpg', 'c.jpg', 'd.png'], 'shards': ['shard.00000.mds']}.get(kind, []):
        (folder / name).touch()
    if kind == 'split':
        for name in ('train', 'val'):
            with MDSWriter(out=str(folder / name), columns={'x': 'int'}) as writer:
                writer.write({'x': 1})
    return folder


IN_ITS_PLACE = {
    'absent': r'There is no folder .*data. Of its path, .* is there',
    'empty': 'The folder is empty',
    'images': r'It holds a.jpg, b.jpg, c.jpg and 1 more, and no shards. A folder of images.* with an `MDSWriter`',
    'shards': 'its writer has not finished. Call `finish`',
    'split': "Its sub-folders train, val have one: set `split='train'`",
}


@pytest.mark.parametrize(('kind', 'message'), IN_ITS_PLACE.items(), ids=IN_ITS_PLACE.keys())
def test_a_folder_without_an_index(tmp_path, kind, message):
    folder = str(folder_of(tmp_path, kind))
    with pytest.raises(EmptyDatasetError, match=f'No `remote` provided, but local file .*{message}'):
        StreamingDataset(local=folder)
    with pytest.raises(ObjectNotFoundError, match=f'No such file or directory: .*{message}'):
        StreamingDataset(remote=folder, local=folder)
    with pytest.raises(ObjectNotFoundError, match=f'No such file or directory: .*{message}'):
        StreamingDataset(remote=folder, local=str(tmp_path / 'cache'))


def test_a_folder_that_is_being_written(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'x': 'int'}) as writer:
        writer.write({'x': 1})
        with pytest.raises(EmptyDatasetError, match='its writer has not finished'):
            StreamingDataset(local=str(tmp_path))
    assert StreamingDataset(local=str(tmp_path)).size == 1


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('cls', [StreamingDataset, Stream])
def test_an_argument_without_a_name(tmp_path, cls):
    for given in (str(tmp_path), tmp_path):
        with pytest.raises(ArgumentError, match=f'{cls.__name__} takes .* by name, but got .*Write `local=` before'):
            cls(given)
    with pytest.raises(TypeError, match='but got 3 by position. Write each argument as `name=value`'):
        cls(3)


@pytest.mark.parametrize('cls', [StreamingDataset, Stream])
def test_an_argument_that_does_not_exist(cls):
    with pytest.raises(ArgumentError, match=f'{cls.__name__} has no argument `remot`. Did you mean `remote`'):
        cls(remot='x')
    with pytest.raises(TypeError, match='has no argument `zzz`. It takes .*local, split'):
        cls(zzz=1)


def test_a_subclass_has_arguments_of_its_own(make_dataset):
    class Own(StreamingDataset):
        def __init__(self, folder, **options):
            super().__init__(local=folder, **options)

    assert Own(str(make_dataset()), batch_size=4).size == 100
    with pytest.raises(ArgumentError, match='Own has no argument `shufle`. Did you mean `shuffle`'):
        Own(str(make_dataset('other')), shufle=True)
    assert 'shuffle' in inspect.signature(StreamingDataset).parameters


# -- copies for workers --------------------------------------------------------------------------------------------


class WithLambda(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.augment = {'flip': lambda sample: sample}

    def get_item(self, sample_id, retry=7):
        return self.augment['flip'](super().get_item(sample_id, retry))


class WithUnusedLambda(StreamingDataset):
    def __init__(self, **options):
        super().__init__(**options)
        self.told = lambda: None


@pytest.mark.parametrize('method', ['spawn', 'forkserver'])
@pytest.mark.parametrize(
    ('dataset', 'loader', 'message'),
    [
        ({}, {'collate_fn': lambda samples: samples}, r'collate_fn \(<function <lambda>'),
        ({}, {'worker_init_fn': lambda worker: None}, r'worker_init_fn \(<function <lambda>'),
        ({'cls': WithLambda}, {}, r"dataset.augment\['flip'\] \(<function WithLambda.*lambda"),
    ],
    ids=['collate_fn', 'worker_init_fn', 'transform'],
)
def test_a_lambda_that_cannot_go_to_workers(make_dataset, method, dataset, loader, message):
    cls = dataset.get('cls', StreamingDataset)
    made = StreamingDataLoader(
        cls(local=str(make_dataset()), batch_size=4), num_workers=1, multiprocessing_context=method, **loader
    )
    with pytest.raises(ConfigError, match=rf"started by '{method}' get copies by pickle, and {message}.*top level"):
        next(iter(made))


def test_a_tokenizer_that_cannot_go_to_workers(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'text': 'str'}) as writer:
        for _ in range(4):
            writer.write({'text': 'x'})
    packing = Packing(sequence_length=4, sequences_per_epoch=4, lanes=4, tokenizer=lambda texts: [[1]] * len(texts))
    dataset = PackedDataset(local=str(tmp_path), batch_size=4, packing=packing)
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context='spawn')
    with pytest.raises(ConfigError, match=r'dataset.packing.tokenizer \(<function'):
        next(iter(loader))


def test_a_dataset_that_changes_no_sample_does_not_go_to_workers(make_dataset):
    dataset = WithUnusedLambda(local=str(make_dataset(samples=8)), batch_size=4)
    loader = StreamingDataLoader(dataset, num_workers=1, multiprocessing_context='spawn')
    assert len(list(loader)) == 2


def test_a_lambda_is_good_for_forked_workers(make_dataset):
    dataset = WithLambda(local=str(make_dataset(samples=8)), batch_size=4)
    loader = StreamingDataLoader(
        dataset, num_workers=1, multiprocessing_context='fork', collate_fn=lambda samples: len(samples)
    )
    assert list(loader) == [4, 4]
