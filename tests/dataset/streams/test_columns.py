"""Which columns are read, and streams whose columns do not make one batch."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace import (
    BAD_SAMPLE,
    CSVWriter,
    ImageTensor,
    JSONWriter,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
)
from headrace.convert import convert, merge_index, reshard
from headrace.errors import ConfigError, HeadraceError, StreamError
from headrace.format import dump_index, parse_index
from headrace.mixing import build_loader, load_config
from headrace.packing import PackedDataset, Packing
from tests.support.formats.image_folders import RANDOM, read_images, write_images
from tests.support.formats.pictures import picture, stored

VALUES = {
    'int': 1,
    'str_decimal': Decimal(1),
    'str': 'x',
    'bytes': b'x',
    'json': [1],
    'str_int': 1,
    'str_float': 1.0,
    'float': 1.5,
}


def value_of(encoding):
    if encoding.startswith('ndarray'):
        dtype, _, shape = encoding.removeprefix('ndarray').lstrip(':').partition(':')
        return np.ones([int(n) for n in shape.split(',')] if shape else [3], dtype or 'float32')
    return VALUES.get(encoding, 1)


def write(folder, samples=8, writer=MDSWriter, **columns):
    with writer(out=str(folder), columns=columns) as out:
        for number in range(samples):
            out.write({**{name: value_of(columns[name]) for name in columns}, 'id': number})
    return str(folder)


def mix(*folders, cls=StreamingDataset, **options):
    streams = [Stream(local=folder, name=name) for folder, name in zip(folders, 'abc', strict=False)]
    return cls(streams=streams, batch_size=4, **options)


# -- which are read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('writer', [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize('workers', [0, 1])
def test_only_those_that_are_asked_for_are_in_samples_and_batches(tmp_path, writer, workers):
    folder = write(tmp_path, writer=writer, id='int', text='str', more='str')
    dataset = StreamingDataset(local=folder, batch_size=4, columns=['text', 'id'])
    assert dataset[3] == {'id': 3, 'text': 'x'}
    assert [sample['id'] for sample in dataset] == list(range(8))
    for batch in StreamingDataLoader(dataset, num_workers=workers):
        assert list(batch) == ['id', 'text']
        assert (batch['id'].dtype, batch['text']) == (torch.int64, ['x'] * 4)


def test_of_fixed_sizes(tmp_path):
    folder = write(tmp_path, id='int', row='ndarray:float32:4', x='float64')
    dataset = StreamingDataset(local=folder, batch_size=8, columns=['x', 'id'])
    assert dataset[2] == {'id': 2, 'x': 1.0}
    (batch,) = StreamingDataLoader(dataset)
    assert {name: column.dtype for name, column in batch.items()} == {'id': torch.int64, 'x': torch.float64}


@pytest.mark.parametrize('writer', [MDSWriter, CSVWriter])
def test_others_are_not_decoded(tmp_path, writer):
    encoding = 'json' if writer is MDSWriter else 'float'
    folder = write(tmp_path, writer=writer, id='int', bad=encoding)
    (shard,) = (path for path in tmp_path.iterdir() if path.suffix in {'.mds', '.csv'})
    good = b'[1]' if writer is MDSWriter else b'1.5'
    assert shard.read_bytes().count(good) == 8
    shard.write_bytes(shard.read_bytes().replace(good, b'?!?'))
    dataset = StreamingDataset(local=folder, batch_size=4, columns=['id'], on_bad_sample='skip')
    assert dataset[5] == {'id': 5}
    assert not any(batch[BAD_SAMPLE].any() for batch in StreamingDataLoader(dataset))
    with pytest.raises(HeadraceError, match="column 'bad'|'\\?!\\?'"):
        list(StreamingDataLoader(StreamingDataset(local=folder, batch_size=4)))


def test_a_subclass_gets_them(tmp_path):
    class Keys(StreamingDataset):
        def get_item(self, idx):
            return {'keys': ' '.join(super().get_item(idx))}

    dataset = Keys(local=write(tmp_path, id='int', a='str', b='str'), batch_size=8, columns=['b', 'a'])
    (batch,) = StreamingDataLoader(dataset)
    assert batch == {'keys': ['a b'] * 8}


def test_a_filter_may_ask_for_others(tmp_path):
    folder = write(tmp_path, id='int', text='str')
    dataset = StreamingDataset(local=folder, batch_size=4, columns=['text'], where={'id': {'at_least': 4}})
    assert list(StreamingDataLoader(dataset)) == [{'text': ['x'] * 4}]


def test_a_mark_needs_no_room_beside_a_column_that_is_not_read(tmp_path):
    folder = write(tmp_path, **{'id': 'int', BAD_SAMPLE: 'int'})
    (batch,) = StreamingDataLoader(StreamingDataset(local=folder, batch_size=8, columns=['id'], on_bad_sample='skip'))
    assert (list(batch), batch[BAD_SAMPLE].dtype) == (['id', BAD_SAMPLE], torch.bool)


@pytest.mark.parametrize(
    ('columns', 'message'),
    [
        (
            ['id', 'txt'],
            "stream stream_0 .* asks for 'txt', but shard.00000.mds has the columns id, text.* mean 'text'",
        ),
        ('text', r"must be a list of column names, such as \['text'\], but is 'text'. Write \['text'\]"),
        ([], r'must be a list of column names.* but is \[\]'),
        ([3], r'but is \[3\]'),
        (7, 'but is 7'),
    ],
)
def test_what_is_no_column_is_refused(tmp_path, columns, message):
    with pytest.raises(StreamError, match=message):
        StreamingDataset(local=write(tmp_path, id='int', text='str'), columns=columns)


def test_a_file_names_them(tmp_path):
    folders = {name: write(tmp_path / name, id='int', text='str', **{name: 'str'}) for name in 'ab'}
    streams = {name: {'local': folder} for name, folder in folders.items()}
    train = {'device_batch_size': 4, 'columns': ['id'], 'streams': streams}
    batches = list(build_loader(load_config({'train': train}).train))
    assert [list(batch) for batch in batches] == [['id']] * 4
    train['streams']['b']['columns'] = ['id', 'text']
    with pytest.raises(StreamError, match="'text' is in stream b .* and not in stream a"):
        build_loader(load_config({'train': train}).train)
    with pytest.raises(ConfigError, match=r'train.colums: got .*; unknown key; did you mean \"columns\"'):
        load_config({'train': {**train, 'colums': ['id']}})
    with pytest.raises(ConfigError, match="train.columns: got 'id'; must be a list"):
        load_config({'train': {**train, 'columns': 'id'}})


# -- streams of different columns ----------------------------------------------------------------------------------


def test_a_column_that_a_stream_lacks_is_refused(tmp_path):
    a, b = write(tmp_path / 'a', id='int', text='str'), write(tmp_path / 'b', id='int', txt='str')
    with pytest.raises(StreamError) as raised:
        StreamingDataLoader(mix(a, b))
    message = str(raised.value)
    assert f"'text' is in stream a ({a}), and not in stream b ({b})" in message
    assert f"'txt' is in stream b ({b}), and not in stream a ({a})" in message
    assert "`columns=['id']`" in message
    loader = StreamingDataLoader(mix(a, b, columns=['id']))
    assert [batch['id'].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


DIFFERENT = {
    'int32 and int64': ('int32', 'int64'),
    'int32 and Python ints': ('int32', 'int'),
    'float dtypes': ('float32', 'str_float'),
    'dtypes of arrays': ('ndarray:float32:3', 'ndarray:float64:3'),
    'shapes': ('ndarray:float32:3', 'ndarray:float32:4'),
    'dtypes of arrays of any shape': ('ndarray:float32', 'ndarray:float64:3'),
    'text and bytes': ('str', 'bytes'),
    'a number and an array': ('float32', 'ndarray:float32:1'),
}


@pytest.mark.parametrize(('one', 'other'), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_column_of_different_types_is_refused(tmp_path, one, other):
    a, b = write(tmp_path / 'a', id='int', x=one), write(tmp_path / 'b', id='int', x=other)
    with pytest.raises(StreamError, match=r"'x' is .* in stream a .*, and .* in stream b .*columns=\['id'\]"):
        StreamingDataLoader(mix(a, b))


def of_arrow_type(folder: Path, kind: str) -> Stream:
    """A stream of Parquet whose column x has this type, an expression of pyarrow; or of MDS with this encoding."""
    folder.mkdir()
    pa, pq = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
    if not kind.startswith('pa.'):
        return Stream(local=write(folder / 'mds', id='int', x=kind), name=folder.name)
    kind = eval(kind, {'pa': pa})
    if pa.types.is_list(kind):
        x = pa.array([[1]], pa.list_(pa.int64())).cast(kind)
    else:
        x = pa.array([1], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    pq.write_table(pa.table({'id': [0], 'x': x}), folder / 'a.parquet')
    return Stream(remote=str(folder), local=str(folder.parent / f'cache {folder.name}'), name=folder.name)


US = "pa.timestamp('us')"


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        (US, "pa.timestamp('ns')"),
        (US, "pa.timestamp('us', 'UTC')"),
        (US, "pa.duration('us')"),
        (US, "pa.time64('us')"),
        (US, 'pa.int64()'),
        (US, 'int64'),
        ("pa.duration('s')", "pa.duration('ms')"),
        ('pa.date32()', "pa.timestamp('ms')"),
        ('pa.bool_()', 'pa.uint8()'),
        ('pa.bool_()', 'uint8'),
        ('pa.decimal128(30, 2)', 'pa.decimal128(30, 3)'),
        (f'pa.list_({US})', "pa.list_(pa.timestamp('s'))"),
    ],
)
def test_a_column_of_different_meanings_is_refused(tmp_path, one, other):
    streams = [of_arrow_type(tmp_path / name, kind) for name, kind in zip('ab', (one, other), strict=True)]
    message = r"'x' is .* in stream a .*, and .* in stream b .*columns=\['id'\]"
    # Also without batches, and with those of one stream each: the numbers look alike.
    with pytest.raises(StreamError, match=message):
        StreamingDataset(streams=streams, batching_method='per_stream')
    assert len(StreamingDataset(streams=streams, columns=['id'])) > 1


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        (US, "pa.timestamp('ns')"),
        (US, "pa.timestamp('us', 'UTC')"),
        (US, 'pa.int64()'),
        (US, 'int64'),
        ('pa.date32()', "pa.timestamp('ms')"),
        ('pa.bool_()', 'pa.uint8()'),
        (f'pa.list_({US})', "pa.list_(pa.timestamp('s'))"),
    ],
)
def test_a_conversion_keeps_meanings(tmp_path, one, other):
    streams = [of_arrow_type(tmp_path / name, kind) for name, kind in zip('ab', (one, other), strict=True)]
    message = r"'x' is .* in stream a .*, and .* in stream b .*columns=\['id'\]"
    for number, stream in enumerate(streams):
        if stream.remote is None:
            continue
        out = tmp_path / f'mds {number}'
        convert(stream.remote, out, progress_bar=False)
        streams[number] = Stream(local=str(out), name=stream.name)
        with pytest.raises(StreamError, match=message):
            StreamingDataset(streams=streams, batching_method='per_stream')
    merged = [Path(stream.local or '') / 'index.json' for stream in streams]
    with pytest.raises(ConfigError, match="mean the same in all parts, but 'x' is .*/index.json, and .*/index.json"):
        merge_index(merged, tmp_path / 'merged')
    with pytest.raises(ConfigError, match="mean the same as those of the dataset, but 'x' is .* in the dataset, and"):
        convert(tmp_path / 'a', merged[1].parent, append='all', progress_bar=False)
    convert(tmp_path / 'a', merged[0].parent, append='all', progress_bar=False)
    assert len(StreamingDataset(local=str(merged[0].parent))) == 2
    # What is made of it keeps them, too.
    reshard(merged[0].parent, tmp_path / 'again')
    merge_index([merged[0], tmp_path / 'again' / 'index.json'], tmp_path / 'both')
    again = StreamingDataset(local=str(tmp_path / 'again'))
    with MDSWriter(columns=again.shards[0].schema.columns, out=str(tmp_path / 'again'), append=True) as writer:
        writer.write(again[0])
    for name in ('again', 'both'):
        streams[0] = Stream(local=str(tmp_path / name), name='a')
        with pytest.raises(StreamError, match=message):
            StreamingDataset(streams=streams)


def test_decimals_of_a_conversion_have_a_scale_each(tmp_path):
    for name, kind in zip('ab', ('pa.decimal128(30, 2)', 'pa.decimal128(30, 3)'), strict=True):
        convert(of_arrow_type(tmp_path / name, kind).remote, tmp_path / f'mds {name}', progress_bar=False)
    streams = [Stream(local=str(tmp_path / f'mds {name}'), name=name) for name in 'ab']
    dataset = StreamingDataset(streams=streams)
    assert dataset[0]['x'] == dataset[1]['x'] == 1


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        (US, US),
        ("pa.timestamp('us', 'UTC')", "pa.timestamp('us', '+00:00')"),
        ("pa.timestamp('us', 'Etc/UTC')", "pa.timestamp('us', 'Z')"),
        ('pa.int64()', 'int'),
        ('pa.uint8()', 'uint8'),
        ('pa.float32()', 'float32'),
        ('pa.decimal128(30, 2)', 'pa.decimal128(31, 2)'),
        ('pa.decimal128(30, 2)', 'str_decimal'),
    ],
)
def test_a_column_of_one_meaning_is_taken(tmp_path, one, other):
    streams = [of_arrow_type(tmp_path / name, kind) for name, kind in zip('ab', (one, other), strict=True)]
    dataset = StreamingDataset(streams=streams)
    assert dataset[0]['x'] == dataset[1]['x'] == 1


def test_types_that_make_one_batch_are_taken(tmp_path):
    folders = [
        write(tmp_path / 'a', id='int', x='float64'),
        write(tmp_path / 'b', id='int64', x='str_float'),
        write(tmp_path / 'c', writer=JSONWriter, id='int', x='float'),
    ]
    batches = list(StreamingDataLoader(mix(*folders, shuffle=True)))
    assert sorted(torch.cat([batch['id'] for batch in batches]).tolist()) == sorted([*range(8)] * 3)
    assert {(batch['id'].dtype, batch['x'].dtype) for batch in batches} == {(torch.int64, torch.float64)}


@pytest.mark.parametrize(
    'encodings',
    [
        ('ndarray:uint16', 'ndarray:uint16:3'),
        ('ndarray:uint16:3', 'ndarray:uint16'),
        ('ndarray', 'ndarray:uint16'),
        ('ndarray:uint16:3', 'ndarray', 'ndarray:uint16'),
    ],
)
def test_arrays_that_leave_dtype_or_shape_open_share_batches(tmp_path, encodings):
    folders = []
    for name, encoding in zip('abc', encodings, strict=False):
        folders.append(str(tmp_path / name))
        with MDSWriter(out=folders[-1], columns={'x': encoding}) as out:
            for _ in range(8):
                out.write({'x': np.ones(3, np.uint16)})
    batches = list(StreamingDataLoader(mix(*folders, shuffle=True)))
    assert {(batch['x'].dtype, batch['x'].shape) for batch in batches} == {(torch.uint16, (4, 3))}


def test_an_open_shape_does_not_hide_a_difference(tmp_path):
    encodings = ('ndarray:float32', 'ndarray:float32:3', 'ndarray:float32:4')
    folders = [write(tmp_path / name, id='int', x=x) for name, x in zip('abc', encodings, strict=True)]
    message = r"'x' is float32 array of shape \(3,\) in stream b .*, and float32 array of shape \(4,\) in stream c"
    with pytest.raises(StreamError, match=message):
        StreamingDataLoader(mix(*folders))


def test_an_open_shape_that_does_not_stack_is_named_at_its_batch(tmp_path):
    a = write(tmp_path / 'a', samples=2, x='ndarray:float32:4', id='int')
    b = write(tmp_path / 'b', samples=2, x='ndarray:float32', id='int')  # of shape (3,)
    with pytest.raises(RuntimeError, match=r'got \[4\] at entry 0 and \[3\] at entry 2') as raised:
        list(StreamingDataLoader(mix(a, b)))
    assert "stream 'b', shard 'shard.00000.mds', row 0" in raised.value.__notes__[0]


@pytest.mark.parametrize('method', ['per_stream', 'device_per_stream'])
@pytest.mark.parametrize('ranks', [1, 2])
def test_batches_of_one_stream_each_take_streams_of_different_columns(tmp_path, method, ranks):
    folders = [
        write(tmp_path / 'a', samples=16, id='int', text='str'),
        write(tmp_path / 'b', samples=16, id='int', y='float32'),
    ]
    found = []
    for rank in range(ranks):
        topology = Topology(rank=rank, world_size=ranks)
        options = dict(shuffle=True, shuffle_algo='py1e', num_canonical_nodes=1, topology=topology)
        found += list(StreamingDataLoader(mix(*folders, batching_method=method, **options)))
    assert sorted(tuple(sorted(batch)) for batch in found) == [('id', 'text')] * 4 + [('id', 'y')] * 4


def test_batches_of_one_stream_still_ask_for_one_kind_within_it(tmp_path):
    refused = of_two_kinds(tmp_path)
    with pytest.raises(StreamError, match='text'):
        StreamingDataLoader(
            StreamingDataset(local=refused, batch_size=4, shuffle_algo='py1e', batching_method='per_stream')
        )


def test_batches_of_one_sample_take_any_streams(tmp_path):
    folders = write(tmp_path / 'a', samples=1, id='int'), write(tmp_path / 'b', samples=1, id='int', text='str')
    streams = [Stream(local=folder) for folder in folders]
    batches = list(StreamingDataLoader(StreamingDataset(streams=streams, batch_size=1)))
    assert [list(batch) for batch in batches] == [['id'], ['id', 'text']]


def test_a_stream_of_which_nothing_is_drawn_may_differ(tmp_path):
    a, b = write(tmp_path / 'a', id='int'), write(tmp_path / 'b', id='int', text='str')

    def loader(*proportions, **options):
        streams = [Stream(local=a, name='a', **proportions[0]), Stream(local=b, name='b', **proportions[1])]
        return StreamingDataLoader(StreamingDataset(streams=streams, batch_size=4, **options))

    batches = list(loader({'proportion': 1.0}, {'proportion': 0.0}))
    assert [list(batch) for batch in batches] == [['id']] * 4
    ramp = [{'at': 0, 'proportions': {'a': 1, 'b': 1}}, {'at': 8, 'proportions': {'a': 1, 'b': 0}}]
    with pytest.raises(StreamError, match="'text' is in stream b"):
        loader({}, {}, schedule=ramp)
    assert [list(batch) for batch in loader({}, {}, schedule=[{'at': 0, 'proportions': {'a': 1}}])] == [['id']] * 4


def of_two_kinds(folder):
    """A stream whose shards have `text` as str and as bytes."""
    write(folder / 'one', id='int', text='str')
    write(folder / 'two', id='int', text='bytes')
    parts = [(folder / name / 'index.json').read_bytes() for name in ('one', 'two')]
    shards = [
        shard.moved(name)
        for name, part in zip(('one', 'two'), parts, strict=True)
        for shard in parse_index(part, source=name)
    ]
    (folder / 'index.json').write_bytes(dump_index(shards))
    return str(folder)


def test_shards_of_one_stream_may_differ_too(tmp_path):
    folder = of_two_kinds(tmp_path)
    with pytest.raises(
        StreamError, match=r"'text' is str in one/shard.00000.mds of .* bytes in two/shard.00000.mds of"
    ):
        StreamingDataLoader(StreamingDataset(local=folder, batch_size=4))
    dataset = StreamingDataset(local=folder, batch_size=16, columns=['id'])
    assert [batch['id'].tolist() for batch in StreamingDataLoader(dataset)] == [[*range(8)] * 2]


def test_many_differences_are_cut_short(tmp_path):
    a = write(tmp_path / 'a', id='int', **{f'column_{number}': 'str' for number in range(500)})
    with pytest.raises(StreamError, match='492 more columns differ') as raised:
        StreamingDataLoader(mix(a, write(tmp_path / 'b', id='int')))
    assert len(str(raised.value)) < 4000


def test_what_makes_batches_itself_takes_any_streams(tmp_path):
    class Text(StreamingDataset):
        def get_item(self, idx):
            sample = super().get_item(idx)
            return {'text': sample.get('text', ''), 'x': float(sample.get('x', 0))}

    a = write(tmp_path / 'a', id='int', text='str')
    b = write(tmp_path / 'b', id='int', x='int32')
    batches = list(StreamingDataLoader(mix(a, b, cls=Text)))
    assert [batch['text'] for batch in batches] == [['x'] * 4] * 2 + [[''] * 4] * 2
    batches = list(StreamingDataLoader(mix(a, b), collate_fn=lambda rows: [sorted(row) for row in rows]))
    assert batches == [[['id', 'text']] * 4] * 2 + [[['id', 'x']] * 4] * 2
    assert [sorted(sample) for sample in mix(a, b)] == [['id', 'text']] * 8 + [['id', 'x']] * 8


def test_packing_asks_for_the_documents_only(tmp_path):
    a = write(tmp_path / 'a', tokens='ndarray:uint16', id='int')
    b = write(tmp_path / 'b', tokens='ndarray:int32', name='str')
    options = dict(cls=PackedDataset, packing=Packing(sequence_length=6, sequences_per_epoch=8, lanes=4))
    batches = list(StreamingDataLoader(mix(a, b, **options)))
    assert [batch['input_ids'].tolist() for batch in batches] == [[[1] * 6] * 4] * 2
    assert len(list(StreamingDataLoader(mix(a, b, columns=['tokens'], **options)))) == 2
    with pytest.raises(ConfigError, match="documents from column 'tokens', but .* has id. Set"):
        mix(a, columns=['id'], **options)


def test_streams_have_settings_of_their_own_and_share_batches(tmp_path, image_folder):
    other = write_images(tmp_path, [stored(picture(30, 30, number), 'PNG') for number in range(40)], 'png')
    grey = ImageTensor(size=16, crop='center')
    streams = [Stream(local=image_folder, name='a'), Stream(local=other, name='b', decode={'image': grey})]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=20, decode=RANDOM)
    batches = [*StreamingDataLoader(dataset)]
    assert {batch['image'].shape for batch in batches} == {(20, 3, 16, 16)}
    alone = StreamingDataset(local=other, decode=grey)
    expected = {alone[number]['image'].numpy().tobytes() for number in range(40)}
    assert expected <= {image for batch in batches for _, _, image in read_images([batch])}


def test_streams_whose_images_do_not_stack_are_refused(tmp_path, image_folder):
    for settings in ({'size': 16, 'layout': 'HWC'}, {'size': 8}, {'size': 16, 'mode': 'L'}, None):
        one = Stream(local=image_folder, name='a', decode=RANDOM)
        other = Stream(local=image_folder, name='b', decode=settings)
        dataset = StreamingDataset(streams=[one, other], batch_size=4)
        with pytest.raises(StreamError, match="'image' is uint8 image tensor of 16 x 16, RGB, CHW in stream a"):
            next(iter(StreamingDataLoader(dataset)))


def test_wrong_settings_are_refused_when_the_dataset_is_made(image_folder):
    with pytest.raises(StreamError, match="names the column 'imag'.*Did you mean 'image'"):
        StreamingDataset(local=image_folder, decode={'imag': 'tensor'})
    with pytest.raises(StreamError, match='no column of images to read'):
        StreamingDataset(local=image_folder, columns=['id'], decode='tensor')
    with pytest.raises(StreamError, match="column 'id' of stream .* is `int`"):
        StreamingDataset(local=image_folder, decode={'id': 'tensor'})
    with pytest.raises(StreamError, match="must be 'tensor'"):
        Stream(local=image_folder, decode='pil')
