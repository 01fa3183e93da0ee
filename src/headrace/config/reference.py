"""The reference of a configuration, from the dataclasses.

``python -m headrace.config.reference`` writes the tables of ``docs/configuration.md``. `json_schema` is the schema with
which editors complete keys and underline mistakes: keys, types, bounds and choices. The rules between keys are only in
`load_config`. Every value may also be an interpolation, such as ``${oc.env:BUCKET}``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from headrace.config import packing, schema
from headrace.config.schema import Config, FileDirectives
from headrace.options import dataset, streams
from headrace.options.constraints import (
    AtLeast,
    Bytes,
    Count,
    MoreThan,
    Named,
    Parsed,
    all_field_texts,
    choices_of,
    field_texts,
    field_types,
    unwrap,
)
from headrace.packing import settings

_TABLES = {
    'top level': (schema.Config, schema.FileDirectives),
    'loader': (schema.LoaderConfig, schema.DatasetConfig, dataset.DatasetOptions),
    'stream': (schema.StreamConfig, streams.StreamOptions),
    'schedule': (schema.SchedulePointConfig,),
    'selection': (streams.SelectionConfig,),
    'transfer': (streams.TransferConfig,),
    'packing': (packing.PackingConfig, settings.PackingOptions, settings.DocumentOptions),
    'tokenizer': (packing.TokenizerConfig,),
    'workers': (schema.WorkerConfig,),
}
"""Classes of each table; it lists the fields that they define themselves, in this order."""
_MOST_CHOICES = 8  # the text of a key with more says where they are listed


def updated(page: str) -> str:
    """The page with each table between ``<!-- table: name -->`` and ``<!-- end -->`` rewritten."""
    for name, classes in _TABLES.items():
        start, end = f'<!-- table: {name} -->\n', '<!-- end -->'
        before, _, rest = page.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f'the page has no table between {start.strip()} and {end}')
        page = f'{before}{start}{_table(classes)}{end}{after}'
    return page


def _table(classes: tuple[type, ...]) -> str:
    lines, keys = ['| key | value | meaning |', '|---|---|---|'], set[str]()
    for cls in classes:
        hints = field_types(cls)
        fields = dataclasses.fields(cls)
        defaults = {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}
        for key, text in field_texts(cls).items():
            if key in keys:  # a class of YAML says it in its own words
                continue
            keys.add(key)
            lines.append(f'| `{key}` | {_kind(hints[key])} | {text}{_default(defaults[key])} |')
    return '\n'.join(lines) + '\n'


def _kind(hint: Any) -> str:
    hint, constraint = unwrap(hint)
    if isinstance(constraint, Named):
        single = f'{constraint.what}, or ' if constraint.or_single else ''
        return f'{single}{constraint.what}s by name'
    if isinstance(constraint, Parsed):
        return constraint.what
    if choices := choices_of(hint, constraint):
        return ', '.join(f'`{choice}`' for choice in choices) if len(choices) <= _MOST_CHOICES else 'name'
    if hint in (int, float) or isinstance(constraint, Count | Bytes):
        return _number(hint, constraint)
    if dataclasses.is_dataclass(hint) or get_origin(hint) is Mapping:
        return 'mapping'
    if get_origin(hint) is tuple and dataclasses.is_dataclass(get_args(hint)[0]):
        return 'list of mappings'
    return {bool: '`true`, `false`', str: 'text'}.get(hint, 'list of texts')


def _number(hint: Any, constraint: AtLeast | MoreThan | Count | Bytes) -> str:
    if isinstance(constraint, Count | Bytes):
        return f'{type(constraint).__name__.lower()} ≥ {constraint.least}'
    noun = 'integer' if hint is int else 'number'
    return f'{noun} {">" if isinstance(constraint, MoreThan) else "≥"} {constraint.bound}'


def _default(value: object) -> str:
    if value is None or value in ('', ()) or dataclasses.is_dataclass(value):
        return ''
    return f' Default: `{str(value).lower() if isinstance(value, bool) else value}`.'


_INTERPOLATION: Final = {'type': 'string', 'pattern': r'\$\{'}
_NUMBER_WITH_UNIT: Final = {
    Count: r'^\s*(\d+|(\d+\.?\d*|\.\d+)\s*[kKmMbBtT])\s*$',
    Bytes: r'^\s*(\d+[bB]?|(\d+\.?\d*|\.\d+)\s*[kKmMgGtTpPeEzZyY][bB])\s*$',
}


def json_schema() -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    top = _section(Config, definitions)
    directives = _section(FileDirectives, definitions)
    top['properties'] = {**directives['properties'], **top['properties']}
    return {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'A configuration of headrace',
        **top,
        '$defs': definitions,
    }


def _section(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    texts = all_field_texts(cls)
    properties = {name: _value(hint, texts.get(name, ''), definitions) for name, hint in field_types(cls).items()}
    return {'type': 'object', 'properties': properties, 'additionalProperties': False}


def _value(hint: Any, text: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A key's value: of its type, an interpolation, or null, which leaves it out."""
    hint, constraint = unwrap(hint)
    described: dict[str, Any] = {'description': text} if text else {}
    if isinstance(constraint, Parsed) or hint in (object, Any):
        return described
    return {**described, 'anyOf': [*_forms(hint, constraint, definitions), _INTERPOLATION, {'type': 'null'}]}


def _forms(hint: Any, constraint: Any, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(constraint, Named):
        item = _reference(get_args(hint)[0], definitions)
        several = {'type': 'object', 'additionalProperties': {'anyOf': [item, _INTERPOLATION]}, 'minProperties': 1}
        return [item, several] if constraint.or_single else [several, {'type': 'array', 'items': item, 'minItems': 1}]
    if isinstance(constraint, Count | Bytes):
        written = {'type': 'string', 'pattern': _NUMBER_WITH_UNIT[type(constraint)]}
        return [{'type': 'number', 'minimum': constraint.least}, written]
    if dataclasses.is_dataclass(hint):
        return [_reference(hint, definitions)]
    if get_origin(hint) is Mapping:
        return [{'type': 'object', 'additionalProperties': _value(get_args(hint)[1], '', definitions)}]
    if get_origin(hint) in (tuple, Sequence):
        return [{'type': 'array', 'items': _value(get_args(hint)[0], '', definitions)}]
    if choices := choices_of(hint, constraint):
        return [{'enum': list(choices)}]
    if hint is str:
        return [{'type': 'string', 'minLength': 1}]
    number: dict[str, Any] = {'type': {bool: 'boolean', int: 'integer', float: 'number'}[hint]}
    if isinstance(constraint, AtLeast):
        number['minimum'] = constraint.bound
    elif isinstance(constraint, MoreThan):
        number['exclusiveMinimum'] = constraint.bound
    return [number]


def _reference(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # a section that holds itself would never end
        definitions[cls.__name__] = _section(cls, definitions)
    return {'$ref': f'#/$defs/{cls.__name__}'}


if __name__ == '__main__':
    page = Path(sys.argv[1] if len(sys.argv) > 1 else 'docs/configuration.md')
    page.write_text(updated(page.read_text()))
