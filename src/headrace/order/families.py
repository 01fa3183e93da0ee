"""The families of orders by the names of their algorithms: headrace's own, and MosaicML Streaming's."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from headrace.order.mosaicml.order import MosaicMLOrder
from headrace.order.native.order import NativeOrder
from headrace.order.shuffle import PERMUTATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.order.config import OrderConfig
    from headrace.order.mixture.mixture import Mixture
    from headrace.order.protocols import LoadPermutation, Order


class OrderFamily(Protocol):
    """Makes the order of an epoch, which in turn makes plans; a class of orders is one."""

    def __call__(self, mixture: Mixture, config: OrderConfig, epoch: int, load: LoadPermutation | None, /) -> Order:
        """Return the order of an epoch; see `make_order`."""
        ...


FAMILIES: Mapping[str, OrderFamily] = MappingProxyType(
    {'native': NativeOrder, **dict.fromkeys(PERMUTATIONS, MosaicMLOrder)}
)
