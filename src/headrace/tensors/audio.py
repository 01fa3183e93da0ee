"""Stored clips of sound as float32 tensors: settings of a column, and the decoding, cropping, mixing and resampling."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from headrace.errors import FormatError, StreamError, import_optional
from headrace.selection import Mistake
from headrace.tensors.images import is_number

Crop = Literal['random', 'center', 'start']

_MOST_RATE: Final = 1 << 20  # hertz
# Data of an MP3 frame may begin up to 24 frames of 576 values earlier: 255 bytes, of which the smallest frames hold 11.
_MP3_LEAD: Final = 32 * 576
_PADDING: Final = 4096  # Fewer zeros behind a WAV are padding, and not sound.
_OPEN: Final = 0x7F000000  # Writers to pipes, which know no size, write one from here on, or none.
_JOINED: Final = {
    'FLAC': b'fLaC\0\0\0\x22',
    'AU': b'.snd\0\0\0',
    'CAF': b'caff\0\1\0\0desc',
    'W64': b'riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb',
}
"""The first bytes of files of which libsndfile reads the first only, if several are joined."""
_CUT: Final = re.compile(r'(\d+) \(should be (\d+)\)|truncated file')  # in the notes of libsndfile
_NIST_FRAMES: Final = re.compile(rb'sample_count -i (\d+)')
_SKIPPED: Final = 1 << 16  # frames decoded at once to be discarded
_MP3_RATES: Final = (44_100, 48_000, 32_000)
# Kilobits a second by their number in a frame's header, of MPEG 1, and of MPEG 2 and 2.5.
_MPEG_1: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG_2: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)


@dataclass(frozen=True, kw_only=True)
class AudioTensor:
    """A column of clips as tensors of float32, of shape [channels, samples].

    Full scale is -1 to 1. Float WAV, lossy formats and resampling may go beyond it.

    A clip is the content of a file: WAV, FLAC, Ogg (Vorbis or Opus), MP3, AIFF or another that libsndfile reads. With
    `seconds`, only the part that is kept is decoded, except that Vorbis, and formats without seeks such as GSM, are
    decoded from their start. The part is mixed to `channels`, and then resampled by soxr. So the values are those of
    this part alone, on any topology and in any batch.

    The place of a random crop depends on the dataset's `shuffle_seed`, the epoch and the sample's id alone, as
    `sample_rng` does. Outside of a pass over the data, as in `dataset[i]`, such crops are central.

    Args:
        sample_rate: of the tensors, in hertz. Clips of other rates are resampled.
        channels: of the tensors. To one channel, all are averaged; one channel is repeated. Other clips with another
            number of channels are damaged samples.
        seconds: length of all tensors. A shorter clip is followed by zeros. By default each has its own length, and a
            batch holds a list of tensors.
        crop: part of a longer clip: 'random', 'center' or 'start'.
        max_samples: clips of which more samples would be decoded or made, those of all channels together, are refused
            before memory is taken. The default is 1 GiB of float32.

    Raises:
        StreamError: an argument breaks a rule.
    """

    sample_rate: int
    channels: int = 1
    seconds: float | None = None
    crop: Crop = 'start'
    max_samples: int = 1 << 28

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)
    encodings: ClassVar[frozenset[str]] = frozenset({'bytes'})
    """Encodings of columns that are read so."""

    def __post_init__(self) -> None:
        if mistakes := self.mistakes():
            (key,), value, rule = mistakes[0]
            raise StreamError(f'`{key}` of an AudioTensor {rule}, but is {value!r:.100}.')

    @property
    def samples(self) -> int | None:
        """Samples of each channel of the tensors; None for those of the clips."""
        return None if self.seconds is None else round(self.seconds * self.sample_rate)

    @property
    def kind(self) -> str:
        """The type of a column in a batch: columns of one kind can share it."""
        length = 'any number of' if self.samples is None else self.samples
        return f'float32 audio tensor of {self.channels} x {length} samples, {self.sample_rate} Hz'

    def mistakes(self) -> list[Mistake]:
        """The rules that the settings break."""
        mistakes: list[Mistake] = []

        def refuse(name: str, rule: str) -> None:
            mistakes.append(Mistake((name,), getattr(self, name), rule))

        rate = self.sample_rate
        if not (is_number(rate, int) and 1 <= rate <= _MOST_RATE):
            refuse('sample_rate', f'must be a whole number of hertz, from 1 to {_MOST_RATE}')
        elif self.seconds is not None and not (
            is_number(self.seconds) and math.isfinite(self.seconds) and self.seconds * rate >= 1
        ):
            refuse('seconds', 'must be a number of seconds that holds a sample or more')
        if not (is_number(self.channels, int) and self.channels >= 1):
            refuse('channels', 'must be a whole number of at least 1')
        if self.crop not in get_args(Crop):
            refuse('crop', f'must be one of {", ".join(map(repr, get_args(Crop)))}')
        elif self.crop != 'start' and self.seconds is None:
            refuse('crop', 'needs `seconds`, the length of the part that is kept')
        if not (is_number(self.max_samples, int) and self.max_samples >= 1):
            refuse('max_samples', 'must be a whole number of at least 1')
        return mistakes

    @property
    def is_ragged(self) -> bool:
        """Whether each tensor of a batch has a length of its own."""
        return self.seconds is None

    def open(self, data: bytes, encoding: str) -> Clip:
        """A clip from its file, undecoded; FormatError: it has no samples, too many, or channels that do not mix."""
        del encoding  # 'bytes'
        soundfile = import_optional('soundfile', 'Audio as tensors needs soundfile', 'audio')
        import_optional('soxr', 'Audio as tensors needs soxr', 'audio')  # for `read_into`
        data = _whole_wav(data)
        try:
            file = soundfile.SoundFile(_Bytes(data))
            _refuse_other_lengths(file, data)
            if file.format == 'MP3' and (counted := _with_length(data)) is not data:
                file = soundfile.SoundFile(_Bytes(counted))
        except soundfile.SoundFileError as error:
            raise _damaged(error) from error
        rate, stored = file.samplerate, file.channels
        if file.frames < 1 or not 1 <= rate <= _MOST_RATE:
            raise _damaged(f'it says {file.frames} frames at {rate} Hz')
        if stored != self.channels and 1 not in (stored, self.channels):
            raise FormatError(
                f'A clip is mixed to one channel, or from one, but this one has {stored} channels, and `channels` of '
                f'its AudioTensor is {self.channels}. Set it to 1 or {stored}.'
            )
        frames, samples = file.frames, self.samples
        if samples is None:
            samples = max((2 * frames * self.sample_rate + rate) // (2 * rate), 1)  # rounded
        else:
            frames = min(frames, -(-samples * rate // self.sample_rate))
        if max(frames * stored, samples * self.channels) > self.max_samples:
            raise FormatError(
                f'An AudioTensor may have `max_samples`, {self.max_samples:,}, but this clip says {frames} frames of '
                f'{stored} channels at {rate} Hz. If it is right, set `seconds` or `max_samples`.'
            )
        begin = 0 if self.crop == 'start' else (file.frames - frames) // 2
        return Clip(file, self, begin, frames, (self.channels, samples))

    def in_layout(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Samples as they are."""
        return array


class Clip(NamedTuple):
    """A stored clip whose header has been read."""

    file: Any  # soundfile's.
    settings: AudioTensor
    begin: int
    """First frame of the part that is kept, for a crop that is not random; a frame has a sample of each channel."""
    frames: int  # Of the part that is kept.
    shape: tuple[int, int]  # Channels and samples of the tensor.

    def read_into(self, out: npt.NDArray[np.float32], draws: Sequence[float] | None) -> None:
        """Decode into memory of `shape`. The last of `draws`, below 1, places a random crop; None: it is central."""
        import soundfile
        import soxr

        file, begin = self.file, self.begin
        if self.settings.crop == 'random' and draws is not None:
            begin = int(draws[-1] * (file.frames - self.frames + 1))
        try:
            lead = min(begin, _MP3_LEAD) if file.format == 'MP3' else 0
            if file.subtype == 'VORBIS' or not file.seekable():  # libsndfile seeks to wrong frames of Vorbis
                left = begin
                while left and (count := len(file.read(min(left, _SKIPPED), dtype='float32'))):
                    left -= count
            elif begin > lead:
                file.seek(begin - lead)
            values = file.read(lead + self.frames, dtype='float32', always_2d=True)[lead:]
        except soundfile.SoundFileError as error:
            raise _damaged(error) from error
        if len(values) != self.frames:
            raise _damaged(f'{self.frames} frames from frame {begin} on should follow, but {len(values)} do')
        if values.shape[1] != len(out):
            values = _mixed(values)
        if file.samplerate != self.settings.sample_rate:
            values = soxr.resample(values, file.samplerate, self.settings.sample_rate)
        count = min(len(values), out.shape[1])
        out[:, :count] = values.T[:, :count]
        out[:, count:] = 0


class Clips(list[Any]):
    """Tensors of a column without `seconds`, which a batch keeps as a list; None in bad rows."""


class _Bytes(BytesIO):
    """The bytes of a file. A place before the first byte, as damaged files name, changes nothing."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def _refuse_other_lengths(file: Any, data: bytes) -> None:
    """Refuse a file that was cut, and several in one: libsndfile reads what is there, or the first."""
    kind = file.format
    if kind == 'OGG':
        _refuse_other_ogg(data)
    if kind in _JOINED and (second := data.find(_JOINED[kind], 4)) > 0:
        raise _damaged(f'it is several {kind} files in one, and the second begins at byte {second}: split it there')
    if kind == 'NIST' and (told := _NIST_FRAMES.search(data[:1024])) and int(told[1]) != file.frames:
        raise _damaged(f'its header counts {int(told[1])} frames, but it has {file.frames}: restore it')
    if kind in ('WAV', 'WAVEX', 'RF64', 'FLAC', 'OGG', 'MP3'):  # checked above, and by `_whole_wav` or the decoder
        return
    for note in _CUT.finditer(file.extra_info):
        told, there = note.groups(default='0')
        if int(there) < int(told) < _OPEN or told == there:
            raise _damaged(f'its header counts more bytes than the {len(data)} that are there: restore it')


def _whole_wav(data: bytes) -> bytes:
    """A WAV whose writer left the size of its sound open, with that size; a wrong size is refused, other files stay."""
    if data[:4] not in (b'RIFF', b'RIFX', b'RF64', b'BW64') or data[8:12] != b'WAVE':
        return data
    order: Literal['little', 'big'] = 'big' if data.startswith(b'RIFX') else 'little'
    at = 12
    while (name := data[at : at + 4]) != b'data':
        if len(name) < 4:
            return data
        size = int.from_bytes(data[at + 4 : at + 8], order)
        at += 8 + size + size % 2
    begin, place, width = at + 8, at + 4, 4
    if data[12:16] == b'ds64' and data[:4] in (b'RF64', b'BW64'):
        place, width = 28, 8
    size = int.from_bytes(data[place : place + width], order)
    end = begin + size
    if end == len(data):
        return data
    if end > len(data) and size < _OPEN:
        raise _damaged(
            f'its WAV header counts {size} bytes of sound, but {len(data) - begin} are there: it was cut short. '
            f'Restore it; or, to have what is there, write {len(data) - begin} into the {width} bytes at {place}'
        )
    if end < len(data) and (_are_chunks(data, end, order) or _are_chunks(data, end + size % 2, order)):
        return data
    if end < len(data) and size:
        raise _damaged(
            f'its WAV header counts {size} bytes of sound, but from byte {end} on, {len(data) - end} bytes follow that '
            f'are not a chunk of a WAV. If they are sound, write the number of all of them, '
            f'{len(data) - begin}, into the {width} bytes at {place}; if not, remove them'
        )
    return data[:place] + (len(data) - begin).to_bytes(width, order) + data[place + width :]


def _are_chunks(data: bytes, at: int, order: Literal['little', 'big']) -> bool:
    """Whether a WAV has whole chunks from a byte on, tags or a few zeros, rather than more sound or another file."""
    while len(data) - at >= 8 and data[at : at + 4].isascii() and data[at : at + 4].decode().isprintable():
        if data.startswith((b'RIFF', b'RIFX', b'RF64', b'BW64'), at):
            return False
        if data.startswith((b'TAG', b'APETAGEX'), at):
            break
        size = int.from_bytes(data[at + 4 : at + 8], order)
        at += 8 + size + size % 2
    if at < len(data):
        return data.startswith((b'TAG', b'APETAGEX', b'ID3'), at) or (
            len(data) - at < _PADDING and not data[at:].strip(b'\0')
        )
    return at <= len(data) + 1


def _with_length(data: bytes) -> bytes:
    """An MP3 whose first frame says how many there are: libsndfile reads only as many as that says, or it guesses."""
    begin = count = 0
    while data[begin : begin + 3] == b'ID3':  # of tags there may be several
        begin += 10 + sum(byte << 7 * (3 - n) for n, byte in enumerate(data[begin + 6 : begin + 10]))
    at, told, first = begin, None, 0
    while (size := _mp3_frame(data[at : at + 4])) and at + size <= len(data):
        if not count and (told := _told_frames(data[at : at + size])) is not None:
            first = size
        at, count = at + size, count + 1
    if told is not None and count - 2 <= told:  # the frame that says so, and one that was cut
        return data
    is_cut = told is None and not size
    if is_cut and not data.startswith((b'TAG', b'ID3', b'APETAGEX', b'LYRICS'), at) and data[at:].strip(b'\0'):
        raise _damaged(f'its MP3 frames end at byte {at} of {len(data)}')
    if told is not None:  # too few, as in joined files: counted instead
        data, count = data[:begin] + data[begin + first :], count - 1
    if not count:
        return data
    # Without a checksum, and with the ninth rate of bits, whose frames have room.
    head = bytes([0xFF, data[begin + 1] | 1, 0x90 | data[begin + 2] & 0x0C, data[begin + 3]])
    lead = (9, 17, 32)[(head[1] & 0x18 == 0x18) + (head[3] < 0xC0)]  # MPEG 1; not mono
    told = head + bytes(lead) + b'Xing' + (1).to_bytes(4, 'big') + count.to_bytes(4, 'big')
    return data[:begin] + told.ljust(_mp3_frame(head), b'\0') + data[begin:]


def _told_frames(frame: bytes) -> int | None:
    """The number of frames that an MP3's first frame says, 0 if it leaves it open; None if it is sound itself."""
    for name, at in ((b'Xing', 8), (b'Info', 8), (b'VBRI', 14)):
        begin = frame.find(name)
        if begin >= 0:
            is_told = name == b'VBRI' or any(byte & 1 for byte in frame[begin + 7 : begin + 8])
            return int.from_bytes(frame[begin + at : begin + at + 4], 'big') if is_told else 0
    return None


def _refuse_other_ogg(data: bytes) -> None:
    """Refuse Ogg files one behind the other, of which libsndfile reads the first only, and those without an end."""
    at, has_begun, is_last = 0, False, False
    while data[at : at + 4] == b'OggS' and at + 27 <= len(data):
        is_first = bool(data[at + 5] & 2)
        if is_first and has_begun:
            raise _damaged(f'it is several Ogg files in one, and the second begins at byte {at}: split it there')
        has_begun, is_last = has_begun or not is_first, bool(data[at + 5] & 4)
        count = data[at + 26]
        at += 27 + count + sum(data[at + 27 : at + 27 + count])
    if not is_last or at > len(data):
        raise _damaged(
            'its last Ogg page is not there, so it was cut short. Restore it; or, to have what is there, write it '
            'again: ffmpeg -i IN -c copy OUT'
        )


def _mp3_frame(head: bytes) -> int:
    """Bytes of the frame that begins with these 4 bytes; 0: they begin no frame of MPEG layer 3."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2 or head[1] & 0x18 == 0x08:
        return 0
    bits, rate, version = head[2] >> 4, head[2] >> 2 & 3, head[1] >> 3 & 3
    if not 0 < bits < 15 or rate == 3:
        return 0
    hertz = _MP3_RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    kilobits, values = (_MPEG_1[bits], 1152) if version == 3 else (_MPEG_2[bits], 576)
    return kilobits * 125 * values // hertz + (head[2] >> 1 & 1)


def _mixed(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The mean of the channels of values [frames, channels], as [frames, 1]: a row for each of several others."""
    mean = values[:, :1].copy()
    for channel in range(1, values.shape[1]):  # numpy sums along a short axis slowly
        mean += values[:, channel : channel + 1]
    return mean if values.shape[1] == 1 else mean / values.shape[1]


def _damaged(reason: object) -> FormatError:
    reason = str(getattr(reason, 'error_string', reason)).rstrip('.')  # without the address of the bytes
    return FormatError(
        f'A value cannot be read as sound: {reason}. libsndfile reads WAV, FLAC, Ogg, MP3, AIFF and others, but no AAC '
        f'or M4A.'
    )
