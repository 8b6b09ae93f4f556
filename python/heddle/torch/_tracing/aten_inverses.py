"""aten's angles, inverse functions and buckets, which expressions have not: made of atan, log1p and comparisons."""

from __future__ import annotations

import math
from typing import Any

from ... import _core
from . import values
from .aten import of_reals
from .operations import define, op
from .values import Unsupported, Value, as_i32, as_number, elementwise, literal, promoted


def hypot(x: Any, y: Any) -> Any:
    """Of the larger one and a quotient: no square overflows. Its slopes at 0 are 0."""
    x, y = _core.abs(x), _core.abs(y)
    large, small = _core.maximum(x, y), _core.minimum(x, y)
    ratio = small / large
    length = _core.where(large == 0.0, large, large * _core.sqrt(ratio * ratio + 1.0))
    return _core.where(_core.isinf(x) | _core.isinf(y), math.inf, length)  # beside a NaN, too


def atan2(y: Any, x: Any) -> Any:
    """By half of the angle, whose tangent has no jump at x = 0."""
    any_infinite = _core.isinf(x) | _core.isinf(y)  # then the finite one has a sign alone
    x, y = (_core.where(any_infinite, _core.sign(one) * _core.where(_core.isinf(one), 1.0, 1e-30), one) for one in (x, y))
    length = hypot(x, y)
    half = _core.where(x < 0.0, (length - x) / y, y / (length + x))
    behind = (y == 0.0) & (x < 0.0)  # the tangent is infinite, and the slope is not
    half_turn = _core.where(1.0 / y < 0.0, -math.pi, math.pi)  # of -0 the other one
    at_zero = _core.where(1.0 / x < 0.0, half_turn, 0.0)
    return _core.where(length == 0.0, at_zero, _core.where(behind, half_turn + y / x, 2.0 * _core.atan(half)))


def asinh(x: Any) -> Any:
    def of(x: Any) -> Any:  # x not negative; the slope at 0 is 1
        near = _core.log1p(x + x * x / (_core.sqrt(x * x + 1.0) + 1.0))
        return _core.where(x > 1e9, _core.log(x) + math.log(2.0), near)  # there the square may overflow

    return _core.where(x < 0.0, -of(-x), of(x))


def acosh(x: Any) -> Any:
    above = x - 1.0
    return _core.where(x > 1e9, _core.log(x) + math.log(2.0), _core.log1p(above + _core.sqrt(above * (x + 1.0))))


define("hypot", of_reals(hypot))
define("atan2", of_reals(atan2))
define("arctan2", of_reals(atan2))
define("asin", of_reals(lambda x: _core.atan(x / _core.sqrt((1.0 - x) * (1.0 + x)))))
define("acos", of_reals(lambda x: 2.0 * _core.atan(_core.sqrt((1.0 - x) / (1.0 + x)))))
define("asinh", of_reals(asinh))
define("acosh", of_reals(acosh))
define("atanh", of_reals(lambda x: 0.5 * _core.log1p(2.0 * x / (1.0 - x))))


def buckets(x: Any, boundaries: Value, right: bool) -> Value:
    """How many boundaries are below x; with `right`, or equal to it."""
    if not isinstance(boundaries, Value) or len(boundaries.shape) != 1:
        raise Unsupported("buckets between boundaries that are no tensor of one axis")
    if boundaries.shape[0] > values.MOST_UNROLLED:
        raise Unsupported(f"{boundaries.shape[0]} boundaries of buckets; up to {values.MOST_UNROLLED} are unrolled")
    all_of_them = [boundaries.at((i,)) for i in range(boundaries.shape[0])]

    def of(x: Any) -> Any:
        total = literal(0)
        for boundary in all_of_them:
            low, high = promoted(as_number(boundary), as_number(x))
            total = total + as_i32(low <= high if right else low < high)
        return total

    return elementwise(of, x)


@op("bucketize")
def bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Value:
    return buckets(x, boundaries, right)


@op("searchsorted")
def searchsorted(
    boundaries: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None,
) -> Value:
    if sorter is not None:
        raise Unsupported("searchsorted with a sorter")
    return buckets(x, boundaries, right or side == "right")
