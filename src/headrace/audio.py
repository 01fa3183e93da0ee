"""Sound as tensors: `AudioTensor` for `decode` of a stream, and `open_clip` for a single clip."""

from headrace.tensors.audio import AudioTensor, Clip

__all__ = ['AudioTensor', 'Clip', 'open_clip']


def open_clip(data: bytes, audio: AudioTensor) -> Clip:
    """Open a clip without decoding it.

    Args:
        data: the bytes of a WAV, FLAC, Ogg or MP3 file, or of another that libsndfile reads.
        audio: what the tensor should be.

    Returns:
        The clip: `shape` is that of its tensor, and `read_into(out, None)` decodes it into such a float32 array.

    Raises:
        FormatError: it is damaged, has no samples or too many, or channels that do not mix.
        MissingDependencyError: soundfile or soxr is not installed.
    """
    return audio.open(data, 'bytes')
