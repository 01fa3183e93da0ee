"""Converters of known datasets of several media. Each module has the description `ORIGINAL`, and is a program.

The descriptions are here. Their import loads no numpy.
"""

from __future__ import annotations

from typing import Final

from headrace.originals import Option, Original, flag

__all__ = ['LAION400M', 'WEBVID', 'WEBVID_OUTSIDE']

LAION400M: Final = Original(
    'laion400m',
    "LAION-400M: Parquet files with URL and TEXT, whose images are downloaded; or img2dataset's with the images",
    'headrace.multimodal.convert.laion400m',
    options=(
        Option('user_agent', str, None, 'tells servers who downloads, and how to reach them'),
        Option(
            'resize', int, None, 'pixels of the shorter side of larger images; by default files are kept as they are'
        ),
        Option('connections', int, 32, 'requests of each process at the same time'),
        Option('per_host', int, 2, 'of them, to one host'),
        Option('seconds', float, 10.0, 'for one request'),
        Option('max_bytes', int, 16 << 20, 'bytes of an image file'),
        Option('private_hosts', flag, default=False, help='1 to ask addresses that are not public'),
    ),
    reader='StreamingLAION',
)
"""LAION-400M."""

WEBVID: Final = Original(
    'webvid',
    'WebVid: a table such as results_2M_train.csv, and the videos beside it as videos/PAGE_DIR/VIDEOID.mp4',
    'headrace.multimodal.convert.webvid.crawl_webvid',
    options=(
        Option('videos', str, None, 'folder of the videos; by default `videos` beside the table'),
        Option('inside', flag, True, '1 to put the videos into the shards; 0 to put their paths there'),
        Option('out_mp4', str, None, 'with --inside 0: folder or URL to copy the videos to; by default they stay'),
        Option('validate', flag, True, '1 to read each video through, so that a broken one is left out; 0 to trust'),
    ),
)
"""WebVid."""

WEBVID_OUTSIDE: Final = Original(
    'webvid-outside',
    'WebVid with videos inside of MDS shards: the same with videos as files outside',
    'headrace.multimodal.convert.webvid.extract_webvid_videos',
    options=(Option('out_mp4', str, None, 'folder or URL of the videos'),),
    size_limit=1 << 25,
    reader='StreamingOutsideGIWebVid',
    example='--out-mp4 videos',
)
"""WebVid, videos moved out of the shards."""
