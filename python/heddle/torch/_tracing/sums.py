"""Sums of integers beside a number near the end of i32, such as a bound that means none: torch's are of 64 bits, where
expressions would wrap. They stay at the end of i32 instead, which is past every index."""

from __future__ import annotations

from typing import Any

import torch

from ... import _core
from ..._tracing.kinds import LARGEST_PARAM

LEAST, GREATEST = -(2**31), 2**31 - 1


def wide(x: Any) -> int | None:
    """The number of an expression that is one no param may be."""
    least, greatest = _core.integer_range(x)
    return least if least == greatest and abs(least) > LARGEST_PARAM else None


def is_far(x: Any) -> bool:
    """Whether an int that torch.compile keeps open is one that no param may be: sums with it would wrap. The graph that is
    being compiled is guarded by the answer, so a call with another one compiles again. torch.export has no other graph."""
    if not isinstance(x, torch.SymInt) or torch.compiler.is_exporting():
        return False
    return bool(x > LARGEST_PARAM) or bool(x < -LARGEST_PARAM)


def total(x: Any, y: Any) -> Any:
    if x.type == y.type == "i32":
        for one, other in ((x, y), (y, x)):
            number = wide(one)
            if number is not None:
                return other_that_fits(other, number) + number
    return x + y


def difference(x: Any, y: Any) -> Any:
    if x.type == y.type == "i32":
        number = wide(y)
        if number is not None:
            return other_that_fits(x, -number) - number
        number = wide(x)
        if number is not None:
            return number - negated_that_fits(y, number)
    return x - y


def other_that_fits(other: Any, number: int) -> Any:
    """As much of it as number + it has room for."""
    return _core.minimum(other, GREATEST - number) if number > 0 else _core.maximum(other, LEAST - number)


def negated_that_fits(other: Any, number: int) -> Any:
    """As much of it as number - it has room for."""
    return _core.maximum(other, number - GREATEST) if number > 0 else _core.minimum(other, number - LEAST)
