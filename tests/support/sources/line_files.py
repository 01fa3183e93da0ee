"""Files of lines, and what is read of them."""

from __future__ import annotations

import csv
import io
import json
from typing import Any


def jsonl(values: list[Any], end: str = '\n') -> bytes:
    return ''.join(json.dumps(value, ensure_ascii=False) + end for value in values).encode()


def table(header: list[str], lines: list[list[str]], **how: Any) -> bytes:
    out = io.StringIO()
    csv.writer(out, **how).writerows([header, *lines])
    return out.getvalue().encode()
