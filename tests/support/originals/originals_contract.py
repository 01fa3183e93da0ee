"""Rules for every converter of a known dataset, on small originals with broken members."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.errors import ConversionError
from headrace.originals.original import Original
from tests.support.programs.killed_children import in_a_child
from tests.support.sources.sources_to_convert import digests, rows_of

__all__ = ['check_reports', 'check_stops_at_a_broken_member', 'check_workers_and_kills', 'visible']


def check_reports(out: Path, reports: Mapping[str, Any], good: Mapping[str, int], broken: Mapping[str, int]) -> None:
    """Hold reports against the folders of splits: good rows, broken members that are listed, whole shards."""
    assert set(reports) == set(good)
    for split, count in good.items():
        folder, report = out / split, reports[split]
        assert (report.rows, len(rows_of(folder))) == (count, count)
        listed = folder / 'errors.jsonl'
        names = [json.loads(line)['input'] for line in listed.read_text().splitlines()] if listed.exists() else []
        assert sorted(names) == sorted(error.input for error in report.errors)
        assert report.num_errors == len(names) == broken[split]
        assert main(['verify', str(folder)]) == 0
    assert sum(broken.values()) > 1


def visible(out: Path) -> dict[str, str]:
    """All files but those by which a killed conversion continues; one that was whole may leave some of these."""
    return {name: digest for name, digest in digests(out).items() if '.headrace-convert/' not in name}


def check_workers_and_kills(
    convert: Callable[..., Mapping[str, Any]],
    folder: Path,
    *,
    files: Callable[[Path], dict[str, str]] = visible,
    kills: Sequence[float] = (1 / 3, 1 / 3),
) -> Mapping[str, Any]:
    """Hold conversions by four workers, and ones that are killed and continued, against one that is not.

    Args:
        convert: called with the folder of the output and with `workers`; returns the reports.
        folder: an empty one.
        files: the digests of what is the same in each output.
        kills: the shares of a conversion's steps after which runs are killed, one after the other.

    Returns:
        The reports of the one that was killed, when it had been continued to its end.
    """
    convert(folder / 'one')
    expected = files(folder / 'one')
    convert(folder / 'four', workers=4)
    assert files(folder / 'four') == expected
    whole, out = folder / 'whole', folder / 'killed'
    _, steps = in_a_child(lambda: convert(whole), 0, str(whole))
    assert files(whole) == expected
    for share in kills:
        status, _ = in_a_child(lambda: convert(out), int(steps * share), str(out))
        assert status == signal.SIGKILL
        assert files(out) != expected
    reports = convert(out)
    assert files(out) == expected
    return reports


def check_stops_at_a_broken_member(described: Original, root: Path, out: Path) -> None:
    with pytest.raises(ConversionError, match='cannot be converted'):
        described.convert(root, out, on_error='stop', progress_bar=False)
