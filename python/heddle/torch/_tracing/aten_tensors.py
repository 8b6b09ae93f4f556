"""aten's operations on whole tensors: copies, constants, views, gathers, reductions and products."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ... import _core
from . import values
from .aten import multiplied, power
from .aten_orders import ORDERS, first_of
from .operations import OPERATIONS, Operation, cast, cast_to, op
from .values import Unsupported, Value, as_bool, as_f32, as_number, elementwise, literal

# --- copies, casts, constants -------------------------------------------------------------------------------------

@op("_to_copy", "to", "convert_element_type")
def to_copy(x: Value, *rest: Any, dtype: torch.dtype | None = None, **_: Any) -> Value:
    return cast(x, next((one for one in rest if isinstance(one, torch.dtype)), dtype))


op("alias", "real", "clone", "lift_fresh", "lift_fresh_copy", "contiguous", "alias_copy", "positive")(
    lambda x, **_: x)
op("copy")(lambda x, y, *_: values.expanded(cast_to(y, x.kind), x.shape))


def constant(shape: Sequence[int], fill: Any, dtype: torch.dtype | None) -> Value:
    value = fill if isinstance(fill, Value) else Value.scalar(literal(fill))
    return values.expanded(cast(value, dtype), [int(extent) for extent in shape])


op("full")(lambda shape, fill, *, dtype=None, **_: constant(shape, fill, dtype))
op("zeros", "empty")(lambda shape, *, dtype=None, **_: constant(shape, 0, dtype or torch.float32))
op("ones")(lambda shape, *, dtype=None, **_: constant(shape, 1, dtype or torch.float32))
op("scalar_tensor")(lambda fill, *, dtype=None, **_: constant((), fill, dtype or torch.float32))
op("new_full")(lambda x, shape, fill, *, dtype=None, **_: constant_as(x, fill, dtype, shape))
op("full_like")(lambda x, fill, *, dtype=None, **_: constant_as(x, fill, dtype, None))
op("new_zeros", "new_empty")(lambda x, shape, *, dtype=None, **_: constant_as(x, 0, dtype, shape))
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
op("expand_as")(lambda x, other: values.expanded(x, other.shape))
op("permute")(values.permuted)
op("transpose", "swapaxes")(values.transposed)
op("t", "numpy_T")(lambda x: values.permuted(x, range(len(x.shape))[::-1]))
op("select")(values.selected)
op("slice")(lambda x, axis=0, begin=None, end=None, step=1: values.sliced(x, axis, begin, end, step))
op("narrow")(lambda x, axis, begin, length: values.sliced(x, axis, begin, begin + length))
op("unsqueeze")(values.unsqueezed)
op("flip")(values.flipped)


@op("view", "_unsafe_view", "reshape", "_reshape_alias")
def viewed(x: Value, shape: Any, *_: Any) -> Value:
    if isinstance(shape, torch.dtype):
        raise Unsupported(f"a view as {shape}: mods do not see the bits of numbers")
    return values.viewed(x, shape)


@op("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes")
def split(x: Value, sizes: Any, axis: int = 0) -> list[Value]:
    """Parts of these sizes, or all of one size but the last; chunk() calls it."""
    axis = values.axis_of(axis, len(x.shape))
    if isinstance(sizes, int):
        ends = [*range(sizes, x.shape[axis], sizes), x.shape[axis]]
    else:
        ends = list(itertools.accumulate(int(size) for size in sizes))
    return [values.sliced(x, axis, begin, end) for begin, end in zip([0, *ends], ends)]


op("cat", "concat")(lambda tensors, axis=0: values.concatenated(tensors, axis))
op("stack")(lambda tensors, axis=0: values.concatenated([values.unsqueezed(x, axis) for x in tensors], axis))
op("index", "_unsafe_index")(values.indexed)


@op("broadcast_in_dim")
def broadcast_in_dim(x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
    """Axis n of x stands at axes[n]."""
    between = [x.shape[axes.index(axis)] if axis in axes else 1 for axis in range(len(shape))]
    return values.expanded(values.viewed(x, between), shape)


@op("constant_pad_nd")
def padded(x: Value, pad: Sequence[int], fill: Any = 0) -> Value:
    """`pad`: elements before and behind the last axis, the one before it, and so on; negative ones are cut off."""
    for i, (before, behind) in enumerate(zip(pad[::2], pad[1::2]), 1):
        axis = len(x.shape) - i
        x = values.sliced(x, axis, max(0, -before), x.shape[axis] - max(0, -behind), 1)
        first, last = (constant_as(x, fill, None, (*x.shape[:axis], max(0, count), *x.shape[axis + 1:]))
                       for count in (before, behind))
        x = values.concatenated([one for one in (first, x, last) if one.count or one is x], axis)
    return x


@op("diagonal", "diagonal_copy")
def diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    rank = len(x.shape)
    first, second = values.axis_of(dim1, rank), values.axis_of(dim2, rank)
    row, column = max(0, -offset), max(0, offset)
    extent = max(0, min(x.shape[first] - row, x.shape[second] - column))
    kept = [axis for axis in range(rank) if axis not in (first, second)]

    def element(index: values.Index) -> Any:
        at: dict[int, Any] = dict(zip(kept, index))
        at[first], at[second] = index[-1] + row, index[-1] + column
        return x.at(tuple(at[axis] for axis in range(rank)))

    return Value([*(x.shape[axis] for axis in kept), extent], element)


@op("unbind")
def unbind(x: Value, axis: int = 0) -> list[Value]:
    count = x.shape[values.axis_of(axis, len(x.shape))]
    return [values.selected(x, axis, i) for i in range(count)]


@op("squeeze")
def squeeze(x: Value, axes: Any = None) -> Value:
    return values.squeezed(x, [axes] if isinstance(axes, int) else axes)


@op("index_select")
def index_select(x: Value, axis: int, index: Value) -> Value:
    axis = values.axis_of(axis, len(x.shape))
    return values.gathered(x, [None] * axis + [index if index.shape else values.unsqueezed(index, 0)])


op("embedding")(lambda table, index, *_: values.gathered(table, [index]))
op("take")(lambda x, index: values.indexed(values.viewed(x, [-1]), [index]))


@op("gather")
def gather(x: Value, axis: int, index: Value, **_: Any) -> Value:
    axis = values.axis_of(axis, len(x.shape))
    return Value(index.shape, lambda i: x.at(i[:axis] + (index.at(i),) + i[axis + 1:]))


# --- reductions ---------------------------------------------------------------------------------------------------

REDUCTIONS: set[str] = set()  # their names
# Their integers are i64, whatever the operands' are.
WIDE = ORDERS - {"max", "median", "min"} | {"arange", "bucketize", "full", "prod", "searchsorted", "sum"}


def pairwise(function: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    return lambda terms: values.joined(function, terms)


def reduction(name: str, join: Callable[[list[Any]], Any], element: Callable[[Any], Any], empty: Any) -> Operation:
    """Registers a reduction over axes (None: all) that joins the results of element(x) by join(elements)."""
    REDUCTIONS.add(name)

    @op(name)
    def of(x: Value, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
        axes = [axes] if isinstance(axes, int) else axes
        return values.reduced(join, elementwise(element, cast(x, dtype)), axes, keepdim, literal(empty))

    return of


total = reduction("sum", pairwise(operator.add), as_number, 0)
reduction("prod", pairwise(operator.mul), as_number, 1)
reduction("any", pairwise(operator.or_), as_bool, False)
reduction("all", pairwise(operator.and_), as_bool, True)


def shared_among_ties(function: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    """The largest or smallest element, whose slope all that are equal to it share equally, as in torch.

    Joined by `function` alone, ties in three elements would have slopes of 1/2, 1/4 and 1/4. Its text grows with the square
    of the elements' number.
    """
    def join(terms: list[Any]) -> Any:
        extreme = values.joined(function, terms)
        if len(terms) < 3 or terms[0].type != "f32":
            return extreme
        ties = [x == extreme for x in terms]
        count = values.joined(operator.add, [as_f32(tie) for tie in ties])
        # 0, whose slope takes the extreme's own away and adds the mean of the ties'. Of infinities it would be NaN.
        zero = values.joined(operator.add, [_core.where(tie, x - extreme, 0.0) for tie, x in zip(ties, terms)])
        return _core.where(_core.isinf(extreme), extreme, extreme + zero / count)

    return join


reduction("amax", shared_among_ties(_core.maximum), as_number, -math.inf)
reduction("amin", shared_among_ties(_core.minimum), as_number, math.inf)


def extremum(name: str) -> None:
    """torch.max or torch.min: of all elements, of an axis with their places, or of two tensors."""
    @op(name)
    def of(x: Value, *rest: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if rest and isinstance(rest[0], Value):
            return OPERATIONS[f"{name}imum"](x, rest[0])
        axis, keep = (*rest, keepdim)[:2] if rest else (dim, keepdim)
        return OPERATIONS[f"a{name}"](x) if axis is None else list(first_of(x, axis, keep, name == "max"))


extremum("max")
extremum("min")


@op("mean")
def mean(x: Value, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    axes = [axes] if isinstance(axes, int) else axes
    rank = len(x.shape)
    gone = {values.axis_of(axis, rank) for axis in (axes or range(rank))}
    count = math.prod(x.shape[axis] for axis in gone)
    return elementwise(lambda x: x / float(count), total(cast_to(x, "f32"), axes, keepdim))


@op("var")
def variance(x: Value, axes: Any = None, *rest: Any, correction: float | None = None, keepdim: bool = False) -> Value:
    """torch's forms: (unbiased), (axes, unbiased, keepdim), and with a correction, which prims::var takes after the axes."""
    if isinstance(axes, bool):
        axes, rest = None, (axes,)
    if rest:
        correction, keepdim = float(rest[0]), (*rest, keepdim)[1]
    axes = [axes] if isinstance(axes, int) else axes
    difference = elementwise(operator.sub, cast_to(x, "f32"), mean(x, axes, True))
    rank = len(x.shape)
    count = math.prod(x.shape[axis] for axis in {values.axis_of(axis, rank) for axis in (axes or range(rank))})
    divisor = max(0.0, count - (1 if correction is None else correction))
    squares = total(elementwise(multiplied, difference, difference), axes, keepdim)
    return elementwise(lambda x: x / divisor if divisor else x * math.nan, squares)


op("std")(lambda *given, **options: elementwise(_core.sqrt, variance(*given, **options)))


def largest_of(x: Value, axes: Any, keepdim: bool) -> Value:
    """amax() without its slope at ties: for functions in which it cancels."""
    return values.reduced(pairwise(_core.maximum), x, axes, keepdim, literal(-math.inf))


def below_largest(x: Value, axis: int) -> Value:
    return elementwise(operator.sub, cast_to(x, "f32"), largest_of(cast_to(x, "f32"), [axis], True))


@op("_softmax")
def softmax(x: Value, axis: int, *_: Any) -> Value:
    powers = elementwise(_core.exp, below_largest(x, axis))
    return elementwise(operator.truediv, powers, total(powers, [axis], True))


@op("_log_softmax")
def log_softmax(x: Value, axis: int, *_: Any) -> Value:
    below = below_largest(x, axis)
    return elementwise(lambda x, sum_: x - _core.log(sum_), below, total(elementwise(_core.exp, below), [axis], True))


@op("logsumexp")
def logsumexp(x: Value, axes: Any, keepdim: bool = False) -> Value:
    axes, x = [axes] if isinstance(axes, int) else axes, cast_to(x, "f32")
    powers = elementwise(lambda x, most: _core.exp(_core.where(_core.isinf(most), x, x - most)), x, largest_of(x, axes, True))
    return elementwise(lambda sum_, most: _core.where(_core.isinf(most), most, _core.log(sum_) + most),
                       total(powers, axes, keepdim), largest_of(x, axes, keepdim))


def root(x: Any, function: Callable[[Any], Any]) -> Any:
    """function(x), an inverse of a power, with the slope 0 at 0, where torch's norms have it."""
    return _core.where(x == 0, 0.0, function(x))


@op("linalg_vector_norm")
def vector_norm(
    x: Value, p: float = 2, axes: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    size = elementwise(lambda x: _core.abs(as_f32(x)), cast(x, dtype))
    if math.isinf(p) or (p > 0 and x.count == 1):  # the square of one element may overflow
        return OPERATIONS["amax" if p > 0 else "amin"](size, axes, keepdim)
    if p == 0:
        return total(elementwise(lambda x: as_f32(x != 0), size), axes, keepdim)
    if p == 1:
        return total(size, axes, keepdim)
    if p == 2:
        squares = total(elementwise(lambda x: as_f32(x) * as_f32(x), cast(x, dtype)), axes, keepdim)
        return elementwise(lambda x: root(x, _core.sqrt), squares)
    # Below 1, the slope of a power at 0 is infinite.
    powers = elementwise(lambda x: root(x, lambda x: power(x, p)) if p > 0 else power(x, p), size)
    return elementwise(lambda x: root(x, lambda x: power(x, 1 / p)), total(powers, axes, keepdim))


@op("dot", "vdot", "inner", "mv")
def dot(x: Value, y: Value) -> Any:
    return total(elementwise(multiplied, x, y), [-1])


op("mm")(lambda x, y: dot(values.unsqueezed(x, 1), values.unsqueezed(values.transposed(y, 0, 1), 0)))
op("bmm")(lambda x, y: dot(values.unsqueezed(x, 2), values.unsqueezed(values.transposed(y, 1, 2), 1)))
