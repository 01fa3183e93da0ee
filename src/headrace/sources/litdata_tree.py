"""The tree of litdata's items: lists and dicts, whose leaves are numbered in their order."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from headrace.errors import FormatError
from headrace.format.encodings.texts import parse_json

__all__ = ['Node', 'children', 'leaves_of', 'parse_tree']

Node: TypeAlias = 'int | dict[str, Node] | list[Node] | None'
"""A leaf's number, a container of nodes, or nothing."""

_MAX_DEPTH: Final = 64


def parse_tree(spec: Any, leaves: int) -> Node:
    """The tree of items.

    Args:
        spec: ``data_spec`` of the index: JSON text.
        leaves: number of leaves.

    Raises:
        FormatError: the text is damaged, or has another number of leaves.
    """
    value = parse_json(spec, '`data_spec` of an index of litdata') if isinstance(spec, str) else None
    if not isinstance(value, list) or len(cast('list[Any]', value)) != 2 or cast('list[Any]', value)[0] != 1:
        raise FormatError(f'`data_spec` of an index of litdata is a tree, version 1, but got {spec!r:.80}.')
    taken = iter(range(leaves))
    root = _node(cast('list[Any]', value)[1], taken, 0)
    if next(taken, None) is not None:
        raise FormatError('`data_spec` of an index of litdata has fewer leaves than `data_format`. Write it again.')
    return root


def _node(value: Any, taken: Any, depth: int) -> Node:
    node = cast('dict[str, Any]', value) if isinstance(value, dict) else {}
    kind, children = node.get('type'), node.get('children_spec')
    if not isinstance(children, list) or depth > _MAX_DEPTH:
        raise FormatError('`data_spec` of an index of litdata is damaged, or nested too deeply. Write the data again.')
    if kind is None:
        leaf = next(taken, None)
        if leaf is None or children:
            raise FormatError('`data_spec` of an index of litdata has more leaves than `data_format`. Write it again.')
        return cast('int', leaf)
    nodes = [_node(child, taken, depth + 1) for child in cast('list[Any]', children)]
    if kind in {'builtins.list', 'builtins.tuple', 'collections.deque'}:
        return nodes
    context = node.get('context')
    keys = parse_json(context, '`context` in an index of litdata') if isinstance(context, str) else None
    if kind not in {'builtins.dict', 'collections.OrderedDict'} or not isinstance(keys, list):
        raise FormatError(f'Items of litdata are lists, tuples and dicts of leaves, but got {kind!r:.80}.')
    names = [str(key) for key in cast('list[Any]', keys)]
    if len(set(names)) != len(nodes) or len(names) != len(nodes):
        raise FormatError('`data_spec` of an index of litdata has other keys than values. Write the data again.')
    return dict(zip(names, nodes, strict=True))


def children(node: dict[str, Node] | list[Node] | None) -> list[tuple[str, Node]]:
    """The nodes of a container, with their keys or numbers."""
    if node is None:
        return []
    return list(node.items()) if isinstance(node, dict) else [(str(n), child) for n, child in enumerate(node)]


def leaves_of(node: Node) -> list[int]:
    """The numbers of the leaves below a node."""
    return [node] if isinstance(node, int) else [leaf for _, child in children(node) for leaf in leaves_of(child)]
