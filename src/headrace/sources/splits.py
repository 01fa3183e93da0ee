"""The splits of a listing and their parts, by the names of files.

The split ``train`` is a folder ``train/``. Or it is files such as ``train-00000-of-00007.parquet``, as on the Hub of
Hugging Face, or with ``train`` between other separators: ``imagenet-train-000000.tar``. Letters after a ``_`` belong to
the name: ``train_sft`` is another split than ``train``. But ``train_data.csv`` is of ``train`` if no other file is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from headrace.errors import EmptyDatasetError, StreamError
from headrace.sources.formats import folder_of, name_of
from headrace.storage import ObjectInfo

_ROLES: Final = {
    'train': 'train',
    'training': 'train',
    'val': 'validation',
    'valid': 'validation',
    'validation': 'validation',
    'dev': 'validation',
    'test': 'test',
    'testing': 'test',
    'eval': 'evaluation',
    'evaluation': 'evaluation',
}
"""Words that name a split, and what for."""
_NO_LETTER: Final = r'(?<![^\W\d_])'
_NAME: Final = re.compile(rf'{_NO_LETTER}({"|".join(_ROLES)})(?:_[^\W\d_]+)*(?![^\W\d_])', re.IGNORECASE)
_PLAIN: Final = r'(?:data|datasets?|files?|sets?|splits?|parts?|shards?|chunks?|batch(?:es)?|samples?|v(?=\d))'
"""Words that say nothing of a split, behind its name and a ``_``."""
_PART: Final = re.compile(
    r'(?P<label>.*?)[-._ ]?(?P<number>\d+)-of-(?P<count>\d+)(-[0-9a-f]{6,})?(?P<rest>.*)', re.DOTALL
)
"""Such as ``train-00000-of-00007-0123456789abcdef.parquet``."""
_PACKED: Final = re.compile(r'\.(gz|zst|zstd|bz2)$')
_MOST: Final = 1_000_000  # Missing parts that are looked at.
_SHOWN: Final = 5


def splits_of(objects: Sequence[ObjectInfo]) -> list[str]:
    """The names of the splits among the objects of a dataset, empty if all are of one split or of none."""
    names: dict[str, str] = {}
    parts: dict[str, set[str]] = defaultdict(set)
    for info in objects:
        folder, name = folder_of(info.key), name_of(info.key)
        role = next((part_name for part_name in folder.split('/') if part_name.lower() in _ROLES), '')
        part = _PART.fullmatch(name)
        match = _NAME.search(role or (part['label'] if part else name))
        if part and part['label'] and not role:
            parts[folder].add(match[0] if match else part['label'])
        match = match or _NAME.search(folder)
        if match:
            names[match[0]] = _ROLES[match[1].lower()]
    # Beside a split of such a name, all files of such names are splits.
    beside = {name for labels in parts.values() if len(labels) > 1 and labels & {*names} for name in labels}
    return sorted({*names, *beside}) if len({*names.values()}) > 1 or beside else []


def choose_split(objects: Sequence[ObjectInfo], split: str, place: str) -> list[ObjectInfo]:
    """The objects of a split: those of its folder, else parts such as ``train-00000-of-00007``, else the rest."""
    name = re.escape(split.strip('/'))
    between = rf'(.*{_NO_LETTER})?{name}(?!_?[^\W\d_])'
    plain = rf'(.*{_NO_LETTER})?{name}_{_PLAIN}(?!_?[^\W\d_])'
    for pattern in (rf'{name}/', rf'(.*/)?{name}-\d+-of-\d+', between, plain):
        chosen = [info for info in objects if re.match(pattern, info.key)]
        if chosen:
            return chosen
    some = ', '.join(info.key for info in objects[:3]) + ', ...' * (len(objects) > 3)
    splits = splits_of(objects)
    has = f'the splits {", ".join(splits)}' if splits else f'the files {some}'
    raise EmptyDatasetError(
        f'The files of split {split!r} are in its folder, or have its name, but {place} has {has}. Correct `split`, or '
        f'name the files with a glob in `remote`.'
    )


def check_split(objects: Sequence[ObjectInfo], split: str | None, place: str) -> None:
    """Refuse objects of several splits, unless `split` names one."""
    if not (split and _NAME.search(split)) and (splits := splits_of(objects)):
        example = 'train' if 'train' in splits else splits[0]
        raise StreamError(
            f'A stream reads one split, but {place} has several: {", ".join(splits)}. Choose one, such as '
            f'`split={example!r}`. To read all of them as one, name the files with a glob in `remote`.'
        )


def check_parts(objects: Sequence[ObjectInfo], place: str, is_wanted: Callable[[str], object]) -> None:
    """Refuse parts such as ``train-00001-of-00003`` if others of the same number are missing.

    `is_wanted`: whether an object of this name would be read.
    """
    sets: dict[tuple[str, str, str], dict[int, re.Match[str]]] = {}
    listed = {folder_of(info.key) for info in objects if name_of(info.key) == 'state.json'}  # which names its parts
    for info in objects:
        folder, name = folder_of(info.key), name_of(info.key)
        part = _PART.fullmatch(name)
        if part is None or folder in listed:
            continue
        same = sets.setdefault((folder, part['label'], part['rest']), {})
        other = same.setdefault(int(part['number']), part)
        first = next(iter(same.values()))
        if other is not part or int(first['count']) != int(part['count']):
            both = sorted((name, other[0] if other is not part else first[0]))
            raise StreamError(
                f'Parts of a dataset are of one number, and each is there once, but {place} has {" and ".join(both)}. '
                f'Remove the old files, or name the files to read with a glob in `remote`.'
            )
    for (folder, _, _), same in sets.items():
        example = next(iter(same.values()))
        count = int(example['count'])
        begin = int(0 not in same and count in same)  # some count from 1
        lacks = (number for number in range(begin, min(begin + count, _MOST)) if number not in same)
        width, begin_of_name = len(example['number']), f'{folder}/{example[0][: example.start("number")]}'.lstrip('/')
        names = (f'{begin_of_name}{number:0{width}}-of-{example["count"]}{example["rest"]}' for number in lacks)
        missing = list(islice(filter(is_wanted, names), _SHOWN + 1))
        if missing:
            more = ' and more' * (len(missing) > _SHOWN)
            raise StreamError(
                f'All {count} parts of a dataset are read, but {place} has {len(same)} of them. Missing are '
                f'{", ".join(missing[:_SHOWN])}{more}. Fetch them, or name the files to read with a glob in `remote` '
                f'that leaves the missing ones out.'
            )


def check_once(objects: Sequence[ObjectInfo], place: str) -> None:
    """Refuse a file beside itself in another compression, such as ``a.jsonl`` beside ``a.jsonl.gz``."""
    first: dict[str, str] = {}
    for info in objects:
        other = first.setdefault(_PACKED.sub('', re.sub(r'\.tgz$', '.tar', info.key)), info.key)
        if other != info.key:
            raise StreamError(
                f'A file is read once, but {place} has {other} and {info.key}, which differ in their compression only. '
                f'Remove one of them, or name the files to read with a glob in `remote`, such as '
                f'*{PurePosixPath(other).suffix}.'
            )
