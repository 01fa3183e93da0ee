"""Validate a checkpoint's ``config`` before anything is made of it: types, ranges, and sums that must agree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

from headrace.errors import ConfigError
from headrace.order.config import MAX_CANONICAL_NODES, MAX_EPOCH_SIZE, ORDER_OPTIONS, is_count, is_text
from headrace.order.decisions import decisions_of
from headrace.order.mixture.schedule import Schedule

MAX_SEED: Final = 1 << 1024  # A seed may have any size; this one bounds messages.


def short(value: object, longest: int = 80) -> str:
    """A value for a message, of `longest` characters at most."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # of too many digits, or too deep
        return f'a {type(value).__name__}'
    return text if len(text) <= longest else f'{text[: longest - 3]}...'


def read_pinned(text: object) -> dict[str, Any] | None:
    """The object that a JSON text holds; None if it holds none."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return cast('dict[str, Any]', value) if isinstance(value, dict) else None


def are_ranges(value: Any) -> bool:
    """Whether a value is a list of pairs [begin, end) of numbers of samples."""
    return _is_list(value) and all(_is_list(pair, of=2) and _are_counts(pair) and pair[0] < pair[1] for pair in value)


def pinned_errors(pinned: Mapping[str, Any], *, nodes: int, epoch_size: int) -> Iterator[str]:
    """The rules that the values of a ``config`` break; absent ones break none here. `nodes`: canonical nodes."""
    dealt: Any = pinned.get('dealt')
    is_dealt = _are_counts(dealt, 3) and all(dealt) and dealt[1] % dealt[0] == 0 and dealt[2] % dealt[1] == 0
    rules = {
        name: (option.holds(pinned.get(name)), option.rule)
        for name, option in ORDER_OPTIONS.items()
        if option.holds is not None and (name in pinned or not option.beside)
    }
    optional: dict[str, tuple[bool, str]] = {
        'count': (is_count(pinned.get('count')), 'a number of samples'),
        'decided_since': (is_count(pinned.get('decided_since'), 0, 1 << 61), 'a number of samples'),
        'dealt': (is_dealt, 'nodes, replicas and samples of a global batch'),
        'skip': (are_ranges(pinned.get('skip')), 'a list of ranges [begin, end]'),
    }
    rules |= {key: rule for key, rule in optional.items() if key in pinned}
    for key, (holds, rule) in rules.items():
        if not holds:
            yield f'{key} must be {rule}, got {short(pinned.get(key))}'
    streams: Any = pinned.get('streams')
    if not _are_streams(streams, epoch_size):
        yield (
            f'streams must be a list of streams with different names, their numbers of samples, and what an epoch of '
            f'{epoch_size} draws of each, got {short(streams)}'
        )
        return
    choose = [stream['choose'] for stream in streams]
    if 'stages' in pinned and not _are_stages(pinned['stages'], choose):
        yield f"stages must be lists that sum to the streams' draws, got {short(pinned['stages'])}"
    if 'schedule' in pinned and (wrong := _wrong_schedule(pinned['schedule'], [stream['name'] for stream in streams])):
        yield f'schedule must be one of these streams: {wrong}'
    if 'decisions' in pinned and (wrong := _wrong_decisions(pinned)):
        yield f'decisions must be those of a native order: {wrong}'
    if 'origin' in pinned:
        yield from _wrong_origin(pinned['origin'], streams, nodes)


def _is_list(value: Any, of: int | None = None) -> bool:
    return isinstance(value, (list, tuple)) and of in (None, len(cast('Sequence[Any]', value)))


def _are_counts(value: Any, of: int | None = None) -> bool:
    return _is_list(value, of) and all(is_count(number) for number in value)


def _are_streams(value: Any, epoch_size: int) -> bool:
    if not _is_list(value) or not value or not all(isinstance(stream, dict) for stream in value):
        return False
    are_whole = all(
        is_text(stream.get('name'))
        and is_text(stream.get('fingerprint'))
        and is_count(stream.get('samples'), 1, MAX_EPOCH_SIZE)
        and is_count(stream.get('choose'), 0, MAX_EPOCH_SIZE)
        for stream in value
    )
    return (
        are_whole
        and len({stream['name'] for stream in value}) == len(value)
        and sum(stream['choose'] for stream in value) == epoch_size
    )


def _are_stages(value: Any, choose: list[int]) -> bool:
    return (
        _is_list(value)
        and bool(value)
        and all(_are_counts(stage, len(choose)) and any(stage) for stage in value)
        and [sum(draws) for draws in zip(*value, strict=True)] == choose
    )


def _wrong_schedule(value: Any, names: list[str]) -> str | None:
    if not _is_list(value) or not all(isinstance(point, dict) for point in value):
        return f'it must be a list of points, got {short(value)}'
    try:
        Schedule.of(value).check_names(names)
    except ConfigError as error:
        return str(error)[:400]
    return None


def _wrong_decisions(pinned: Mapping[str, Any]) -> str | None:
    if pinned.get('algorithm') != 'native' or 'schedule' in pinned:
        return 'it has another algorithm, or a schedule'
    try:
        decisions_of(pinned['decisions'])
    except ConfigError as error:
        return str(error)[:400]
    return None


def _wrong_origin(value: Any, streams: list[dict[str, Any]], nodes: int) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f'origin must be a mapping, got {short(value)}'
        return
    origin = cast('dict[str, Any]', value)
    numbers = [origin.get(key) for key in ('epoch', 'sample', 'begin')]
    if not is_count(origin.get('rule', 1), 1, 2):
        yield f'origin must have a rule that this version knows, 1 or 2, got {short(origin.get("rule"))}'
    positions: Any = origin.get('positions')
    if not _are_counts(numbers) or not isinstance(positions, dict):
        yield f'origin must say epoch, sample, begin and positions, got {short(value)}'
        return
    sizes = {(stream['name'], stream['fingerprint']): stream['samples'] for stream in streams}
    for name, position in cast('dict[str, Any]', positions).items():
        fingerprint = position.get('fingerprint') if isinstance(position, dict) else None
        size = sizes.get((name, fingerprint)) if is_text(fingerprint) else None
        if not is_text(fingerprint) or not _is_position(position, size, nodes):
            yield (
                f'origin must say of stream {short(name)} which of its draws its {nodes} canonical nodes had, pass by '
                f'pass, got {short(position)}'
            )


def _is_position(position: Any, size: int | None, nodes: int) -> bool:
    """Whether a stream can be there: its passes are whole, and no node is outside of them."""
    node_draws, begin, shares, blocks = (position.get(key) for key in ('turns', 'begin', 'shares', 'blocks'))
    first = position.get('pass')
    if not (is_count(first) and _are_counts(node_draws, nodes) and _are_counts(begin, nodes) and _is_list(shares)):
        return False
    if not (_is_list(blocks, len(shares)) and all(is_count(block, 1) for block in blocks)):
        return False
    begins: list[list[int]] = [list(begin)]
    for share in shares:
        row = _share_of(share, nodes)
        if row is None or len(begins) * nodes > 1 << 24:
            return False
        begins.append([before + more for before, more in zip(begins[-1], row, strict=True)])
    totals = [sum(row) for row in begins]
    passes = {after - before for before, after in pairwise(totals)} | ({size} if size is not None else set())
    if len(passes) > 1 or (passes and totals[0] != first * next(iter(passes))):
        return False
    cells = position.get('cells', [])
    if not _are_cells(cells, size, nodes):
        return False
    ahead = sum(max(a - drawn, 0) for a, drawn in zip(begins[0], node_draws, strict=True))
    if ahead != sum(len(left) for *_, left in cells):
        return False
    within = all(drawn <= b for drawn, b in zip(node_draws, begins[-1], strict=True))
    return within and totals[-1] < 1 << 61


def _are_cells(value: Any, size: int | None, nodes: int) -> bool:
    """Whether these are shares of passes of which samples are left."""
    if not _is_list(value):
        return False
    for cell in value:
        if not _is_list(cell, 6) or not _are_counts(cell[:5]) or not _are_counts(cell[5]):
            return False
        _, node, begin, end, block, left = cell
        if not (node < nodes and begin < end and (size is None or end <= size) and block):
            return False
        if not left or not all(a < b for a, b in pairwise(left)) or left[-1] >= end - begin:
            return False
    return True


def _share_of(share: Any, nodes: int) -> list[int] | None:
    """A pass's draws on each node, which are listed, or named by node."""
    if not isinstance(share, dict):
        return list(share) if _are_counts(share, nodes) else None
    row = [0] * nodes
    for node, count in cast('dict[str, Any]', share).items():
        is_number = node.isascii() and node.isdecimal() and len(node) <= len(str(MAX_CANONICAL_NODES))
        if not is_number or int(node) >= nodes or not is_count(count):
            return None
        row[int(node)] += count
    return row
