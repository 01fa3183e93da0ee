"""The known datasets: one description each. Their import loads no numpy."""

from __future__ import annotations

from typing import Final

from headrace.originals.original import Option, Original, flag, pixels

_VALIDATE: Final = Option(
    'validate', flag, True, '1 to read each image through, so that a broken one is left out; 0 to trust'
)
_SHUFFLE: Final = Option(
    'shuffle', flag, True, '1 to write the records in a fixed shuffled order; 0 to keep that of the files'
)

ADE20K: Final = Original(
    'ade20k',
    'ADE20K (scene parsing): the folders images and annotations of ADEChallengeData2016',
    'headrace.originals.images:ade20k_records',
    splits=('train', 'val'),
    options=(_VALIDATE, _SHUFFLE),
    size_limit=1 << 22,
    reader='StreamingADE20K',
)
C4: Final = Original(
    'c4',
    'C4: c4-train.*.json.gz and c4-validation.*.json.gz',
    'headrace.originals.texts:c4_records',
    splits=('train', 'val'),
    size_limit=1 << 27,
)
CIFAR10: Final = Original(
    'cifar10',
    'CIFAR-10: cifar-10-python.tar.gz, or its folder cifar-10-batches-py',
    'headrace.originals.cifar10:cifar10_records',
    splits=('train', 'val'),
    size_limit=1 << 20,
    reader='StreamingCIFAR10',
)
COCO: Final = Original(
    'coco',
    'COCO (detection): annotations/instances_train2017.json and the images in train2017; for val likewise',
    'headrace.originals.images:coco_records',
    splits=('train', 'val'),
    options=(_VALIDATE, _SHUFFLE, Option('year', int, 2017, 'year in the names of folders and annotations')),
    size_limit=1 << 25,
    reader='StreamingCOCO',
)
ENWIKI: Final = Original(
    'enwiki',
    'English Wikipedia: a dump enwiki-*-pages-articles*.xml.bz2',
    'headrace.originals.enwiki:enwiki_records',
    reader='StreamingEnWiki',
)
IMAGENET: Final = Original(
    'imagenet',
    'ImageNet (ILSVRC 2012): folders train/CLASS and val/CLASS, or the tars of the distribution with its devkit',
    'headrace.originals.imagenet:imagenet_records',
    splits=('train', 'val'),
    options=(
        _VALIDATE,
        Option('resize', pixels, None, 'pixels of the shorter side at most; larger images are encoded anew as JPEG'),
        Option('quality', int, 95, 'quality of JPEGs that --resize encodes, 1 to 100'),
        _SHUFFLE,
    ),
    reader='StreamingImageNet',
)
LAION400M: Final = Original(
    'laion400m',
    "LAION-400M: Parquet files with URL and TEXT, whose images are downloaded; or img2dataset's with the images",
    'headrace.originals.laion:laion_records',
    options=(
        Option('user_agent', str, None, 'tells servers who downloads, and how to reach them'),
        Option(
            'resize', int, None, 'pixels of the shorter side of larger images; by default files are kept as they are'
        ),
        Option('connections', int, 32, 'requests of each process at the same time'),
        Option('per_host', int, 2, 'of them, to one host'),
        Option('seconds', float, 10.0, 'for one request'),
        Option('max_bytes', int, 16 << 20, 'bytes of an image file'),
        Option('private_hosts', flag, False, '1 to ask addresses that are not public'),
    ),
    reader='StreamingLAION',
)
PILE: Final = Original(
    'pile',
    'the Pile: train/*.jsonl.zst, val.jsonl.zst and test.jsonl.zst',
    'headrace.originals.texts:pile_records',
    splits=('train', 'val', 'test'),
    size_limit=1 << 27,
)
WEBVID: Final = Original(
    'webvid',
    'WebVid: a table such as results_2M_train.csv, and the videos beside it as videos/PAGE_DIR/VIDEOID.mp4',
    'headrace.originals.webvid:webvid_records',
    options=(
        Option('videos', str, None, 'folder of the videos; by default `videos` beside the table'),
        Option('inside', flag, True, '1 to put the videos into the shards; 0 to put their paths there'),
        Option('out_mp4', str, None, 'with --inside 0: folder or URL to copy the videos to; by default they stay'),
        Option('validate', flag, True, '1 to read each video through, so that a broken one is left out; 0 to trust'),
    ),
)
WEBVID_OUTSIDE: Final = Original(
    'webvid-outside',
    'WebVid with videos inside of MDS shards: the same with videos as files outside',
    'headrace.originals.webvid:outside_records',
    options=(Option('out_mp4', str, None, 'folder or URL of the videos'),),
    size_limit=1 << 25,
    reader='StreamingOutsideGIWebVid',
    example='--out-mp4 videos',
)

ORIGINALS: Final = {
    original.name: original
    for original in (ADE20K, C4, CIFAR10, COCO, ENWIKI, IMAGENET, LAION400M, PILE, WEBVID, WEBVID_OUTSIDE)
}
"""All of them, by name."""
