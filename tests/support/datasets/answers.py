"""The answers of a check, by their level."""

from __future__ import annotations


def levels(findings, what=None):
    return [finding.level for finding in findings if what in (None, finding.what)]
