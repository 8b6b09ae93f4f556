"""NumPy's functions that the language has no word for, of those that it has."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .loaded import loaded

MOST_VALUES = 256  # of numpy.isin, as unrolled sums have


def real(x: Any) -> Any:
    x = _core.as_expr(x)
    return x if x.type == "f32" else _core.to_f32(x)


def hypot(x: Any, y: Any) -> Any:
    """Without squares that leave f32."""
    x, y = _core.abs(real(x)), _core.abs(real(y))
    larger, smaller = _core.maximum(x, y), _core.minimum(x, y)
    ratio = _core.where((larger == 0.0) | _core.isinf(larger), 0.0, smaller / larger)
    return larger * _core.sqrt(1.0 + ratio * ratio)


def logaddexp(x: Any, y: Any) -> Any:
    x, y = real(x), real(y)
    both_infinite = _core.isinf(x) & (x == y)
    return _core.where(both_infinite, x, _core.maximum(x, y) + _core.log1p(_core.exp(-_core.abs(x - y))))


def heaviside(x: Any, at_zero: Any) -> Any:
    x = real(x)
    return _core.where(_core.isnan(x), x, _core.where(x == 0.0, real(at_zero), _core.where(x > 0.0, 1.0, 0.0)))


def past_nan(choice: Callable[..., Any]) -> Callable[..., Any]:
    """fmax and fmin: the other operand where one is NaN."""
    def chosen(x: Any, y: Any) -> Any:
        x, y = real(x), real(y)
        return _core.where(_core.isnan(x), y, _core.where(_core.isnan(y), x, choice(x, y)))

    return chosen


COMPOSED: dict[str, Callable[..., Any]] = {
    "hypot": hypot, "logaddexp": logaddexp, "heaviside": heaviside,
    "logaddexp2": lambda x, y: logaddexp(real(x) * math.log(2.0), real(y) * math.log(2.0)) / math.log(2.0),
    "fmax": past_nan(_core.maximum), "fmin": past_nan(_core.minimum),
    "cbrt": lambda x: _core.sign(real(x)) * _core.power(_core.abs(real(x)), 1.0 / 3.0),
    "float_power": lambda x, y: _core.power(real(x), real(y)),
    "sinh": lambda x: 0.5 * (_core.expm1(real(x)) - _core.expm1(-real(x))),
    "cosh": lambda x: 0.5 * (_core.exp(real(x)) + _core.exp(-real(x))),
    "isfinite": lambda x: ~(_core.isnan(real(x)) | _core.isinf(real(x))),
    **dict.fromkeys(("deg2rad", "radians"), lambda x: real(x) * (math.pi / 180.0)),
    **dict.fromkeys(("rad2deg", "degrees"), lambda x: real(x) * (180.0 / math.pi)),
}


def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Any:
    if len(conditions) != len(choices):
        raise ValueError(f"numpy.select is given {len(conditions)} conditions and {len(choices)} choices; as many are accepted")
    made = _core.as_expr(default)
    for condition, choice in reversed(list(zip(conditions, choices))):
        made = _core.where(condition, choice, made)
    return made


def isin(element: Any, test_elements: Any) -> Any:
    numpy: Any = loaded("numpy")
    values = numpy.ravel(numpy.asarray(test_elements)).tolist()
    if len(values) > MOST_VALUES:
        raise TypeError(f"numpy.isin of an expression is given {len(values)} values; up to {MOST_VALUES} are accepted, and a "
                        "table of bools for more: table[index]")
    element = _core.as_expr(element)
    return functools.reduce(operator.or_, (element == one for one in values), _core.as_expr(False))


# Functions whose lists may hold expressions.
OF_LISTS: dict[str, Callable[..., Any]] = {"select": select, "isin": isin}


def astype(self: Any, dtype: Any) -> Any:
    """As an array's: dtype float32 and float64 give reals of f32, int32 and int64 integers of i32 (truncated), and bool
    bools. Narrower types, which would round or wrap, are refused."""
    numpy: Any = loaded("numpy")
    kind = numpy.dtype(dtype) if numpy is not None else dtype
    if kind in ("float32", "float64"):
        return real(self)
    if kind in ("int32", "int64"):
        return self if self.type == "i32" else _core.to_i32(self)
    if kind == "bool":
        return self if self.type == "bool" else self != 0
    raise TypeError(f"astype({dtype!r}) of a score or an index; float32, float64, int32, int64 and bool are accepted")
