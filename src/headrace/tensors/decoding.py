"""The columns of a stream that are read as tensors: settings of Python and YAML, and the columns that they name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from headrace.errors import StreamError
from headrace.format import Schema
from headrace.selection import Mistake
from headrace.selection.predicate import read_given
from headrace.tensors.audio import AudioTensor
from headrace.tensors.images import ImageTensor

TensorSettings: TypeAlias = ImageTensor | AudioTensor  # settings of one column

_TENSOR: Final = 'tensor'
_IMAGES: Final = ImageTensor.encodings - {'bytes'}  # those of columns that are read as tensors without being named
_RULE: Final = (
    "must be 'tensor' or an ImageTensor for all columns of images, or a mapping from columns to these or to an "
    'AudioTensor; a mapping of the keys of ImageTensor or AudioTensor stands for one'
)
_AUDIO_RULE: Final = "needs the name of its column, such as {'audio': {'sample_rate': 16000, 'seconds': 10}}"

Asked: TypeAlias = TensorSettings | Literal['tensor'] | Mapping[str, Any]
"""Settings of one column, as users give them; a mapping has keys of ImageTensor or AudioTensor."""


@dataclass(frozen=True)
class TensorColumn:
    name: str
    encoding: str
    settings: TensorSettings


@dataclass(frozen=True)
class TensorColumns:
    columns: Sequence[TensorColumn]
    as_bytes: Schema  # The schema for a reader, whose values of these columns are the stored bytes.


@dataclass(frozen=True)
class Decode:
    """The columns of a stream that are read as tensors."""

    every: ImageTensor | None  # for all columns of images; None: only those of `named`
    named: tuple[tuple[str, TensorSettings], ...] = ()  # columns by name

    @classmethod
    def read(cls, raw: object, mistakes: list[Mistake]) -> Decode | None:
        """The value of an argument or a key `decode`; None if there are mistakes, which are added."""
        if isinstance(raw, Decode):
            return raw
        if isinstance(raw, Mapping) and raw and not _is_settings(cast('Mapping[Any, Any]', raw)):
            before = len(mistakes)
            named: list[tuple[str, TensorSettings]] = []
            for name, value in cast('Mapping[Any, Any]', raw).items():
                inside: list[Mistake] = []
                settings = _settings(value, inside)
                if not isinstance(name, str):
                    mistakes.append(Mistake((), name, 'must be the name of a column: quote it'))
                elif settings is not None:
                    named.append((name, settings))
                mistakes += [mistake._replace(path=(str(name), *mistake.path)) for mistake in inside]
            return cls(None, tuple(named)) if len(mistakes) == before else None
        settings = _settings(raw, mistakes)
        if raw == {}:
            mistakes.append(Mistake((), raw, _RULE))
        if isinstance(settings, AudioTensor):
            mistakes.append(Mistake((), raw, _AUDIO_RULE))
            return None
        return None if settings is None or mistakes else cls(settings)

    @classmethod
    def of(cls, raw: object) -> Decode | None:
        """The same for a value given in Python; None: nothing is read as a tensor."""
        return read_given('decode', raw, cls.read, StreamError)

    @property
    def plain(self) -> str | dict[str, Any]:
        return {name: _plain(settings) for name, settings in self.named} if self.every is None else _plain(self.every)

    def columns(
        self, stored: Mapping[str, str], read: Sequence[str] | None, title: str
    ) -> Mapping[str, TensorSettings]:
        """The columns of a shard that are read as tensors; StreamError: a named one cannot be."""
        stored = {name: encoding for name, encoding in stored.items() if read is None or name in read}
        if self.every is not None:
            images = {name: self.every for name, encoding in stored.items() if encoding in _IMAGES}
            if not images:
                raise StreamError(
                    f'`decode` asks for images as tensors, but {title} has no column of images to read: '
                    f'{_listed(stored)}. Give `decode` to the streams that have, or name a column of encoding `bytes`.'
                )
            return images
        for name, settings in self.named:
            if name not in stored:
                nearest = difflib.get_close_matches(name, stored, n=1)
                meant = f' Did you mean {nearest[0]!r}?' if nearest else ''
                raise StreamError(
                    f'`decode` names the column {name!r}, but {title} has the columns to read {_listed(stored)}.{meant}'
                )
            if stored[name] not in settings.encodings:
                encodings = sorted(settings.encodings)
                raise StreamError(
                    f'`decode` makes an {type(settings).__name__} of the encoding{"s" * (len(encodings) > 1)} '
                    f'{", ".join(encodings)}, but column {name!r} of {title} is `{stored[name]}`.'
                )
        return dict(self.named)

    def columns_of(self, schema: Schema, read: Sequence[str] | None, title: str) -> TensorColumns:
        """The same, with the schema of a reader that leaves them as they are stored."""
        tensors = self.columns(schema.columns, read, title)
        columns = [TensorColumn(name, schema.columns[name], settings) for name, settings in tensors.items()]
        encodings = tuple('bytes' if name in tensors else encoding for name, encoding in schema.columns.items())
        return TensorColumns(columns, dataclasses.replace(schema, encodings=encodings))


DecodeLike: TypeAlias = Decode | Asked | Mapping[str, Asked]  # settings of a stream's columns, as users give them


def _is_settings(raw: Mapping[Any, Any]) -> bool:
    """Whether a mapping has keys of settings, rather than columns: a column may have the name of a key."""
    return set(raw) <= _KEYS[ImageTensor] | _KEYS[AudioTensor] and not any(
        value == _TENSOR or isinstance(value, (Mapping, ImageTensor, AudioTensor)) for value in raw.values()
    )


def _settings(raw: object, mistakes: list[Mistake]) -> TensorSettings | None:
    if isinstance(raw, (ImageTensor, AudioTensor)):
        return raw
    if raw == _TENSOR:
        return ImageTensor()
    if not isinstance(raw, Mapping):
        mistakes.append(Mistake((), raw, _RULE))
        return None
    given = cast('Mapping[Any, Any]', raw)
    before, every = len(mistakes), _KEYS[ImageTensor] | _KEYS[AudioTensor]
    nearest = {key: (difflib.get_close_matches(str(key), every, n=1) or [''])[0] for key in given}
    kind = AudioTensor if _KEYS[AudioTensor] - _KEYS[ImageTensor] & {*nearest.values()} else ImageTensor
    for key, value in given.items():
        if key not in _KEYS[kind]:
            meant = f'; did you mean {nearest[key]}?' if nearest[key] in _KEYS[kind] else ''
            rule = f'is no key of {kind.__name__}, which has {", ".join(sorted(_KEYS[kind]))}{meant}'
            mistakes.append(Mistake((str(key),), value, rule))
    if len(mistakes) == before:
        # Without raising, to have all mistakes with their keys.
        made = object.__new__(kind)
        for field in dataclasses.fields(kind):
            default = None if field.default is dataclasses.MISSING else field.default
            object.__setattr__(made, field.name, given.get(field.name, default))
        mistakes += (of_settings := made.mistakes())
        if not of_settings:
            return made
    return None


def _plain(settings: TensorSettings) -> str | dict[str, Any]:
    values = {field.name: (getattr(settings, field.name), field.default) for field in dataclasses.fields(settings)}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()} or _TENSOR


def _listed(stored: Mapping[str, str]) -> str:
    shown = [f'{name}: {encoding}' for name, encoding in stored.items()][:16]
    return ', '.join(shown) + (', …' if len(stored) > len(shown) else '')


_KEYS: Final = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (ImageTensor, AudioTensor)}
