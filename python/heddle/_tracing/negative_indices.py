"""Computed indices that may be negative: they count from the end of an axis, as NumPy's and torch's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core

# Where the text of an index allows less than this, it says nothing: a distance may be any number, and so may a capture.
# Reads of these stay as they are, since a wrap would hide positions from the planner.
LEAST = -(2**24)


def from_the_front(index: Any, extent: Callable[[], int]) -> Any:
    """The index, or one that is 0 or more. `extent` is asked for where it is needed alone."""
    if not issubclass(type(index), _core.Expr) or index.type != "i32":
        return index
    least, greatest = _core.integer_range(index)
    if least >= 0 or least < LEAST:
        return index
    wrapped = index + extent()
    return wrapped if greatest < 0 else _core.where(index < 0, wrapped, index)
