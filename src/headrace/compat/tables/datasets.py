"""Ready-made datasets: `streaming.text`, `.vision` and `.multimodal`."""

from __future__ import annotations

from headrace.compat.names import Absent, Entry, Tables, absent, alias

__all__ = ['ABSENT_MODULES', 'TABLES']

_TEXT = (
    'Use `StreamingDataset` on the same shards, and tokenize in `__getitem__` of a subclass, as docs/mosaicml.md shows.'
)
_SCRIPTS = 'Scripts that prepare these datasets stay with MosaicML Streaming; the shards that they write can be read.'

_NO_VISION_DATASET = "Not a subclass of torchvision's `VisionDataset`; torchvision need not be installed."
_AHEAD = 'The videos of a next batch are fetched ahead under `StreamingDataLoader` only.'
_MAIN = 'Takes the arguments of the command line as a list; None: those of the process.'

_VISION: dict[str, dict[str, Entry]] = {
    'ade20k': alias('headrace.vision.ade20k', 'StreamingADE20K'),
    'cifar10': alias('headrace.vision.cifar10', 'StreamingCIFAR10', difference=_NO_VISION_DATASET),
    'coco': alias('headrace.vision.coco', 'StreamingCOCO'),
    'imagenet': alias('headrace.vision.imagenet', 'StreamingImageNet', difference=_NO_VISION_DATASET),
}
_TEXTS: dict[str, dict[str, Entry]] = {
    'c4': absent(_TEXT, 'StreamingC4'),
    'enwiki': absent(_TEXT, 'StreamingEnWiki'),
    'pile': absent(_TEXT, 'StreamingPile'),
}
_VIDEOS: dict[str, Entry] = {
    **alias('headrace.multimodal.webvid', 'StreamingInsideWebVid'),
    **alias('headrace.multimodal.webvid', 'StreamingOutsideDTWebVid', difference=_AHEAD),
    **alias('headrace.multimodal.webvid', 'StreamingOutsideGIWebVid'),
}


def _modules(folder: str, modules: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    together = {name: entry for entries in modules.values() for name, entry in entries.items()}
    return {f'streaming.{folder}': together, **{f'streaming.{folder}.{name}': modules[name] for name in modules}}


TABLES: Tables = {
    **_modules('text', _TEXTS),
    **_modules('vision', _VISION),
    'streaming.vision.base': {
        **alias('headrace.vision.vision_dataset', 'StandardTransform'),
        **alias('headrace.vision.vision_dataset', 'StreamingVisionDataset', difference=_NO_VISION_DATASET),
    },
    'streaming.vision.convert': {},
    **{
        f'streaming.vision.convert.{name}': alias(f'headrace.vision.convert.{name}', 'main', difference=_MAIN)
        for name in ('ade20k', 'cifar10', 'coco', 'imagenet')
    },
    **_modules('multimodal', {'webvid': _VIDEOS}),
    'streaming.multimodal.convert': {},
    'streaming.multimodal.convert.webvid': {},
    **{
        f'streaming.multimodal.convert.webvid.{name}': alias(
            f'headrace.multimodal.convert.webvid.{name}', 'main', difference=_MAIN
        )
        for name in ('crawl_webvid', 'extract_webvid_videos')
    },
}

ABSENT_MODULES = {
    'streaming.text.convert': Absent('absent', _SCRIPTS),
    'streaming.multimodal.convert.laion': Absent('absent', _SCRIPTS),
    'streaming.multimodal.convert.webvid.crawl_webvid_subsets': Absent(
        'absent', 'Write the rows of each subset to a table of its own, and convert each table.'
    ),
}
