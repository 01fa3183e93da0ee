"""Small originals of WebVid, in the layout of their owners, with broken members."""

from __future__ import annotations

import csv
from io import BytesIO
from pathlib import Path

import numpy as np

__all__ = ['HEADER', 'make_webvid', 'video']

HEADER = ['videoid', 'contentUrl', 'duration', 'page_dir', 'name']


def video(number: int, *, frames: int = 6, width: int = 32, height: int = 16) -> bytes:
    """A video whose frame k has pixels of about 20 k + number."""
    import av

    out = BytesIO()
    with av.open(out, 'w', format='mp4') as container:
        stream = container.add_stream('mpeg4', rate=5)
        stream.width, stream.height, stream.pix_fmt = width, height, 'yuv420p'
        for k in range(frames):
            pixels = np.full((height, width, 3), 20 * k + number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format='rgb24')))
        container.mux(stream.encode())
    return out.getvalue()


def make_webvid(root: Path, *, rows: int = 12, different: int = 3, broken: bool = True) -> tuple[int, list[str]]:
    """``results_2M_train.csv`` with the videos; returns the number of good rows, and the names of broken ones."""
    videos = [video(number) for number in range(different)]
    table: list[list[str]] = []
    for number in range(rows):
        page = f'{number // 5:06}_{number // 5 + 1:06}'
        path = root / 'videos' / page / f'{1000 + number}.mp4'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(videos[number % different])
        url = f'https://example.org/{1000 + number}.mp4'
        table.append([f'{1000 + number}', url, 'PT00H01M03S', page, f'A "calm" river, number {number}'])
    names: list[str] = []
    if broken:
        page = '000000_000001'
        # Cut off at the end, where the table of frames is; and of data that are no video.
        for name, data in (('cut', videos[0][:-300]), ('text', b'no video' * 9), ('empty', b'')):
            (root / 'videos' / page / f'{name}.mp4').write_bytes(data)
            table.append([name, 'url', 'PT00H00M01S', page, name])
        table += [['gone', 'url', 'PT00H00M01S', page, 'gone'], ['1001', 'url', '63 seconds', page, 'odd']]
        table += [['../secret', 'url', 'PT00H00M01S', '.', 'outside'], ['1002', 'url', 'PT00H00M01S', page]]
        (root / 'secret.mp4').write_bytes(videos[0])
        first = rows + 2
        ids = ['cut', 'text', 'empty', 'gone', '1001', '../secret', '1002']
        names = sorted(f'line {first + place}, video {name}' for place, name in enumerate(ids))
    with open(root / 'results_2M_train.csv', 'w', newline='') as file:
        csv.writer(file).writerows([HEADER, *table])
    return rows, names
