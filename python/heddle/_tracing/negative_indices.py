"""Computed indices that may be negative: they count from the end of an axis, as NumPy's and torch's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core

# Where the text of an index allows less than this, it says nothing: a distance may be any number, and so may a capture.
LEAST = -(2**24)


def from_the_front(index: Any, extent: Callable[[], int], unbounded: Callable[[], Any] | None = None) -> Any:
    """The index, or one that is 0 or more. Both functions give the axis's extent, and are called where it is needed alone:
    `extent` where the text bounds the index, `unbounded` where it does not. Without the latter such an index stays as it is:
    planning refuses it, unless reads are to be clamped."""
    if not issubclass(type(index), _core.Expr) or index.type != "i32":
        return index
    least, greatest = _core.integer_range(index)
    if least >= 0:
        return index
    if least < LEAST:
        if unbounded is None:
            return index
        extent = unbounded
    wrapped = index + extent()
    return wrapped if greatest < 0 else _core.where(index < 0, wrapped, index)
