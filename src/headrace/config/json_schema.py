"""The JSON Schema of a configuration, with which editors complete keys and underline mistakes.

It is made from the annotations of `schema`. It knows keys, types, bounds and choices; the rules between keys are only
in `load_config`. Every value may also be an interpolation, such as ``${oc.env:BUCKET}``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

from headrace.config.constraints import AtLeast, Bytes, Count, MoreThan, Named, Parsed
from headrace.config.reference import field_texts
from headrace.config.schema import Config, FileDirectives
from headrace.config.validate import choices_of, field_types, unwrap

__all__ = ['json_schema']

_INTERPOLATION: Final = {'type': 'string', 'pattern': r'\$\{'}
_NUMBER_WITH_UNIT: Final = {
    Count: r'^\s*(\d+|(\d+\.?\d*|\.\d+)\s*[kKmMbBtT])\s*$',
    Bytes: r'^\s*(\d+[bB]?|(\d+\.?\d*|\.\d+)\s*[kKmMgGtTpPeEzZyY][bB])\s*$',
}


def json_schema() -> dict[str, Any]:
    """The schema, by draft 2020-12 of https://json-schema.org; plain values, as `json.dumps` takes them."""
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
    texts: dict[str, str] = {}
    for each in cls.__mro__:
        if dataclasses.is_dataclass(each):
            texts = {**field_texts(each), **texts}
    properties = {name: _value(hint, texts.get(name, ''), definitions) for name, hint in field_types(cls).items()}
    return {'type': 'object', 'properties': properties, 'additionalProperties': False}


def _value(hint: Any, text: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A key's value: of its type, an interpolation, or null, which leaves it out."""
    hint, constraint = unwrap(hint)
    described: dict[str, Any] = {'description': text} if text else {}
    if isinstance(constraint, Parsed) or hint is object:
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
    if get_origin(hint) is tuple:
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
