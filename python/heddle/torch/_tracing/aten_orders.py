"""aten's orders of a few elements: where the largest one stands, sort, topk, median. Unrolled as comparisons."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ... import _core
from . import values
from .operations import op
from .values import Unsupported, Value, as_number, literal

MOST_ORDERED = 16  # sort compares each pair
ORDERS = frozenset(("argmax", "argmin", "argsort", "kthvalue", "max", "median", "min", "msort", "sort", "topk"))


def comes_before(x: Any, y: Any, descending: bool, nan_first: bool) -> Any:
    """Whether x stands before y in one of torch's orders: NaN is the largest for sort, what they seek for max and min."""
    before = x > y if descending else x < y
    if x.type != "f32":
        return before
    first, other = (x, y) if nan_first else (y, x)
    return before | (_core.isnan(first) & (other == other))


def lines(x: Value, axis: int, most: int) -> tuple[int, Callable[[values.Index], list[Any]]]:
    """An axis, and a function that gives its elements for an index without it."""
    axis = values.axis_of(axis, len(x.shape))
    extent = x.shape[axis] if x.shape else 1
    if not 0 < extent <= most:
        raise Unsupported(f"an order of {extent} elements for each score; 1 to {most} are unrolled")

    def elements(index: values.Index) -> list[Any]:
        if not x.shape:
            return [as_number(x.at(()))]
        return [as_number(x.at((*index[:axis], i, *index[axis:]))) for i in range(extent)]

    return axis, elements


def first_of(x: Value, axis: int | None, keepdim: bool, descending: bool) -> tuple[Value, Value]:
    """The element that comes first on an axis (None: of all), and where it stands: the first of several such places."""
    if axis is None:
        x, axis = values.viewed(x, [-1]), 0
        keepdim = False
    axis, elements = lines(x, axis, values.MOST_UNROLLED)
    shape = x.shape[:axis] + ((1,) if keepdim else ()) + x.shape[axis + 1:]

    def of(which: int) -> Value:
        def found(index: values.Index) -> Any:
            best, *others = elements(index[:axis] + index[axis + 1:] if keepdim and x.shape else index)
            place: Any = literal(0)
            for i, one in enumerate(others, 1):
                better = comes_before(one, best, descending, True)
                best, place = _core.where(better, one, best), _core.where(better, i, place)
            return (best, place)[which]

        return Value(shape, found)

    return of(0), of(1)


for _name, _descending in (("max", True), ("min", False)):
    op(f"arg{_name}")(lambda x, axis=None, keep=False, *, keepdim=False, descending=_descending: first_of(
        x, axis, keep or keepdim, descending)[1])


def ordered(x: Value, axis: int, descending: bool, count: int | None = None) -> tuple[Value, Value]:
    """The first elements of a sorted axis, and their places. Equal ones keep their order, as those of a stable sort."""
    axis, elements = lines(x, axis, MOST_ORDERED)

    def of(which: int) -> Value:
        def found(index: values.Index) -> Any:
            if not x.shape:
                return (x.at(()), literal(0))[which]
            terms, wanted = elements(index[:axis] + index[axis + 1:]), index[axis]
            result: Any = None
            for i, one in enumerate(terms):
                before = [comes_before(other, one, descending, descending) if i < j
                          else ~comes_before(one, other, descending, descending)
                          for j, other in enumerate(terms) if i != j]
                rank = values.joined(operator.add, [_core.to_i32(is_before) for is_before in before] or [literal(0)])
                choice = (one, literal(i))[which]
                result = choice if result is None else _core.where(rank == wanted, choice, result)
            return result

        kept = x.shape[axis:axis + 1] if count is None else (count,)
        return Value(x.shape[:axis] + kept + x.shape[axis + 1:] if x.shape else (), found)

    return of(0), of(1)


@op("sort")
def sort(x: Value, *rest: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> list[Value]:
    places = [one for one in rest if isinstance(one, bool)]
    dim = next((one for one in rest if type(one) is int), dim)
    return list(ordered(x, dim, places[-1] if places else descending))


op("argsort")(lambda x, *rest, **options: sort(x, *rest, **options)[1])
op("msort")(lambda x: ordered(x, 0, False)[0])


@op("topk")
def topk(x: Value, count: int, dim: int = -1, largest: bool = True, *_: Any) -> list[Value]:
    return list(ordered(x, dim, largest, count))


def at_place(x: Value, axis: int, place: int, keepdim: bool) -> list[Value]:
    axis = values.axis_of(axis, len(x.shape))
    parts = ordered(x, axis, False)
    if not x.shape:
        return list(parts)
    return [values.sliced(one, axis, place, place + 1) if keepdim else values.selected(one, axis, place)
            for one in parts]


@op("kthvalue")
def kthvalue(x: Value, k: int, dim: int = -1, keepdim: bool = False) -> list[Value]:
    return at_place(x, dim, k - 1, keepdim)


@op("median")
def median(x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of two in the middle; NaN if there is one."""
    whole = x if dim is not None else values.viewed(x, [-1])
    axis = values.axis_of(0 if dim is None else dim, len(whole.shape))
    extent = whole.shape[axis] if whole.shape else 1
    middle, last = (at_place(whole, axis, place, keepdim) for place in ((extent - 1) // 2, extent - 1))
    if whole.kind == "f32":
        is_nan = values.elementwise(_core.isnan, last[0])
        middle = [values.elementwise(_core.where, is_nan, end, one) for one, end in zip(middle, last)]
    return middle if dim is not None else middle[0]
