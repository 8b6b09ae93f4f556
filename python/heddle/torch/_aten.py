"""aten operations as expressions: the table that tracing reads. Operands are Values or Python's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _core
from . import _values as values
from ._values import Unsupported, Value, as_bool, as_f32, as_i32, as_number, elementwise, literal, promoted

Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}


def kind_of(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    return "f32" if dtype.is_floating_point else "i32"


def cast(value: Value, dtype: torch.dtype | None) -> Value:
    return value if dtype is None else elementwise(values.AS[kind_of(dtype)], value)


def op(*names: str) -> Callable[[Operation], Operation]:
    def register(function: Operation) -> Operation:
        for name in names:
            OPERATIONS[name] = function
        return function

    return register


def define(name: str, function: Callable[..., Any]) -> None:
    """An element-wise operation of the operands alone."""
    OPERATIONS[name] = lambda *operands: elementwise(function, *operands)


def numbers(*operands: Any) -> list[Any]:
    return promoted(*(as_number(x) for x in operands))


def real(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *operands: function(*(as_f32(x) for x in operands))


def compared(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(*numbers(x, y))


# --- arithmetic ---------------------------------------------------------------------------------------------------

def scaled(y: Any, alpha: Any) -> Any:
    return y if isinstance(alpha, int) and alpha == 1 else as_number(y) * literal(alpha)


@op("add")
def add(x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return elementwise(lambda x, y: as_number(x) + as_number(scaled(y, alpha)), x, y)


@op("sub", "subtract")
def sub(x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return elementwise(lambda x, y: as_number(x) - as_number(scaled(y, alpha)), x, y)


@op("rsub")
def rsub(x: Any, y: Any, alpha: Any = 1) -> Value:
    return elementwise(lambda x, y: as_number(y) - as_number(scaled(x, alpha)), x, y)


def multiplied(x: Any, y: Any) -> Any:
    x, y = literal(x), literal(y)
    return x & y if x.type == y.type == "bool" else as_number(x) * as_number(y)


define("mul", multiplied)
define("square", lambda x: as_number(x) * as_number(x))
define("neg", lambda x: -as_number(x))
define("abs", lambda x: _core.abs(as_number(x)))
define("reciprocal", lambda x: 1.0 / as_f32(x))
define("minimum", lambda x, y: _core.minimum(*numbers(x, y)))
define("maximum", lambda x, y: _core.maximum(*numbers(x, y)))
define("fmin", lambda x, y: _core.minimum(*numbers(x, y)))
define("fmax", lambda x, y: _core.maximum(*numbers(x, y)))
define("floor_divide", lambda x, y: operator_floor_divide(*numbers(x, y)))
define("remainder", lambda x, y: operator_remainder(*numbers(x, y)))


def operator_floor_divide(x: Any, y: Any) -> Any:
    return x // y


def operator_remainder(x: Any, y: Any) -> Any:
    return x % y


def truncated_division(x: Any, y: Any) -> Any:
    """Toward zero, as C's division."""
    x, y = numbers(x, y)
    if x.type == "f32":
        return _core.trunc(x / y)
    quotient = _core.abs(x) // _core.abs(y)
    return _core.where((x < 0) ^ (y < 0), -quotient, quotient)


define("fmod", lambda x, y: remainder_of_truncation(*numbers(x, y)))


def remainder_of_truncation(x: Any, y: Any) -> Any:
    if x.type == "f32":  # exact: the sign of x on the remainder of the absolute values
        r = _core.abs(x) % _core.abs(y)
        return _core.where(x < 0, -r, r)
    r = _core.abs(x) % _core.abs(y)
    return _core.where(x < 0, -r, r)


@op("div", "divide", "true_divide")
def div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return elementwise(lambda x, y: operator_floor_divide(*numbers(x, y)), x, y)
    if rounding_mode == "trunc":
        return elementwise(truncated_division, x, y)
    return elementwise(lambda x, y: as_f32(as_number(x)) / as_f32(as_number(y)), x, y)


def power(x: Any, y: Any) -> Any:
    x, y = as_number(x), as_number(y)
    if y.type == "i32" or str(y) in ("2.0", "3.0", "4.0"):
        try:
            exponent = int(float(str(y)))
        except ValueError:
            exponent = -1
        if 0 <= exponent <= 16:
            return integer_power(x, exponent)
    if x.type == y.type == "i32":
        raise Unsupported("a power of integers whose exponent is no literal from 0 to 16")
    if str(y) == "0.5":
        return _core.sqrt(as_f32(x))
    if str(y) == "-1.0":
        return 1.0 / as_f32(x)
    return _core.power(as_f32(x), as_f32(y))


def integer_power(x: Any, exponent: int) -> Any:
    if exponent == 0:
        return literal(1.0 if x.type == "f32" else 1)
    half = integer_power(x, exponent // 2) if exponent > 1 else None
    if half is None:
        return x
    return half * half * x if exponent % 2 else half * half


define("pow", power)
define("float_power", lambda x, y: power(as_f32(x), y))


def signed(x: Any) -> Any:
    return _core.sign(as_number(x))


define("sign", signed)
define("sgn", signed)


@op("clamp", "clip")
def clamp(x: Any, min: Any = None, max: Any = None) -> Value:
    if min is not None:
        x = elementwise(lambda x, low: _core.maximum(*numbers(x, low)), x, min)
    if max is not None:
        x = elementwise(lambda x, high: _core.minimum(*numbers(x, high)), x, max)
    return x


op("clamp_min")(lambda x, low: clamp(x, low))
op("clamp_max")(lambda x, high: clamp(x, None, high))
define("relu", lambda x: _core.maximum(*numbers(x, 0)))


# --- functions of a real ------------------------------------------------------------------------------------------

for _name in ("exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "erf", "expm1", "log1p",
              "tan", "atan"):
    define(_name, real(getattr(_core, _name)))
for _name in ("floor", "ceil", "trunc"):
    define(_name, lambda x, f=getattr(_core, _name): f(x) if literal(x).type == "f32" else as_number(x))
define("fix", lambda x: _core.trunc(x) if literal(x).type == "f32" else as_number(x))
define("log10", real(lambda x: _core.log(x) * (1 / math.log(10))))
define("sinh", real(lambda x: (_core.exp(x) - _core.exp(-x)) * 0.5))
define("cosh", real(lambda x: (_core.exp(x) + _core.exp(-x)) * 0.5))
define("silu", real(lambda x: x * _core.sigmoid(x)))
# Its second result is a buffer for the backward.
op("log_sigmoid_forward")(lambda x: (elementwise(real(lambda x: -softplus_of(-x, 1.0, 20.0)), x), Value.scalar(literal(0.0))))
define("isnan", lambda x: _core.isnan(as_f32(x)))
define("isinf", lambda x: _core.isinf(as_f32(x)))
define("isneginf", lambda x: as_f32(x) == -math.inf)
define("isposinf", lambda x: as_f32(x) == math.inf)
define("isfinite", lambda x: ~(_core.isnan(as_f32(x)) | _core.isinf(as_f32(x))))


@op("round")
def round_half_to_even(x: Any, *, decimals: int = 0) -> Value:
    if decimals == 0:
        return elementwise(lambda x: _core.round(x) if literal(x).type == "f32" else as_number(x), x)
    factor = 10.0**decimals
    return elementwise(lambda x: _core.round(as_f32(x) * factor) / factor, x)


def softplus_of(x: Any, beta: float, threshold: float) -> Any:
    scaled_x = x * beta
    return _core.where(scaled_x > threshold, x, _core.log1p(_core.exp(scaled_x)) / beta)


op("softplus")(lambda x, beta=1.0, threshold=20.0: elementwise(lambda x: softplus_of(as_f32(x), beta, threshold), x))


@op("gelu")
def gelu(x: Any, *, approximate: str = "none") -> Value:
    def exact(x: Any) -> Any:
        return 0.5 * x * (1.0 + _core.erf(x * math.sqrt(0.5)))

    def by_tanh(x: Any) -> Any:
        return 0.5 * x * (1.0 + _core.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    return elementwise(real(by_tanh if approximate == "tanh" else exact), x)


op("leaky_relu")(lambda x, slope=0.01: elementwise(lambda x: _core.where(as_f32(x) > 0, as_f32(x), as_f32(x) * slope), x))
op("hardtanh")(lambda x, low=-1.0, high=1.0: clamp(x, low, high))
op("elu")(lambda x, alpha=1.0, scale=1.0, input_scale=1.0: elementwise(
    lambda x: _core.where(as_f32(x) > 0, as_f32(x) * scale, _core.expm1(as_f32(x) * input_scale) * (alpha * scale)), x))


@op("logaddexp")
def logaddexp(x: Any, y: Any) -> Value:
    def of(x: Any, y: Any) -> Any:
        largest = _core.maximum(x, y)
        return _core.where(x == y, x + math.log(2), largest + _core.log1p(_core.exp(-_core.abs(x - y))))

    return elementwise(real(of), x, y)


# --- comparisons, logic, bits -------------------------------------------------------------------------------------

define("eq", compared(lambda x, y: x == y))
define("ne", compared(lambda x, y: x != y))
define("lt", compared(lambda x, y: x < y))
define("le", compared(lambda x, y: x <= y))
define("gt", compared(lambda x, y: x > y))
define("ge", compared(lambda x, y: x >= y))
define("logical_and", lambda x, y: as_bool(x) & as_bool(y))
define("logical_or", lambda x, y: as_bool(x) | as_bool(y))
define("logical_xor", lambda x, y: as_bool(x) ^ as_bool(y))
define("logical_not", lambda x: ~as_bool(x))


def integers(name: str, function: Callable[..., Any]) -> None:
    def of(*operands: Any) -> Any:
        exprs = promoted(*operands)
        if exprs[0].type == "f32":
            raise Unsupported(f"{name} of floating-point numbers")
        return function(*exprs)

    define(name, of)


for _name, _symbol in (("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)):
    integers(f"bitwise_{_name}", _symbol)
    integers(f"__{_name}__", _symbol)
integers("bitwise_not", lambda x: ~x)
integers("bitwise_left_shift", lambda x, y: as_i32(x) << as_i32(y))
integers("bitwise_right_shift", lambda x, y: as_i32(x) >> as_i32(y))
integers("__lshift__", lambda x, y: as_i32(x) << as_i32(y))
integers("__rshift__", lambda x, y: as_i32(x) >> as_i32(y))


@op("where")
def where(condition: Any, x: Any = None, y: Any = None) -> Value:
    if x is None or y is None:
        raise Unsupported("torch.where with a condition alone, whose result has no shape of its own")
    return elementwise(lambda c, x, y: _core.where(as_bool(c), *promoted(x, y)), condition, x, y)


op("masked_fill")(lambda x, mask, fill: elementwise(lambda x, m, f: filled(x, m, f), x, mask, fill))


def filled(x: Any, mask: Any, fill: Any) -> Any:
    x = literal(x)
    return _core.where(as_bool(mask), values.AS[x.type](fill), x)


op("lerp")(lambda x, y, weight: elementwise(lambda x, y, w: as_f32(x) + as_f32(w) * (as_f32(y) - as_f32(x)), x, y, weight))
op("addcmul")(lambda x, y, z, *, value=1: elementwise(lambda x, y, z: as_number(x) + multiplied(y, z) * value, x, y, z))


# --- copies, casts, constants -------------------------------------------------------------------------------------

@op("_to_copy", "to", "convert_element_type")
def to_copy(x: Value, *rest: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return cast(x, next((one for one in rest if isinstance(one, torch.dtype)), dtype))


for _name in ("alias", "detach", "clone", "lift_fresh", "lift_fresh_copy", "contiguous", "alias_copy", "positive",
              "detach_copy"):
    OPERATIONS[_name] = lambda x, **_: x
op("copy")(lambda x, y, *_: values.expanded(cast_to(y, x.kind), x.shape))


def cast_to(x: Any, kind: str) -> Value:
    return elementwise(values.AS[kind], x)


def constant(shape: Sequence[int], fill: Any, dtype: torch.dtype | None) -> Value:
    value = fill if isinstance(fill, Value) else Value.scalar(literal(fill))
    return values.expanded(cast(value, dtype), [int(extent) for extent in shape])


op("full")(lambda shape, fill, *, dtype=None, **_: constant(shape, fill, dtype))
op("zeros", "empty")(lambda shape, *, dtype=None, **_: constant(shape, 0, dtype or torch.float32))
op("ones")(lambda shape, *, dtype=None, **_: constant(shape, 1, dtype or torch.float32))
op("scalar_tensor")(lambda fill, *, dtype=None, **_: constant((), fill, dtype or torch.float32))
op("new_full", "full_like")(lambda x, *rest, dtype=None, **_: constant_as(x, rest[-1], dtype, rest[0] if len(rest) > 1 else None))
op("new_zeros")(lambda x, shape, *, dtype=None, **_: constant_as(x, 0, dtype, shape))
op("new_empty")(lambda x, shape, *, dtype=None, **_: constant_as(x, 0, dtype, shape))
op("new_ones")(lambda x, shape, *, dtype=None, **_: constant_as(x, 1, dtype, shape))
op("zeros_like", "empty_like")(lambda x, *, dtype=None, **_: constant_as(x, 0, dtype, None))
op("ones_like")(lambda x, *, dtype=None, **_: constant_as(x, 1, dtype, None))
op("fill")(lambda x, fill: constant_as(x, fill, None, None))


def constant_as(x: Value, fill: Any, dtype: torch.dtype | None, shape: Sequence[int] | None) -> Value:
    made = constant(x.shape if shape is None else shape, fill, dtype)
    return made if dtype is not None else cast_to(made, x.kind)


@op("arange")
def arange(*bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    begin, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1) if len(bounds) == 2 else bounds
    count = max(math.ceil((end - begin) / step), 0)
    return cast(Value((count,), lambda index: literal(begin) + literal(index[0]) * step), dtype)


# --- views and gathers --------------------------------------------------------------------------------------------

op("expand")(lambda x, shape, **_: values.expanded(x, shape))
op("permute")(values.permuted)
op("transpose", "swapaxes")(values.transposed)
op("t", "numpy_T")(lambda x: values.permuted(x, range(len(x.shape))[::-1]))
op("select")(values.selected)
op("slice")(lambda x, axis=0, begin=None, end=None, step=1: values.sliced(x, axis, begin, end, step))
op("narrow")(lambda x, axis, begin, length: values.sliced(x, axis, begin, begin + length))
op("unsqueeze")(values.unsqueezed)
op("flip")(values.flipped)
op("view", "_unsafe_view", "reshape", "_reshape_alias")(lambda x, shape, *_: values.viewed(x, shape))
op("cat", "concat")(lambda tensors, axis=0: values.concatenated(tensors, axis))
op("stack")(lambda tensors, axis=0: values.concatenated([values.unsqueezed(x, axis) for x in tensors], axis))
op("unbind")(lambda x, axis=0: [values.selected(x, axis, i) for i in range(x.shape[values.axis_of(axis, len(x.shape))])])
op("index", "_unsafe_index")(values.gathered)


@op("squeeze")
def squeeze(x: Value, axes: Any = None) -> Value:
    return values.squeezed(x, [axes] if isinstance(axes, int) else axes)


@op("index_select")
def index_select(x: Value, axis: int, index: Value) -> Value:
    axis = values.axis_of(axis, len(x.shape))
    return values.gathered(x, [None] * axis + [index if index.shape else values.unsqueezed(index, 0)])


op("embedding")(lambda table, index, *_: values.gathered(table, [index]))
op("take")(lambda x, index: values.gathered(values.viewed(x, [-1]), [index]))


@op("gather")
def gather(x: Value, axis: int, index: Value, **_: Any) -> Value:
    axis = values.axis_of(axis, len(x.shape))
    return Value(index.shape, lambda i: x.at(i[:axis] + (index.at(i),) + i[axis + 1:]))


# --- reductions ---------------------------------------------------------------------------------------------------

def reduction(names: Sequence[str], function: Callable[[Any, Any], Any], element: Callable[[Any], Any], empty: Any) -> None:
    def of(x: Value, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
        axes = [axes] if isinstance(axes, int) else axes
        return values.reduced(function, elementwise(element, cast(x, dtype)), axes, keepdim, literal(empty))

    op(*names)(of)


reduction(["sum"], lambda x, y: x + y, as_number, 0)
reduction(["prod"], lambda x, y: x * y, as_number, 1)
reduction(["any"], lambda x, y: x | y, as_bool, False)
reduction(["all"], lambda x, y: x & y, as_bool, True)
reduction(["amax"], lambda x, y: _core.maximum(x, y), as_number, -math.inf)
reduction(["amin"], lambda x, y: _core.minimum(x, y), as_number, math.inf)


def extremum(name: str, reduce: str) -> None:
    def of(x: Value, *rest: Any, keepdim: bool = False) -> Any:
        if not rest:
            return OPERATIONS[reduce](x)
        if isinstance(rest[0], Value):
            return OPERATIONS[f"{name}imum"](x, rest[0])
        raise Unsupported(f"torch.{name} with an axis, for its indices: use torch.a{name}")

    op(name)(of)


extremum("max", "amax")
extremum("min", "amin")


@op("mean")
def mean(x: Value, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    axes = [axes] if isinstance(axes, int) else axes
    rank = len(x.shape)
    gone = {values.axis_of(axis, rank) for axis in (axes or range(rank))}
    count = math.prod(x.shape[axis] for axis in gone)
    return elementwise(lambda total: total / float(count), OPERATIONS["sum"](cast_to(x, "f32"), axes, keepdim))


def dot(x: Value, y: Value) -> Value:
    return OPERATIONS["sum"](elementwise(multiplied, x, y), [-1])


op("dot", "vdot", "inner")(dot)
op("mv")(lambda x, y: dot(x, y))
op("mm")(lambda x, y: dot(values.unsqueezed(x, 1), values.unsqueezed(values.transposed(y, 0, 1), 0)))
op("bmm")(lambda x, y: dot(values.unsqueezed(x, 2), values.unsqueezed(values.transposed(y, 1, 2), 1)))
