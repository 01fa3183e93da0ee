"""The tables of ``docs/configuration.md``, from the dataclasses: ``python -m headrace.config.reference``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from headrace.config import packing, schema, streams
from headrace.config.constraints import Named, Parsed
from headrace.config.validate import choices_of, describe_number, field_types, unwrap

__all__ = ['field_texts', 'updated']

_TABLES = {
    'top level': (schema.Config, schema.FileDirectives),
    'loader': (schema.LoaderConfig, schema.DatasetConfig),
    'stream': (streams.StreamConfig,),
    'schedule': (streams.SchedulePointConfig,),
    'selection': (streams.SelectionConfig,),
    'transfer': (streams.TransferConfig,),
    'packing': (packing.PackingConfig,),
    'tokenizer': (packing.TokenizerConfig,),
    'workers': (schema.WorkerConfig,),
}
"""Classes of each table; it lists the fields that they define themselves, in this order."""


def field_texts(cls: type) -> dict[str, str]:
    """The text beneath each field that `cls` itself defines."""
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = ' '.join(str(below.value.value).split())
    return texts


def updated(page: str) -> str:
    """The page with each table between ``<!-- table: name -->`` and ``<!-- end -->`` written anew."""
    for name, classes in _TABLES.items():
        start, end = f'<!-- table: {name} -->\n', '<!-- end -->'
        before, _, rest = page.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f'the page has no table between {start.strip()} and {end}')
        page = f'{before}{start}{_table(classes)}{end}{after}'
    return page


def _table(classes: tuple[type, ...]) -> str:
    lines = ['| key | value | default | meaning |', '|---|---|---|---|']
    for cls in classes:
        hints = field_types(cls)
        fields = dataclasses.fields(cls)
        defaults = {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}
        for key, text in field_texts(cls).items():
            lines.append(f'| `{key}` | {_kind(hints[key])} | {_default(defaults[key])} | {text} |')
    return '\n'.join(lines) + '\n'


def _kind(hint: Any) -> str:
    hint, constraint = unwrap(hint)
    if isinstance(constraint, Named):
        single = f'a {constraint.what}, or ' if constraint.or_single else ''
        return f'{single}{constraint.what}s by name'
    if isinstance(constraint, Parsed):
        return constraint.what
    if choices := choices_of(hint, constraint):
        return ', '.join(f'`{choice}`' for choice in choices)
    if hint in (int, float):
        return describe_number(hint, constraint)
    if dataclasses.is_dataclass(hint) or get_origin(hint) is Mapping:
        return 'a mapping'
    if get_origin(hint) is tuple and dataclasses.is_dataclass(get_args(hint)[0]):
        return 'a list of mappings'
    return {bool: '`true`, `false`', str: 'text'}.get(hint, 'a list of texts')


def _default(value: object) -> str:
    if value is None or value in ('', ()) or dataclasses.is_dataclass(value):
        return ''
    return f'`{str(value).lower() if isinstance(value, bool) else value}`'


if __name__ == '__main__':
    page = Path(sys.argv[1] if len(sys.argv) > 1 else 'docs/configuration.md')
    page.write_text(updated(page.read_text()))
