"""Columns of arrays of different lengths as padded tensors, compared with a slow way to fill them up."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BAD_SAMPLE,
    PADDING,
    STREAM,
    AudioTensor,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
    without_padding,
)
from headrace.config.schema import to_mapping
from headrace.dataset.reading.padded import padded
from headrace.errors import CollateError, ConfigError
from headrace.metrics.tokens import count_tokens
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from headrace.tensors.padding import Pad

SAMPLES = 50
COLUMNS = {'id': 'int', 'tokens': 'ndarray:uint16', 'frames': 'ndarray:float32', 'text': 'str'}


def length_of(number: int) -> int:
    return 1 + number * 7 % 23


def row_of(number: int) -> dict[str, Any]:
    length = length_of(number)
    tokens = np.arange(number, number + length, dtype=np.uint16)
    frames = np.full((3, 1 + length // 2), number, np.float32)
    return {'id': number, 'tokens': tokens, 'frames': frames, 'text': str(number)}


def write(folder: Path, numbers: range, columns: dict[str, str] = COLUMNS) -> Path:
    with MDSWriter(out=str(folder), columns=columns, size_limit=2000) as writer:
        for number in numbers:
            writer.write({name: row_of(number)[name] for name in columns})
    return folder


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp('pad') / 'data', range(SAMPLES))


def dataset_of(folder: Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(local=str(folder), shuffle=True, **{'batch_size': 8, **options})


def check_tokens(batch: dict[str, Any], value: int, length: int | None = None) -> None:
    ids = batch['id'].tolist()
    lengths = [length_of(number) for number in ids]
    longest = max(lengths) if length is None else length
    assert batch['tokens_length'].dtype == torch.int64
    assert batch['tokens_length'].tolist() == lengths
    assert batch['tokens'].dtype == torch.uint16
    expected = [
        [number + place if place < own else value for place in range(longest)]
        for number, own in zip(ids, lengths, strict=True)
    ]
    assert batch['tokens'].tolist() == expected


# -- one column -------------------------------------------------------------------------------------------------------


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
    rank = draw(st.integers(1, 3))
    axis = draw(st.integers(0, rank - 1))
    shape = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    dtype = draw(st.sampled_from(['uint8', 'int64', 'float32', 'float16', 'bool']))
    rows = []
    for length in draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)):
        shape[axis] = length
        rows.append(np.random.default_rng(len(rows)).integers(0, 2, shape).astype(dtype))
    settings: dict[str, Any] = {'value': draw(st.integers(0, 1)), 'mask': draw(st.booleans())}
    if draw(st.booleans()):
        settings['to'] = draw(st.integers(10, 12))
    else:
        settings['multiple_of'] = draw(st.integers(1, 5))
    return rows, {**settings, 'axis': axis - draw(st.sampled_from([0, rank]))}


@given(columns())
def test_rows_are_filled_up_at_the_end_of_one_axis(column):
    rows, settings = column
    (asked,) = Pad.of({'x': settings}).columns
    made = padded(asked, rows, range(len(rows)), str)
    axis = settings['axis'] % rows[0].ndim
    lengths = [row.shape[axis] for row in rows]
    longest = settings.get('to')
    if longest is None:
        longest = next(n for n in range(max(lengths), 99) if n % settings['multiple_of'] == 0)
    expected = []
    for row in rows:
        widths = [(0, longest - row.shape[axis] if place == axis else 0) for place in range(row.ndim)]
        expected.append(np.pad(row, widths, constant_values=settings['value']))
    assert made['x'].dtype == torch.from_numpy(rows[0]).dtype
    assert np.array_equal(made['x'].numpy(), np.stack(expected))
    assert made['x_length'].tolist() == lengths
    assert ('x_mask' in made) == settings['mask']
    if settings['mask']:
        assert made['x_mask'].tolist() == [[place < length for place in range(longest)] for length in lengths]


@pytest.mark.parametrize('batch_size', [1, 2])
def test_the_samples_of_sound_are_its_last_axis(tmp_path, batch_size):
    # Streams that store a column in different ways are read sample by sample.
    streams = [write_sound(tmp_path / 'a', 'ndarray:int32:2'), write_sound(tmp_path / 'b', 'ndarray:int32')]
    for chosen in (streams, streams[:1]):
        dataset = StreamingDataset(
            streams=[Stream(local=str(folder)) for folder in chosen],
            decode={'sound': AudioTensor(sample_rate=16_000)},
            batch_size=batch_size,
        )
        batches = list(StreamingDataLoader(dataset, pad={'sound': 0.0}))
        assert sorted(length for batch in batches for length in batch['sound_length'].tolist()) == sorted(
            [100, 200, 200, 300] * len(chosen)
        )
        assert all(batch['sound'].shape[1] == 1 for batch in batches)


def write_sound(folder, encoding):
    soundfile = pytest.importorskip('soundfile')
    with MDSWriter(out=str(folder), columns={'sound': 'bytes', 'x': encoding}) as out:
        for length in (100, 200, 200, 300):
            file = io.BytesIO()
            soundfile.write(file, np.zeros(length, np.float32), 16_000, format='WAV')
            out.write({'sound': file.getvalue(), 'x': np.ones(2, np.int32)})
    return folder


@pytest.mark.parametrize(
    ('rows', 'settings', 'message'),
    [
        ([np.zeros(2), np.zeros(2, np.int8)], 0, r'float64 of shape \(2,\), and another int8.*of sample 1'),
        ([np.zeros((2, 3)), np.zeros((1, 4))], 0, r'differ in the length of axis 0 alone.*of sample 1'),
        ([np.zeros(2), np.zeros((2, 2))], 0, 'axis 0 alone.*of sample 1'),
        ([np.zeros(2), np.zeros(5)], {'value': 0, 'to': 4}, '`to` is 4, and a row has the length 5.*of sample 1'),
        ([np.zeros(2)], {'value': 0, 'axis': 1}, r'has an axis 1 .*shape is \(2,\)'),
        ([np.float32(2)], 0, r'has an axis 0 .*shape is \(\)'),
        ([np.zeros(2, np.int32), np.zeros(1, np.int32)], 10**20, 'does not fit the dtype int32'),
        ([np.zeros(2), [[1], [1, 2]]], 0, 'a row is no array of numbers.*of sample 1'),
        ([['a'], ['b']], 0, 'arrays of numbers, but one is of dtype <U1'),
        ([np.zeros(2, np.uint8)], -1, 'the value -1 does not fit the dtype uint8'),
    ],
)
def test_rows_that_cannot_be_padded_are_refused_by_the_sample(rows, settings, message):
    (asked,) = Pad.of({'x': settings}).columns
    with pytest.raises(CollateError, match=rf"(?s)Column 'x' cannot be padded: .*{message}"):
        padded(asked, rows, range(len(rows)), lambda number: f'sample {number}')


# -- settings and columns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('pad', 'message'),
    [
        ({'token': 0}, "`pad` names 'token', but stream .* frames, id, text, tokens. Did you mean 'tokens'"),
        ({'text': 0}, "arrays, and of sound without `seconds`, but 'text' is str"),
        ({'id': 0}, "but 'id' is int64"),
        ({'tokens': -100}, "fills 'tokens' with -100, but its arrays are of uint16"),
        ({'tokens': {'value': 0, 'mask': 'text'}}, "adds 'text' to the batch, but .* has a column of that name"),
    ],
)
def test_columns_that_cannot_be_padded_are_refused_before_a_batch_is_read(folder, pad, message):
    with pytest.raises(ConfigError, match=message):
        StreamingDataLoader(dataset_of(folder), pad=pad)


def test_what_makes_batches_itself_goes_without_pad(folder):
    with pytest.raises(ConfigError, match='`pad` fills up the rows .* but `collate_fn`'):
        StreamingDataLoader(dataset_of(folder), pad={'tokens': 0}, collate_fn=list)
    packed = PackedDataset(
        local=str(folder), batch_size=8, packing=Packing(sequence_length=16, tokenizer='stored', column='tokens')
    )
    with pytest.raises(
        ConfigError, match='`packing` makes sequences of one length, so that there is nothing to `pad`. Remove one'
    ):
        StreamingDataLoader(packed, pad={'tokens': 0})


def test_yaml_pads_and_reads_back(folder):
    content = {
        'train': {
            'local': str(folder),
            'device_batch_size': 8,
            'loader': {
                'pad': {
                    'tokens': {'value': 7, 'mask': 'attention_mask', 'to': 32},
                    'frames': {'value': 0.0, 'length': False, 'axis': 1},
                }
            },
        }
    }
    config = load_config(content)
    assert load_config(to_mapping(config)) == config
    batch = next(iter(build_loader(config.train)))
    check_tokens(batch, 7, 32)
    assert batch['attention_mask'].sum(dim=1).tolist() == batch['tokens_length'].tolist()
    assert batch['frames'].shape[:2] == (8, 3)
    assert 'frames_length' not in batch
    with pytest.raises(ConfigError, match=r'(?s)train.loader.pad.tokens.multiple.*did you mean multiple_of'):
        load_config(content, overrides=['train.loader.pad.tokens.multiple=8'])
    with pytest.raises(ConfigError, match='nothing to `pad`'):
        load_config(content, overrides=['train.packing.sequence_length=16', 'train.packing.column=text'])


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('workers', 'context'), [(0, None), (2, 'fork')])
def test_batches_of_a_pass_have_each_sample_padded(folder, workers, context):
    pad = {'tokens': {'value': 9, 'multiple_of': 8, 'mask': True}, 'frames': {'value': -1, 'axis': -1}}
    loader = StreamingDataLoader(
        dataset_of(folder), num_workers=workers, multiprocessing_context=context, pad=pad, remainder='drop'
    )
    batches = list(loader)
    assert len(batches) == SAMPLES // 8
    for batch in batches:
        longest = int(batch['tokens_length'].max())
        check_tokens(batch, 9, -(-longest // 8) * 8)
        assert batch['tokens_mask'].sum(dim=1).tolist() == batch['tokens_length'].tolist()
        own = torch.arange(batch['frames'].shape[2]) < batch['frames_length'][:, None]
        expected = torch.where(own, batch['id'][:, None], -1).to(torch.float32)
        assert torch.equal(batch['frames'], expected[:, None].expand(-1, 3, -1))
        assert batch['text'] == [str(number) for number in batch['id'].tolist()]


def test_large_columns_are_made_in_the_memory_of_their_slot(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'id': 'int', 'x': 'ndarray:int32'}) as writer:
        for number in range(32):
            writer.write({'id': number, 'x': np.full(4000 + 100 * (number % 7), number, np.int32)})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=8, shuffle=True)
    held = list(StreamingDataLoader(dataset, num_workers=1, pad={'x': -1}))
    for batch in held:
        own = torch.arange(batch['x'].shape[1]) < batch['x_length'][:, None]
        assert torch.equal(batch['x'], torch.where(own, batch['id'][:, None], -1).to(torch.int32))
    assert sum(len(batch['id']) for batch in held) == 32


def test_streams_that_store_a_column_in_other_ways_share_batches(tmp_path):
    write(tmp_path / 'a', range(20), {'id': 'int', 'tokens': 'ndarray:uint16'})
    write(tmp_path / 'b', range(20, 40), {'id': 'int', 'tokens': 'ndarray'})
    streams = [Stream(local=str(tmp_path / name)) for name in 'ab']
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=8)
    seen = []
    for batch in StreamingDataLoader(dataset, pad={'tokens': 0}, mark_streams=True):
        check_tokens(batch, 0)
        seen += batch['id'].tolist()
        assert batch[STREAM].tolist() == [number // 20 for number in batch['id'].tolist()]
    assert sorted(seen) == list(range(40))


class Own(StreamingDataset):
    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        sample = super().get_item(sample_id)
        return {'id': sample['id'], 'tokens': sample['tokens'], 'list': [1] * length_of(sample['id'])}


class Pairs(StreamingDataset):
    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return super().get_item(sample_id)['tokens'], 1


def test_samples_of_get_item_are_padded(folder):
    for batch in StreamingDataLoader(
        Own(local=str(folder), batch_size=8), pad={'tokens': 0, 'list': {'value': 0, 'mask': True}}
    ):
        check_tokens(batch, 0)
        assert batch['list'].dtype == torch.int64
        assert torch.equal(batch['list'].bool(), batch['list_mask'])
        assert torch.equal(batch['list_length'], batch['tokens_length'])


@pytest.mark.parametrize(
    ('cls', 'pad', 'message'),
    [
        (
            Own,
            {'frames': 0, 'list': 0},
            'dicts with the columns frames, list, but stream .*, is the keys id, tokens, list',
        ),
        (Pairs, {'tokens': 0}, 'dicts with the columns tokens, but stream .*, is tuple'),
        (Own, {'tokens': 0, 'list': {'value': 0, 'mask': 'id'}}, "adds 'id' to the batch, but samples have that key"),
    ],
)
def test_samples_of_get_item_without_the_column_are_refused(folder, cls, pad, message):
    with pytest.raises(CollateError, match=message):
        next(iter(StreamingDataLoader(cls(local=str(folder), batch_size=8), pad=pad)))


def test_rows_of_one_shape_are_padded_too(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'x': 'ndarray:int32:3'}) as writer:
        for number in range(8):
            writer.write({'x': np.full(3, number, np.int32)})
    batch = next(
        iter(StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=8), pad={'x': {'value': 0, 'to': 4}}))
    )
    assert batch['x'].tolist() == [[number] * 3 + [0] for number in range(8)]
    assert batch['x_length'].tolist() == [3] * 8


def test_padded_rows_go_with_marks_of_padding_and_bad_samples(folder, tmp_path):
    last = None
    dataset = dataset_of(folder, on_bad_sample='skip', columns=['id', 'tokens'])
    for last in StreamingDataLoader(
        dataset, pad={'tokens': 0}, remainder='exact', topology=Topology(rank=1, world_size=4)
    ):
        check_tokens(last, 0)
        assert not last[BAD_SAMPLE].any()
    assert last is not None
    own = without_padding(last)
    assert PADDING not in own
    assert len(own['tokens']) == len(own['tokens_length']) == int((~last[PADDING]).sum())


def test_a_row_of_a_bad_sample_has_the_length_of_the_row_that_replaces_it(tmp_path):
    with MDSWriter(out=str(tmp_path), columns={'id': 'int', 'tokens': 'ndarray:uint16'}) as writer:
        for number in range(16):
            writer.write({name: row_of(number)[name] for name in ('id', 'tokens')})
    file = tmp_path / 'shard.00000.mds'
    data = bytearray(file.read_bytes())
    at = data.rindex(row_of(5)['tokens'].tobytes())
    data[at - 2] = 0xFF  # the number of its axes
    file.write_bytes(data)
    dataset = StreamingDataset(local=str(tmp_path), batch_size=16, on_bad_sample='skip')
    batch = next(iter(StreamingDataLoader(dataset, pad={'tokens': 0})))
    assert batch[BAD_SAMPLE].nonzero().flatten().tolist() == [5]
    assert batch['tokens_length'][5] in (batch['tokens_length'][4], batch['tokens_length'][6])
    check_tokens(batch, 0)


def test_without_pad_the_error_names_it(folder):
    with pytest.raises(CollateError, match=r"Pass `pad=\{'frames': 0\}` to fill rows up, or `collate_fn`"):
        next(iter(StreamingDataLoader(dataset_of(folder))))


def test_a_state_continues_padded_batches(folder):
    loader = StreamingDataLoader(dataset_of(folder, columns=['id', 'tokens']), pad={'tokens': 0}, remainder='drop')
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), [batch['tokens'].tolist() for batch in batches]
    resumed = StreamingDataLoader(
        dataset_of(folder, columns=['id', 'tokens']), pad={'tokens': 0}, remainder='drop', num_workers=1
    )
    resumed.load_state_dict(state)
    assert [batch['tokens'].tolist() for batch in resumed] == rest


def test_tokens_are_counted_by_their_lengths(folder):
    batch = next(iter(StreamingDataLoader(dataset_of(folder, columns=['id', 'tokens']), pad={'tokens': 0})))
    assert count_tokens(batch) == int(batch['tokens_length'].sum())
    assert count_tokens(batch, 3) == int(batch['tokens_length'][:3].sum())
    batch[BAD_SAMPLE] = torch.arange(8) == 0
    assert count_tokens(batch) == int(batch['tokens_length'][1:].sum())
