"""Columns of sound as tensors, compared with soundfile and soxr on the same bytes."""

from __future__ import annotations

import dataclasses
import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import soxr
import torch
from omegaconf import OmegaConf

from headrace import (
    BAD_SAMPLE,
    AudioTensor,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    Topology,
    without_padding,
)
from headrace.errors import FormatError, ShardError, StreamError
from headrace.mixing import build_loader, load_config
from headrace.tensors.decoding import Decode

KINDS = [('WAV', 'PCM_16'), ('WAV', 'FLOAT'), ('FLAC', 'PCM_16'), ('OGG', 'VORBIS'), ('OGG', 'OPUS'), ('MP3', None)]


def sound(number=0, seconds=0.5, rate=48_000, channels=1, kind=('FLAC', 'PCM_16')):
    """The bytes of a clip with tones and noise."""
    time = np.arange(round(seconds * rate)) / rate
    rng = np.random.default_rng(number)
    tones = [0.3 * np.sin(2 * np.pi * (200 + 90 * number + 50 * c) * time) for c in range(channels)]
    values = np.stack(tones, axis=1) + rng.normal(0, 0.02, (len(time), channels))
    out = io.BytesIO()
    soundfile.write(out, values, rate, format=kind[0], subtype=kind[1])
    return out.getvalue()


def by_hand(data, audio, begin=0):
    """The obvious way: decode all, cut, mix, resample, and append zeros."""
    values, rate = soundfile.read(io.BytesIO(data), dtype='float32', always_2d=True)
    if audio.samples is not None:
        values = values[begin : begin + -(-audio.samples * rate // audio.sample_rate)]
    if audio.channels == 1:
        values = values.mean(axis=1, keepdims=True)
    values = soxr.resample(values, rate, audio.sample_rate)
    out = np.repeat(values, audio.channels // values.shape[1], axis=1).T
    if audio.samples is None:
        return out
    return np.pad(out, ((0, 0), (0, max(audio.samples - out.shape[1], 0))))[:, : audio.samples]


def open_clip(data, audio):
    return audio.open(data, 'bytes')


def decoded(data, audio, draw=None):
    clip = open_clip(data, audio)
    out = np.full(clip.shape, np.nan, np.float32)
    clip.read_into(out, None if draw is None else [draw])
    return out


def write(folder, clips, **options):
    with MDSWriter(out=str(folder), columns={'id': 'int', 'audio': 'bytes'}, **options) as writer:
        for number, data in enumerate(clips):
            writer.write({'id': number, 'audio': data})
    return str(folder)


@pytest.mark.parametrize('kind', KINDS, ids=lambda kind: f'{kind[0]}-{kind[1]}')
@pytest.mark.parametrize('stored', [1, 2])
@pytest.mark.parametrize('audio', [
    AudioTensor(sample_rate=48_000, channels=2),
    AudioTensor(sample_rate=16_000),
    AudioTensor(sample_rate=44_100, seconds=0.2, channels=2),
    AudioTensor(sample_rate=16_000, seconds=0.2),
    AudioTensor(sample_rate=16_000, seconds=0.75),
])  # fmt: skip
def test_values_are_those_of_soundfile_and_soxr(kind, stored, audio):
    data = sound(3, channels=stored, kind=kind)
    found, expected = decoded(data, audio), by_hand(data, audio)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-6
    if audio.seconds == 0.75:
        assert not found[:, 8_000:].any()


@pytest.mark.parametrize('rate', [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize('stored', [1, 2])
def test_an_mp3_that_does_not_say_its_length_is_read_whole(rate, stored):
    values = np.sin(np.arange(3 * rate) / 20) * np.linspace(0, 1, 3 * rate) ** 8  # frames of very different sizes
    values += np.random.default_rng(0).normal(size=len(values)) * np.linspace(0, 0.3, len(values)) ** 2
    out = io.BytesIO()
    soundfile.write(out, np.stack([values, values[::-1]][:stored], axis=1), rate, format='MP3')
    whole = soundfile.read(io.BytesIO(out.getvalue()), dtype='float32', always_2d=True)[0]
    data = out.getvalue()[out.getvalue().index(out.getvalue()[:2], 4) :]  # without the frame that says it
    assert soundfile.SoundFile(io.BytesIO(data)).frames != len(whole)
    tag = b'ID3\4\0\0' + bytes([0, 0, 2, 5]) + bytes(2 * 128 + 5)
    for some in (data, tag + data, tag + tag + data, data + b'TAG' + b'x' * 125, data + data[:40]):
        found = decoded(some, AudioTensor(sample_rate=rate, channels=stored))
        late = 576  # the decoder's delay, which the frame also says
        assert 0 <= found.shape[1] - late - len(whole) < 2 * 1152
        assert np.abs(found[:, late : late + len(whole)] - whole.T).max() < 1e-6
    with pytest.raises(FormatError, match=r'its MP3 frames end at byte \d+ of \d+'):
        open_clip(data[:2000] + b'junk' * 40 + data[2000:], AudioTensor(sample_rate=rate, channels=stored))


def test_crops_are_frames_of_the_file():
    data = sound(1, rate=8_000)  # 4000 frames, of which 1000 are kept
    options = {'sample_rate': 16_000, 'seconds': 0.125}
    for crop, draw, begin in [
        ('start', 0.9, 0),
        ('center', 0.9, 1_500),
        ('random', None, 1_500),
        ('random', 0.0, 0),
        ('random', 0.25, 750),
        ('random', 1 - 2**-53, 3_000),
    ]:
        audio = AudioTensor(crop=crop, **options)
        assert (decoded(data, audio, draw) == by_hand(data, audio, begin)).all()


@pytest.mark.parametrize('kind', [*KINDS, ('WAV', 'GSM610')], ids=lambda kind: f'{kind[0]}-{kind[1]}')
@pytest.mark.parametrize('rate', [16_000, 48_000])
def test_crops_are_slices_of_all_values(kind, rate):
    """After a seek, libsndfile gives other values for MP3 and Vorbis, and cannot seek in GSM."""
    time = np.arange(6 * 48_000)  # chirps between silences, so that frames differ in their bits
    values = 0.7 * np.sin(time / 20 + (time / 3000) ** 2 / 9) * np.maximum(0, np.sin(time / 4000))
    out = io.BytesIO()
    soundfile.write(out, values, rate, format=kind[0], subtype=kind[1])
    everything = soundfile.read(io.BytesIO(out.getvalue()), dtype='float32')[0]
    for crop, draw in [('start', None), ('center', None), *[('random', draw) for draw in np.linspace(0, 0.999, 16)]]:
        audio = AudioTensor(sample_rate=rate, seconds=0.25, crop=crop)
        found = decoded(out.getvalue(), audio, draw)[0]
        room = len(everything) - len(found)
        begin = {'start': 0, 'center': room // 2}.get(crop, int((draw or 0) * (room + 1)))
        assert np.abs(found - everything[begin : begin + len(found)]).max() < 1e-6, (crop, draw)


def test_every_length_is_that_of_the_settings():
    for rate, wanted in [(44_100, 16_000), (8_000, 44_100), (22_050, 16_000), (48_000, 11_025)]:
        for seconds in (0.01, 0.0317, 0.05):
            data = sound(seconds=0.05, rate=rate)
            audio = AudioTensor(sample_rate=wanted, seconds=seconds)
            assert (decoded(data, audio) == by_hand(data, audio)).all()
            assert decoded(data, AudioTensor(sample_rate=wanted)).shape == (1, round(0.05 * wanted))


@pytest.fixture
def folder(tmp_path):
    """20 clips of different rates, lengths, channels and formats in two shards."""
    kinds = [*KINDS[:4], KINDS[5]]
    clips = [
        sound(n, 0.1 + 0.02 * (n % 5), (16_000, 22_050, 44_100)[n % 3], 1 + n % 2, kinds[n % len(kinds)])
        for n in range(20)
    ]
    return write(tmp_path / 'clips', clips, size_limit=sum(map(len, clips)) // 2)


RANDOM = {'audio': {'sample_rate': 16_000, 'seconds': 0.05, 'crop': 'random'}}


def read(folder, size, ranks=1, workers=0, passes=2, state=None, decode=RANDOM):
    found = []
    for rank in range(ranks):
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=size, decode=decode)
        loader = StreamingDataLoader(
            dataset, num_workers=workers, topology=Topology(rank=rank, world_size=ranks), persistent_workers=workers > 0
        )
        if state is not None:
            loader.load_state_dict(state)
        for epoch in range(passes):
            for batch in loader:
                assert batch['audio'].shape == (size, 1, 800)
                assert batch['audio'].dtype == torch.float32
                rows = zip(batch['id'].tolist(), batch['audio'], strict=True)
                found += [(epoch, number, values.numpy().tobytes()) for number, values in rows]
    return found


def test_crops_are_the_same_on_any_topology_and_after_a_resume(folder):
    whole = read(folder, 4)
    assert len({values for _, _, values in whole}) == 40  # another crop in each epoch
    assert sorted(read(folder, 2, ranks=2, workers=1)) == sorted(whole)
    loader = StreamingDataLoader(StreamingDataset(local=folder, shuffle=True, batch_size=4, decode=RANDOM))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert sorted(read(folder, 2, ranks=2, workers=2, state=loader.state_dict())) == sorted(whole[12:])


@pytest.mark.parametrize('workers', [0, 1])
def test_clips_of_any_length_are_a_list(folder, workers):
    def loader(**options):
        decode = {'audio': AudioTensor(sample_rate=16_000)}
        dataset = StreamingDataset(local=folder, batch_size=8, decode=decode, remainder='exact')
        return StreamingDataLoader(dataset, num_workers=workers, **options)

    stored = StreamingDataset(local=folder)
    expected = [by_hand(stored[n]['audio'], AudioTensor(sample_rate=16_000)) for n in range(20)]
    found = [clip for batch in loader() for clip in without_padding(batch)['audio']]
    assert [clip.shape for clip in found] == [clip.shape for clip in expected]
    assert max(np.abs(one.numpy() - other).max() for one, other in zip(found, expected, strict=True)) < 1e-6
    padded = [without_padding(batch) for batch in loader(pad={'audio': -2.0})]
    rows = [
        row[:, :length] for batch in padded for row, length in zip(batch['audio'], batch['audio_length'], strict=True)
    ]
    assert all(torch.equal(one, other) for one, other in zip(rows, found, strict=True))
    assert sum(int((batch['audio'] != -2).sum()) for batch in padded) == sum(clip.numel() for clip in found)
    collated = loader(collate_fn=lambda samples: [sample['audio'].shape[1] for sample in samples])
    assert next(iter(collated)) == [clip.shape[1] for clip in expected[:8]]


def test_sources_and_samples_are_the_same(tmp_path):
    clips = [sound(n, 0.1, kind=('WAV', 'PCM_16')) for n in range(6)]
    decode = {'audio': AudioTensor(sample_rate=16_000, seconds=0.05, crop='center')}
    expected = [by_hand(data, decode['audio'], 1_200) for data in clips]
    (tmp_path / 'parquet').mkdir()
    table = pa.table({'audio': [{'bytes': data, 'path': f'{n}.wav'} for n, data in enumerate(clips)]})
    features = b'{"info": {"features": {"audio": {"sampling_rate": 48000, "_type": "Audio"}}}}'
    pq.write_table(table.replace_schema_metadata({b'huggingface': features}), tmp_path / 'parquet' / 'a.parquet')
    (tmp_path / 'tars').mkdir()
    with tarfile.open(tmp_path / 'tars' / 'a.tar', 'w') as tar:
        for number, data in enumerate(clips):
            info = tarfile.TarInfo(f'{number:03}.wav')
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    mds = write(tmp_path / 'mds', clips)
    for name, options in [
        ('audio', {'local': mds, 'columns': ['audio']}),
        ('audio', {'remote': str(tmp_path / 'parquet'), 'local': str(tmp_path / 'b')}),
        ('wav', {'remote': str(tmp_path / 'tars'), 'local': str(tmp_path / 'c'), 'columns': ['wav']}),
    ]:
        dataset = StreamingDataset(**options, batch_size=6, decode={name: decode['audio']})
        (batch,) = StreamingDataLoader(dataset)
        assert (batch[name].numpy() == np.stack(expected)).all()
        assert (dataset[4][name].numpy() == expected[4]).all()


def test_yaml_gives_the_same(folder):
    config = load_config({'device_batch_size': 4, 'train': {'local': folder, 'decode': RANDOM}})
    assert config.train.decode.plain == RANDOM
    assert next(iter(build_loader(config.train)))['audio'].shape == (4, 1, 800)


def test_streams_of_other_settings_share_no_batch(folder):
    streams = [
        Stream(local=folder, name='a', decode=RANDOM),
        Stream(local=folder, name='b', decode={'audio': AudioTensor(sample_rate=8_000, seconds=0.1)}),
    ]
    with pytest.raises(StreamError, match="'audio' is float32 audio tensor of 1 x 800 samples, 16000 Hz in .*8000 Hz"):
        next(iter(StreamingDataLoader(StreamingDataset(streams=streams, batch_size=4))))


@pytest.fixture
def damaged(tmp_path):
    """12 clips, of which 2 is cut, 5 is no sound, 7 is empty, and 9 has 6 channels."""
    clips = [sound(number, 0.1) for number in range(12)]
    clips[2] = clips[2][:500]
    clips[5] = b'RIFFnothing'
    clips[7] = sound(seconds=0, kind=('WAV', 'PCM_16'))
    clips[9] = sound(seconds=0.1, channels=6)
    return write(tmp_path / 'damaged', clips)


@pytest.mark.parametrize('seconds', [0.1, None])
def test_damaged_clips_are_named_or_skipped(damaged, seconds):
    decode = {'audio': AudioTensor(sample_rate=16_000, channels=2, seconds=seconds)}
    dataset = StreamingDataset(local=damaged, batch_size=4, decode=decode)
    with pytest.raises(ShardError, match=r"Column 'audio' of stream 'stream_0', shard 'shard\.00000\.mds', row 2, "):
        list(StreamingDataLoader(dataset))
    for number, reason in [(2, 'cannot be read as sound'), (5, 'cannot be read'), (7, '0 frames'), (9, '6 channels')]:
        rule = f'row {number}, sample id {number}, cannot be decoded: .*{reason}'
        with pytest.raises(ShardError, match=rule) as error:
            dataset[number]
        assert 'BytesIO' not in str(error.value)
    dataset = StreamingDataset(local=damaged, batch_size=4, decode=decode, on_bad_sample='skip')
    batches = [*StreamingDataLoader(dataset)]
    assert torch.cat([batch[BAD_SAMPLE] for batch in batches]).nonzero().flatten().tolist() == [2, 5, 7, 9]
    assert torch.equal(batches[0]['audio'][2], batches[0]['audio'][1])


def test_a_header_takes_no_memory_without_bound():
    flac = bytearray(sound())
    flac[21] |= 0x0F  # the number of samples, of 36 bits, in the first block
    with pytest.raises(FormatError, match='`max_samples`, 268,435,456, but this clip says 6442'):
        open_clip(bytes(flac), AudioTensor(sample_rate=16_000))
    slow = bytearray(sound(kind=('WAV', 'PCM_16')))
    slow[24:28] = (1).to_bytes(4, 'little')
    with pytest.raises(FormatError, match='at 1 Hz'):
        open_clip(bytes(slow), AudioTensor(sample_rate=48_000))
    with pytest.raises(FormatError, match='set `seconds` or `max_samples`'):
        open_clip(sound(), AudioTensor(sample_rate=16_000, max_samples=20_000))


def test_mutated_clips_give_values_or_errors_of_ours():
    rng, outcomes = np.random.default_rng(5), set()
    whole = [sound(n, 0.05, kind=kind) for n, kind in enumerate(KINDS)]
    for number in range(300):
        data = bytearray(whole[number % len(whole)])
        for at in rng.integers(0, len(data) if number % 2 else 100, 1 + number % 5):
            data[at] = rng.integers(256)
        try:
            decoded(bytes(data), AudioTensor(sample_rate=16_000, seconds=0.1, max_samples=1 << 20), rng.random())
            outcomes.add('values')
        except FormatError:
            outcomes.add('error')
    assert outcomes == {'values', 'error'}


@pytest.mark.parametrize(
    ('options', 'rule'),
    [
        ({'sample_rate': 0}, 'hertz'),
        ({'sample_rate': 16e3}, 'hertz'),
        ({'channels': 0}, 'channels'),
        ({'seconds': 0}, 'holds a sample'),
        ({'seconds': float('inf')}, 'seconds'),
        ({'seconds': True}, 'seconds'),
        ({'crop': 'end', 'seconds': 1}, "'random', 'center', 'start'"),
        ({'crop': 'random'}, 'needs `seconds`'),
        ({'max_samples': 1.5}, 'max_samples'),
    ],
)
def test_wrong_settings_are_refused(options, rule):
    with pytest.raises(StreamError, match=rule):
        AudioTensor(**{'sample_rate': 16_000, **options})
    with pytest.raises(StreamError, match=rf"decode\['audio'\]\['{next(iter(options))}'\]"):
        Decode.of({'audio': {'sample_rate': 16_000, **options}})


DOC = (Path(__file__).parents[2] / 'docs' / 'images.md').read_text().partition('## Sound')[2]


def test_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with MDSWriter(out='data/speech', columns={'flac': 'bytes'}) as writer:
        for number in range(40):
            writer.write({'flac': sound(number, 0.1)})
    (program,) = re.findall(r'^```python\n(.*?)^```$', DOC, flags=re.MULTILINE | re.DOTALL)
    # The caches of a test do not belong into the user's temporary folder.
    exec(program.replace("remote='data/speech'", "local='data/speech'"), {})
    assert 'torch.Size([16, 1, 160000])' in capsys.readouterr().out
    (block,) = re.findall(r'^```yaml\n(.*?)^```$', DOC, flags=re.MULTILINE | re.DOTALL)
    loaded = load_config({'device_batch_size': 8, 'train': {'local': '/a', **OmegaConf.create(block).train}})
    speech = AudioTensor(sample_rate=16_000, seconds=10, crop='random')
    assert loaded.train.decode == Decode(None, (('flac', speech),))
    names = re.findall(r'^\| `(\w+)` \|', DOC, flags=re.MULTILINE)
    assert names == [field.name for field in dataclasses.fields(AudioTensor)]


def _encoded(kind: str, subtype: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(
        out, (0.3 * np.sin(np.arange(32_000) * 0.17)).astype(np.float32), 16_000, format=kind, subtype=subtype
    )
    return out.getvalue()


@pytest.mark.parametrize(('change', 'seconds'), [('joined', 4), ('zero', 2), ('none', 2), ('few', 2), ('right', 2)])
def test_an_mp3_whose_header_counts_too_few_frames_is_read_whole(change: str, seconds: int) -> None:
    data = _encoded('MP3', 'MPEG_LAYER_III')
    at = data.index(b'Xing') + 4
    data = {
        'joined': data + data,
        'zero': data[: at + 4] + bytes(4) + data[at + 8 :],
        'none': data[:at] + bytes(116) + data[at + 116 :],
        'few': data[: at + 4] + (9).to_bytes(4, 'big') + data[at + 8 :],
        'right': data,
    }[change]
    clip = open_clip(data, AudioTensor(sample_rate=16_000))
    out = np.zeros(clip.shape, np.float32)
    clip.read_into(out, None)
    assert abs(out.shape[1] - seconds * 16_000) < 4000
    assert np.abs(out[:, -8000:-4000]).max() > 0.2


@pytest.mark.parametrize(
    ('kind', 'subtype'),
    [('Ogg', 'VORBIS'), ('Ogg', 'OPUS'), ('FLAC', 'PCM_16'), ('AU', 'PCM_16'), ('CAF', 'PCM_16'), ('W64', 'PCM_16')],
)
def test_joined_files_that_cannot_be_read_whole_are_refused(kind: str, subtype: str) -> None:
    data = _encoded(kind.upper(), subtype)
    open_clip(data, AudioTensor(sample_rate=16_000))
    with pytest.raises(FormatError, match=f'several {kind} files in one, and the second begins at byte {len(data)}'):
        open_clip(data + data, AudioTensor(sample_rate=16_000))


def _sized(clip: bytes, size: int) -> bytes:
    """A WAV or RF64 whose header says another size of its sound."""
    at, width = (28, 8) if clip.startswith(b'RF64') else (clip.index(b'data') + 4, 4)
    order = 'big' if clip.startswith(b'RIFX') else 'little'
    return clip[:at] + (size % (1 << 8 * width)).to_bytes(width, order) + clip[at + width :]


def _wav(form: str = 'WAV', endian: str = 'FILE') -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.sin(np.arange(8000)) * 0.5, 8000, format=form, subtype='PCM_16', endian=endian)
    return out.getvalue()


@pytest.mark.parametrize(('form', 'endian'), [('WAV', 'FILE'), ('WAVEX', 'FILE'), ('RF64', 'FILE'), ('WAV', 'BIG')])
def test_a_wav_of_a_streaming_writer_is_read_whole(form: str, endian: str) -> None:
    whole = _wav(form, endian)
    audio = AudioTensor(sample_rate=8000)
    expected = np.zeros((1, 8000), np.float32)
    open_clip(whole, audio).read_into(expected, None)
    for size in (0, -1):
        for riff in (whole[4:8], b'\0' * 4, b'\xff' * 4):
            clip = _sized(whole, size)
            clip = open_clip(clip[:4] + riff + clip[8:], audio)
            assert clip.shape == (1, 8000)
            out = np.zeros(clip.shape, np.float32)
            clip.read_into(out, None)
            assert np.array_equal(out, expected)


@pytest.mark.parametrize('form', ['WAV', 'RF64'])
@pytest.mark.parametrize('size', [2, 999, 8000, 15_998])
def test_a_wav_whose_header_says_less_is_refused_with_a_fix_that_works(form: str, size: int) -> None:
    whole, audio = _wav(form), AudioTensor(sample_rate=8000)
    short = _sized(whole, size)
    with pytest.raises(FormatError, match=f'counts {size} bytes of sound') as caught:
        open_clip(short, audio)
    told = re.search(r'all of them, (\d+), into the (\d) bytes at (\d+)', str(caught.value))
    assert told is not None
    count, width, at = map(int, told.groups())
    fixed = short[:at] + count.to_bytes(width, 'little') + short[at + width :]
    assert open_clip(fixed, audio).shape == (1, 8000)
    with pytest.raises(FormatError, match='not a chunk'):
        open_clip(whole + whole, audio)


def test_what_may_follow_the_sound_of_a_wav() -> None:
    whole, audio = _wav(), AudioTensor(sample_rate=8000)
    for rest in (b'LIST\4\0\0\0INFO', b'id3 \3\0\0\0abc', b'abcd\0\0\0\0', bytes(100), b'TAG' + bytes(125)):
        assert open_clip(whole + rest, audio).shape == (1, 8000)
    with pytest.raises(FormatError, match='0 frames'):
        open_clip(_sized(whole, 0)[: whole.index(b'data') + 8] + b'LIST\4\0\0\0INFO', audio)


@pytest.mark.parametrize(
    ('kind', 'subtype'),
    [
        ('WAV', 'PCM_16'),
        ('WAV', 'IMA_ADPCM'),
        ('WAVEX', 'FLOAT'),
        ('RF64', 'PCM_16'),
        ('AIFF', 'PCM_16'),
        ('AIFF', 'IMA_ADPCM'),
        ('AU', 'PCM_16'),
        ('CAF', 'PCM_16'),
        ('W64', 'PCM_16'),
        ('VOC', 'PCM_16'),
        ('NIST', 'PCM_16'),
        ('SVX', 'PCM_16'),
        ('FLAC', 'PCM_16'),
        ('OGG', 'VORBIS'),
        ('OGG', 'OPUS'),
        ('MP3', 'MPEG_LAYER_III'),
    ],
)
def test_a_file_that_was_cut_is_refused(kind: str, subtype: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, audio = _encoded(kind, subtype), AudioTensor(sample_rate=16_000)
    decoded(data, audio)
    for size in (99 * len(data) // 100, len(data) // 2):
        with pytest.raises(FormatError, match='cannot be read as sound'):
            decoded(data[:size], audio)
    assert 'Traceback' not in capfd.readouterr().err


def test_an_ogg_file_without_its_last_page_is_refused() -> None:
    data = _encoded('OGG', 'OPUS')
    with pytest.raises(FormatError, match='its last Ogg page is not there'):
        open_clip(data[: data.rindex(b'OggS')], AudioTensor(sample_rate=16_000))


def test_a_wav_that_was_cut_is_refused_with_a_fix_that_works() -> None:
    whole, audio = _wav(), AudioTensor(sample_rate=8000)
    cut = whole[:-4000]
    with pytest.raises(FormatError, match='counts 16000 bytes of sound, but 12000 are there') as caught:
        open_clip(cut, audio)
    count, width, at = map(int, re.search(r'write (\d+) into the (\d) bytes at (\d+)', str(caught.value)).groups())
    assert open_clip(cut[:at] + count.to_bytes(width, 'little') + cut[at + width :], audio).shape == (1, 6000)
    for size in (0x7FFFF000, 0x80000000, 0xFFFFFFFE):  # of SoX, ALSA and others, which write to a pipe
        assert open_clip(_sized(whole, size), audio).shape == (1, 8000)
