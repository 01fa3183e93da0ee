"""Image columns keep the files that they are given, and say once what they encode again."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest

from headrace.format import mds_decode, mds_encode
from headrace.format.encodings import encoding
from tests.support.formats.pictures import of_16_bits

Image = pytest.importorskip('PIL.Image')


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of a test; each text comes once."""
    said: list[str] = []
    monkeypatch.setattr(encoding, 'warn', said.append)
    encoding.warn_once.cache_clear()
    return said


def file_of(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    out = io.BytesIO()
    options = {'quality': 91} if kind == 'jpeg' else {'compress_level': 0}
    Image.radial_gradient('L').resize(size).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize('kind', ['jpeg', 'png'])
def test_files_are_kept(tmp_path: Path, kind: str, nothing_said: list[str]) -> None:
    data, path = file_of(kind), tmp_path / 'image'
    path.write_bytes(data)
    loaded = Image.open(path)
    loaded.load()
    values: list[Any] = [data, bytearray(data), memoryview(data), path, str(path), Image.open(path), loaded]
    values.append(Image.open(io.BytesIO(data)))
    for value in values:
        assert mds_encode(kind, value) == data
        assert mds_encode(f'list[{kind}]', [value])[12:] == data
    assert mds_decode(kind, mds_encode(kind, path)).size == (40, 30)
    assert nothing_said == []


@pytest.mark.parametrize(('kind', 'message'), [('jpeg', 'a JPEG of quality 75, which loses'), ('png', 'loses nothing')])
def test_images_without_their_file_are_said_once(
    tmp_path: Path, kind: str, message: str, nothing_said: list[str]
) -> None:
    path = tmp_path / 'image'
    path.write_bytes(file_of(kind))
    smaller, grey = Image.open(path), Image.open(path).convert('RGB')
    smaller.thumbnail((10, 10))
    for image in (smaller, grey, Image.new('L', (3, 2))):
        assert mds_decode(kind, mds_encode(kind, image)).size == image.size
    (said,) = nothing_said
    assert message in said


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / 'image.png'
    path.write_bytes(file_of('png'))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        with pytest.raises(ValueError, match='holds JPEG files, but .*image.png.* is none'):
            mds_encode('jpeg', path)
        with pytest.raises(ValueError, match='cannot be read: .*No such file'):
            mds_encode('jpeg', tmp_path / 'missing.jpg')


@pytest.mark.parametrize(('mode', 'warned'), [('RGB', True), ('RGBA', True), ('LA', True), ('L', False)])
def test_colours_of_16_bits_are_said_to_be_cut(mode: str, warned: bool, nothing_said: list[str]) -> None:
    image = mds_decode('png', of_16_bits('PNG', mode))
    assert warned == any('of which Pillow keeps 8' in text for text in nothing_said)
    assert warned or image.getpixel((0, 0)) == 40_000
