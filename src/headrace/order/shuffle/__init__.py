"""The shuffle algorithms, by name: one file each.

An algorithm makes the `headrace.order.order.Order` of an epoch from (mixture, config with defaults filled in, epoch).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.order.shuffle.native import NativeOrder, StoredOrder, native_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.order.config import OrderConfig
    from headrace.order.mixture import Mixture

__all__ = ['ALGORITHMS']

ALGORITHMS: Mapping[str, Callable[[Mixture, OrderConfig, int], NativeOrder | StoredOrder]] = MappingProxyType(
    {'native': native_order}
)
