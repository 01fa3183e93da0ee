"""The report of a step."""

from __future__ import annotations

import json

from headrace.metrics import report_text


def test_a_report_is_json_with_a_row_on_a_line() -> None:
    report = {'skip': [[1, 2], ['3ba', '4ba']], 'rows': [{'id': 1, 'file': 'a'}, {'id': 2, 'file': 'b'}], 'none': []}
    text = report_text(report)
    assert json.loads(text) == report
    assert '    {"id": 1, "file": "a"},\n' in text
