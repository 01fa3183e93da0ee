"""The bitmap of a selection: worked out once per machine, kept from run to run, mapped by all processes.

A file of ``.headrace-selections`` is, all little-endian::

    'hrbitmap' | u32 version | u32 bytes of a count | u64 samples | u64 words

    | 16 bytes: digest of the selection's key | 16 bytes: digest of the rest and of the above

    | u64 word[words] | count[words + 1]

`order.row_selection.SelectedBits` explains words and counts. A file is valid if both digests are right. One process
makes it under the subfolder's lock, and the others wait in the kernel. A process that is killed leaves a temporary
file, which the next maker removes. Finished files stay until the subfolder is deleted. They cost an evaluation of
all samples, and less than 2 bits for each.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from headrace.order import SelectedBits, count_bits
from headrace.selection.kept_file import KeptFile
from headrace.storage.cache.control_folder import OpenFolder, publish

FOLDER: Final = '.headrace-selections'
_NAMES: Final = re.compile(r'[0-9a-f]{32}\.bits(\.tmp)?')
_MAGIC: Final = b'hrbitmap'
_VERSION: Final = 1
_HEAD: Final = struct.Struct('<8sIIQQ16s')
_DIGEST: Final = 16
_CHUNK: Final = 1 << 17  # words

Words = npt.NDArray[np.uint64]


class BitmapFile(KeptFile[tuple[SelectedBits, str]]):
    def __init__(self, folder: Path, key: str, sizes: npt.NDArray[np.int64]) -> None:
        """Touches no disk. `key`: the same key, the same bits; `sizes`: int64[shards], stored samples."""
        self._key = hashlib.blake2b(key.encode(), digest_size=16).digest()
        super().__init__(folder, FOLDER, _NAMES, f'{self._key.hex()}.bits')
        self._sizes = sizes
        self._samples = int(sizes.sum())
        self._words = self._samples // 64 + 1

    def load(self, fill: Callable[[npt.NDArray[np.uint8]], None]) -> tuple[SelectedBits, str]:
        """The bitmap and its digest. Unless one is sound, `fill` sets bit ``i % 8`` of byte ``i // 8`` for sample i."""

        def make(folder: OpenFolder) -> None:
            words = np.zeros(self._words, np.dtype('<u8'))
            fill(words.view(np.uint8))
            self._write(folder, words)

        return self.made(make)

    def restore(self, words: Words) -> None:
        """Write the file again if it was deleted while it was mapped, with its folder for instance."""
        try:
            with self._place.opened(only_read=True) as folder:
                folder.stat(self.name)
        except FileNotFoundError:
            self.load(lambda out: np.copyto(out, words.view(np.uint8)))

    def _write(self, folder: OpenFolder, words: Words) -> None:
        below = np.zeros(len(words) + 1, np.int64)
        for at in range(0, len(words), _CHUNK):
            counts = count_bits(words[at : at + _CHUNK])
            np.cumsum(counts, out=below[at + 1 : at + 1 + len(counts)])
            below[at + 1 : at + 1 + len(counts)] += below[at]
        if below[-1] < 1 << 32:
            below = below.astype('<u4')
        head = _HEAD.pack(_MAGIC, _VERSION, below.itemsize, self._samples, len(words), self._key)
        rest = [words.data.cast('B'), below.data.cast('B')]
        publish(folder, self.name, [head, _digest([head, *rest]), *rest])

    def _content(self, data: mmap.mmap) -> tuple[SelectedBits, str] | None:
        size, begin = len(data), _HEAD.size + _DIGEST
        if size < begin:
            return None
        magic, version, width, samples, count, key = _HEAD.unpack_from(data)
        expected = (_MAGIC, _VERSION, self._samples, self._words, self._key)
        if (magic, version, samples, count, key) != expected or width not in (4, 8):
            return None
        if size != begin + 8 * count + width * (count + 1):
            return None
        view = memoryview(data)
        digest = _digest([view[: _HEAD.size], view[begin:]])
        if digest != data[_HEAD.size : begin]:
            return None
        words = np.frombuffer(data, '<u8', count, begin)
        below = np.frombuffer(data, f'<u{width}', count + 1, begin + 8 * count)
        # The digest of the bits alone does not depend on where they were evaluated.
        return _MappedBits(self, words, below.view(np.int64) if width == 8 else below), _digest([words.data]).hex()


class _MappedBits(SelectedBits):
    """Bits that another process maps as well, instead of getting a copy."""

    def __init__(self, file: BitmapFile, words: Words, below: npt.NDArray[np.int64] | npt.NDArray[np.uint32]) -> None:
        super().__init__(file._sizes, words, below)
        self._file, self._mapped = file, words

    def __reduce__(self) -> tuple[Callable[[BitmapFile], SelectedBits], tuple[BitmapFile]]:
        self._file.restore(self._mapped)
        return _map_again, (self._file,)


def _map_again(file: BitmapFile) -> SelectedBits:
    return file.find_again()[0]


def _digest(parts: Sequence[Buffer]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()
