"""Ready-made datasets: `streaming.text`, `.vision` and `.multimodal`."""

from __future__ import annotations

from headrace.compat.names import Absent, Entry, Tables, alias

__all__ = ['ABSENT_MODULES', 'TABLES']

_TOKENS = (
    'Samples are arrays of int64, not lists in a `BatchEncoding`. `group_method` may also be `best_fit` or '
    '`concatenate`, which pack.'
)
_BERT = 'Unused places of masked tokens have no label; MosaicML Streaming gives token 0 the label 0 for them.'
_ARTICLES = (
    'Use `headrace convert enwiki`, which reads dumps of Wikipedia, or `headrace convert` for other texts. Shards that '
    "MosaicML Streaming's scripts write can be read."
)

_NO_VISION_DATASET = "Not a subclass of torchvision's `VisionDataset`; torchvision need not be installed."
_AHEAD = 'The videos of a next batch are fetched ahead under `StreamingDataLoader` only.'
_MAIN = 'Takes the arguments of the command line as a list; None: those of the process.'

_VISION: dict[str, dict[str, Entry]] = {
    'ade20k': alias('headrace.vision', 'StreamingADE20K'),
    'cifar10': alias('headrace.vision', 'StreamingCIFAR10', difference=_NO_VISION_DATASET),
    'coco': alias('headrace.vision', 'StreamingCOCO'),
    'imagenet': alias('headrace.vision', 'StreamingImageNet', difference=_NO_VISION_DATASET),
}
_TEXTS: dict[str, dict[str, Entry]] = {
    'c4': alias('headrace.text', 'StreamingC4', difference=_TOKENS),
    'enwiki': alias('headrace.text', 'StreamingEnWiki', difference=_BERT),
    'pile': alias('headrace.text', 'StreamingPile', difference=_TOKENS),
}
_VIDEOS: dict[str, Entry] = {
    **alias('headrace.multimodal', 'StreamingInsideWebVid'),
    **alias('headrace.multimodal', 'StreamingOutsideDTWebVid', difference=_AHEAD),
    **alias('headrace.multimodal', 'StreamingOutsideGIWebVid'),
}


def _modules(folder: str, modules: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    together = {name: entry for entries in modules.values() for name, entry in entries.items()}
    return {f'streaming.{folder}': together, **{f'streaming.{folder}.{name}': modules[name] for name in modules}}


TABLES: Tables = {
    **_modules('text', _TEXTS),
    **_modules('vision', _VISION),
    'streaming.vision.base': {
        **alias('headrace.vision', 'StandardTransform'),
        **alias('headrace.vision', 'StreamingVisionDataset', difference=_NO_VISION_DATASET),
    },
    'streaming.text.convert': {},
    **{
        f'streaming.text.convert.{name}': alias(f'headrace.text.convert.{name}', 'main', difference=_MAIN)
        for name in ('c4', 'pile')
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
    'streaming.text.convert.enwiki': Absent('absent', _ARTICLES),
    'streaming.text.convert.enwiki_text': Absent('absent', _ARTICLES),
    'streaming.multimodal.convert.laion': Absent('absent', 'Use `headrace convert laion400m`, which also downloads.'),
    'streaming.multimodal.convert.webvid.crawl_webvid_subsets': Absent(
        'absent', 'Write the rows of each subset to a table of its own, and convert each table.'
    ),
}
