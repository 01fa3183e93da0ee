"""Ready-made datasets: `streaming.text`, `.vision` and `.multimodal`."""

from __future__ import annotations

from headrace.compat.names import Absent, Entry, Tables, absent

__all__ = ['ABSENT_MODULES', 'TABLES']

_IMAGES = (
    'Use `StreamingDataset` on the same shards, and apply transforms in `__getitem__` of a subclass, as '
    'docs/mosaicml.md shows.'
)
_TEXT = (
    'Use `StreamingDataset` on the same shards, and tokenize in `__getitem__` of a subclass, as docs/mosaicml.md shows.'
)
_SCRIPTS = 'Scripts that prepare these datasets stay with MosaicML Streaming; the shards that they write can be read.'

_VISION: dict[str, dict[str, Entry]] = {
    'ade20k': absent(_IMAGES, 'StreamingADE20K'),
    'cifar10': absent(_IMAGES, 'StreamingCIFAR10'),
    'coco': absent(_IMAGES, 'StreamingCOCO'),
    'imagenet': absent(_IMAGES, 'StreamingImageNet'),
}
_TEXTS: dict[str, dict[str, Entry]] = {
    'c4': absent(_TEXT, 'StreamingC4'),
    'enwiki': absent(_TEXT, 'StreamingEnWiki'),
    'pile': absent(_TEXT, 'StreamingPile'),
}
_VIDEOS = absent(_IMAGES, 'StreamingInsideWebVid', 'StreamingOutsideDTWebVid', 'StreamingOutsideGIWebVid')


def _modules(folder: str, modules: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    together = {name: entry for entries in modules.values() for name, entry in entries.items()}
    return {f'streaming.{folder}': together, **{f'streaming.{folder}.{name}': modules[name] for name in modules}}


TABLES: Tables = {
    **_modules('text', _TEXTS),
    **_modules('vision', _VISION),
    'streaming.vision.base': absent(_IMAGES, 'StandardTransform', 'StreamingVisionDataset'),
    **_modules('multimodal', {'webvid': _VIDEOS}),
}

ABSENT_MODULES = {
    f'streaming.{folder}.convert': Absent('absent', _SCRIPTS) for folder in ('text', 'vision', 'multimodal')
}
