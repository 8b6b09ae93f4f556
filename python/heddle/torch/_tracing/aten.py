"""aten's element-wise operations as expressions. Operands are Values or Python's numbers; elements are expressions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ... import _core
from . import values
from .operations import define, op
from .tie_rules import BOUND_WINS, SHARED_BY_CLAMP, SHARED_BY_FMAX
from .values import Unsupported, Value, as_bool, as_f32, as_i32, as_number, elementwise, literal, promoted


def of_reals(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of operands as f32."""
    return lambda *operands: function(*(as_f32(x) for x in operands))


def of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of operands that have one type: i32, or f32 if any of them is f32."""
    return lambda *operands: function(*promoted(*(as_number(x) for x in operands)))


# --- arithmetic ---------------------------------------------------------------------------------------------------

def scaled(y: Any, alpha: Any) -> Any:
    return y if isinstance(alpha, int) and alpha == 1 else as_number(y) * literal(alpha)


@op("add")
def add(x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return elementwise(lambda x, y: added(x, scaled(y, alpha)), x, y)


def added(x: Any, y: Any) -> Any:
    x, y = literal(x), literal(y)
    return x | y if x.type == y.type == "bool" else as_number(x) + as_number(y)  # torch's sum of bools is a bool


@op("sub", "subtract")
def sub(x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return elementwise(lambda x, y: as_number(x) - as_number(scaled(y, alpha)), x, y)


@op("rsub")
def rsub(x: Any, y: Any, alpha: Any = 1) -> Value:
    return elementwise(lambda x, y: as_number(y) - as_number(scaled(x, alpha)), x, y)


def floor_divided(x: Any, y: Any) -> Any:
    """x // y. torch's reals are floored exactly (1.0 // 0.1 is 9), NaN for an infinite x, and -1 for an infinite y of the
    other sign."""
    if x.type == "i32":
        return x // y
    divisor = number_of(y)
    exact = _core.round((x - x % y) / y)
    if divisor is not None and math.isfinite(divisor) and divisor != 0:
        is_power_of_2 = abs(math.frexp(divisor)[0]) == 0.5  # then the quotient is exact
        return _core.where(_core.isinf(x), math.nan, x // y) if is_power_of_2 else exact
    by_infinity = _core.where((x == 0.0) | ((x < 0.0) == (y < 0.0)), 0.0, -1.0) + (x - x)
    return _core.where(y == 0.0, x / y, _core.where(_core.isinf(y), by_infinity, exact))


def number_of(x: Any) -> float | None:
    """The number of an expression that is one."""
    try:
        return float(str(x))
    except ValueError:
        return None


def multiplied(x: Any, y: Any) -> Any:
    x, y = literal(x), literal(y)
    return x & y if x.type == y.type == "bool" else as_number(x) * as_number(y)


define("mul", multiplied)
define("square", lambda x: as_number(x) * as_number(x))
define("neg", lambda x: -as_number(x))
define("abs", lambda x: _core.abs(as_number(x)))
define("reciprocal", lambda x: 1.0 / as_f32(x))
define("minimum", of_numbers(_core.minimum))
define("maximum", of_numbers(_core.maximum))
define("floor_divide", of_numbers(floor_divided))
define("remainder", of_numbers(operator.mod))


def past_nan(function: Callable[[Any, Any], Any], wins: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The function, but that of a number and a NaN it is the number. Two that are equal have torch's slopes."""
    def of(x: Any, y: Any) -> Any:
        if x.type != "f32":
            return function(x, y)
        if SHARED_BY_FMAX:
            return _core.where(_core.isnan(y), x, _core.where(_core.isnan(x), y, function(x, y)))
        return _core.where(wins(x, y) | _core.isnan(y), x, y)

    return of


define("fmin", of_numbers(past_nan(_core.minimum, operator.le)))
define("fmax", of_numbers(past_nan(_core.maximum, operator.ge)))


def truncated_division(x: Any, y: Any) -> Any:
    """Toward zero, as C's division. Of two numbers of one type."""
    if x.type == "f32":
        return _core.trunc(x / y)
    quotient = _core.abs(x) // _core.abs(y)
    return _core.where((x < 0) ^ (y < 0), -quotient, quotient)


def truncated_remainder(x: Any, y: Any) -> Any:
    """With the sign of x. Exact. The slope in x is 1, at 0 too."""
    of_magnitudes = _core.where(x < 0, -x, x) % _core.abs(y)
    return _core.where(x < 0, -of_magnitudes, of_magnitudes)


define("fmod", of_numbers(truncated_remainder))


@op("div", "divide", "true_divide")
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return elementwise(of_numbers(floor_divided), x, y)
    if rounding_mode == "trunc":
        return elementwise(of_numbers(truncated_division), x, y)
    return elementwise(of_reals(operator.truediv), x, y)


def power(x: Any, y: Any) -> Any:
    """Products where the exponent is a whole literal: cheaper than pow on a GPU, and integers stay integers."""
    x, y = as_number(x), as_number(y)
    exponent = whole_literal(y)
    if exponent is not None and 0 <= exponent <= 16:
        return product_power(x, exponent)
    if x.type == y.type == "i32":
        raise Unsupported("a power of integers whose exponent is no literal from 0 to 16")
    if str(y) == "0.5":
        return _core.sqrt(as_f32(x))
    if str(y) == "-1.0":
        return 1.0 / as_f32(x)
    return _core.power(as_f32(x), as_f32(y))


def whole_literal(y: Any) -> int | None:
    text = str(y)
    if y.type == "i32":
        return int(text) if text.lstrip("-").isdigit() else None
    return int(text[0]) if text in ("2.0", "3.0", "4.0") else None


def product_power(x: Any, exponent: int) -> Any:
    if exponent < 2:
        return x if exponent else literal(1.0 if x.type == "f32" else 1)
    rest = product_power(x * x, exponent // 2)
    return rest * x if exponent % 2 else rest


define("pow", power)
define("float_power", lambda x, y: power(as_f32(x), y))
def sign(x: Any) -> Any:
    """0 of a NaN, as torch has it."""
    x = as_number(x)
    return _core.sign(x) if x.type == "i32" else as_f32(x > 0.0) - as_f32(x < 0.0)


define("sign", sign)
define("sgn", sign)


def is_signed(x: Any) -> Any:
    """Whether the sign bit is set: of -0 too, not of a NaN."""
    x = as_number(x)
    return (x < 0.0) | (1.0 / x < 0.0) if x.type == "f32" else x < 0


define("signbit", is_signed)
define("copysign", lambda x, y: _core.where(is_signed(y), -_core.abs(as_f32(x)), _core.abs(as_f32(x))))


def bounded(x: Any, bound: Any, function: Callable[[Any, Any], Any], wins: Callable[[Any, Any], Any]) -> Value:
    """function(x, bound), whose slopes at a tie are torch's. NaN if either is NaN."""
    is_number = isinstance(bound, (int, float)) and bound == bound

    def of(x: Any, bound: Any) -> Any:
        if x.type != "f32":
            return function(x, bound)
        if SHARED_BY_CLAMP and not is_number:
            return function(x, bound)
        return _core.where(wins(bound, x) if is_number else wins(bound, x) | _core.isnan(bound), bound, x)

    return elementwise(of_numbers(of), x, bound)


@op("clamp", "clip")
def clamp(x: Value, min: Any = None, max: Any = None) -> Value:
    if min is not None:
        x = bounded(x, min, _core.maximum, operator.ge if BOUND_WINS else operator.gt)
    if max is not None:
        x = bounded(x, max, _core.minimum, operator.le if BOUND_WINS else operator.lt)
    return x


op("clamp_min")(lambda x, low: clamp(x, low))
op("clamp_max")(lambda x, high: clamp(x, None, high))


# --- functions of a real ------------------------------------------------------------------------------------------

def rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that rounds an f32; integers are whole already."""
    return lambda x: function(x) if literal(x).type == "f32" else as_number(x)


# An operation that aten has under the same name, and which takes integers as f32. The others stand in this file.
_OF_INTEGERS = ("abs", "ceil", "floor", "round", "sign", "trunc")
for _name in (*_core.OPERATIONS, "silu"):
    if _name not in _OF_INTEGERS:
        define(_name, of_reals(getattr(_core, _name)))
for _name, _function in (("floor", _core.floor), ("ceil", _core.ceil), ("trunc", _core.trunc), ("fix", _core.trunc)):
    define(_name, rounded(_function))
define("log10", of_reals(lambda x: _core.log(x) * (1 / math.log(10))))


def sinh(x: Any) -> Any:
    """2 sinh(x/2) cosh(x/2): exact near 0, and no exponential overflows before the result does."""
    above, below = _core.expm1(x * 0.5), _core.expm1(x * -0.5)
    return (above - below) * ((above + below) * 0.5 + 1.0)


def cosh(x: Any) -> Any:
    """1 + 2 sinh(x/2)**2."""
    twice = _core.expm1(x * 0.5) - _core.expm1(x * -0.5)
    return twice * 0.5 * twice + 1.0


define("sinh", of_reals(sinh))
define("cosh", of_reals(cosh))
define("isneginf", of_reals(lambda x: x == -math.inf))
define("isposinf", of_reals(lambda x: x == math.inf))
define("isfinite", of_reals(lambda x: ~(_core.isnan(x) | _core.isinf(x))))


@op("round")
def round_half_to_even(x: Any, *, decimals: int = 0) -> Value:
    if decimals == 0:
        return elementwise(rounded(_core.round), x)
    factor = 10.0**decimals
    return elementwise(of_reals(lambda x: _core.round(x * factor) / factor), x)


@op("softplus")
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """torch's, which is x itself past the threshold; _core.softplus has none, which f64 shows."""
    def of(x: Any) -> Any:
        return _core.where(x * beta > threshold, x, _core.log1p(_core.exp(x * beta)) / beta)

    return elementwise(of_reals(of), x)


@op("log_sigmoid_forward")
def log_sigmoid(x: Any) -> tuple[Value, Value]:
    """And a buffer for the backward."""
    return elementwise(of_reals(lambda x: -_core.softplus(-x)), x), Value.scalar(literal(0.0))


@op("gelu")
def gelu(x: Any, *, approximate: str = "none") -> Value:
    return elementwise(of_reals(_core.gelu_tanh if approximate == "tanh" else _core.gelu), x)


def inside(x: Any, low: Any, high: Any) -> Any:
    """x between low and high, with the slope 0 at both, as torch's hardtanh has it and its clamp has not."""
    x = _core.where(x <= low, low, x)
    return _core.where(x >= high, high, x)


op("hardtanh")(lambda x, low=-1.0, high=1.0: elementwise(of_numbers(inside), x, low, high))
define("relu", lambda x: _core.where(as_number(x) <= 0, *promoted(0, as_number(x))))
define("hardsigmoid", of_reals(lambda x: inside(x + 3.0, 0.0, 6.0) / 6.0))
define("hardswish", of_reals(lambda x: x * inside(x + 3.0, 0.0, 6.0) / 6.0))


@op("leaky_relu")
def leaky_relu(x: Any, slope: float = 0.01) -> Value:
    return elementwise(of_reals(lambda x: _core.where(x > 0, x, x * slope)), x)


@op("elu")
def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    def of(x: Any) -> Any:
        return _core.where(x > 0, x * scale, _core.expm1(x * input_scale) * (alpha * scale))

    return elementwise(of_reals(of), x)


@op("logaddexp")
def logaddexp(x: Any, y: Any) -> Value:
    def of(x: Any, y: Any) -> Any:
        both_infinite = (x == y) & _core.isinf(x)  # their difference is NaN
        return _core.where(both_infinite, x, _core.maximum(x, y) + _core.log1p(_core.exp(-_core.abs(x - y))))

    return elementwise(of_reals(of), x, y)


# --- comparisons, logic, bits -------------------------------------------------------------------------------------

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    define(_name, of_numbers(getattr(operator, _name)))
define("logical_and", lambda x, y: as_bool(x) & as_bool(y))
define("logical_or", lambda x, y: as_bool(x) | as_bool(y))
define("logical_xor", lambda x, y: as_bool(x) ^ as_bool(y))
define("logical_not", lambda x: ~as_bool(x))


def integers(name: str, function: Callable[..., Any]) -> None:
    """Registers an operation on the bits of integers, or of booleans where the function takes them."""
    def of(*operands: Any) -> Any:
        exprs = promoted(*operands)
        if exprs[0].type == "f32":
            raise Unsupported(f"{name} of floating-point numbers")
        return function(*exprs)

    define(name, of)


for _name, _join in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
    integers(f"bitwise_{_name}", _join)
    integers(f"__{_name}__", _join)
integers("bitwise_not", operator.invert)
for _name in ("bitwise_left_shift", "__lshift__"):
    integers(_name, lambda x, y: as_i32(x) << as_i32(y))
for _name in ("bitwise_right_shift", "__rshift__"):
    integers(_name, lambda x, y: as_i32(x) >> as_i32(y))


@op("where")
def where(condition: Any, x: Any = None, y: Any = None) -> Value:
    if x is None or y is None:
        raise Unsupported("torch.where with a condition alone, whose result has no shape of its own")
    return elementwise(lambda c, x, y: _core.where(as_bool(c), *promoted(x, y)), condition, x, y)


def filled(x: Any, mask: Any, fill: Any) -> Any:
    return _core.where(as_bool(mask), values.AS[x.type](fill), x)


define("masked_fill", filled)
define("lerp", of_reals(lambda x, y, weight: x + weight * (y - x)))


@op("addcmul")
def addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Value:
    return elementwise(lambda x, y, z: as_number(x) + multiplied(y, z) * value, x, y, z)
