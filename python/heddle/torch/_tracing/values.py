"""Symbolic tensors: a shape of ints, and for each index the expression of the element there.

Elements are expressions of heddle._core. An index is a tuple of expressions and ints. An operation of a mod is one of:

- an element-wise function of broadcast operands,
- a change of the index (views, gathers),
- an unrolled reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ... import _core
from ..._tracing.negative_indices import from_the_front

Index = tuple[Any, ...]
MOST_UNROLLED = 256


class Unsupported(Exception):
    """An operation that has no expression; the message says which."""


def literal(value: Any) -> Any:
    if isinstance(value, _core.Expr):
        return value
    if type(value) is int and not -(2**31) < value < 2**31:
        return wide_literal(value)
    return _core.as_expr(value)


def wide_literal(value: int) -> Any:
    """An integer that is no literal of i32, nor its negative, as a sum that is right in 64 bits (_exact.py)."""
    if not -(2**63) <= value < 2**63:
        return _core.as_expr(float(value))
    above, rest = divmod(value, 2**30)
    return literal(above) * literal(2**30) + literal(rest)


def as_number(x: Any) -> Any:
    """Booleans as i32, because torch's arithmetic counts True as 1."""
    x = literal(x)
    return _core.to_i32(x) if x.type == "bool" else x


def as_f32(x: Any) -> Any:
    x = literal(x)
    return x if x.type == "f32" else _core.to_f32(x)


def as_i32(x: Any) -> Any:
    x = literal(x)
    return x if x.type == "i32" else _core.to_i32(x)


def as_bool(x: Any) -> Any:
    x = literal(x)
    return x if x.type == "bool" else x != 0


AS = {"f32": as_f32, "i32": as_i32, "bool": as_bool}
ORDER = {"bool": 0, "i32": 1, "f32": 2}


def promoted(*elements: Any) -> list[Any]:
    """The elements as expressions of one type: the highest of theirs."""
    exprs = [literal(x) for x in elements]
    highest = max((x.type for x in exprs), key=ORDER.__getitem__)
    return [AS[highest](x) for x in exprs]


class Value:
    """A symbolic tensor. `elements(index)` gives the element at an index of one entry for each axis."""

    __slots__ = ("shape", "_elements", "_scalar", "_kind")

    def __init__(self, shape: Sequence[int], elements: Callable[[Index], Any]) -> None:
        self.shape = tuple(shape)
        self._elements = elements
        self._scalar: Any = None
        self._kind: str | None = None

    @staticmethod
    def scalar(expr: Any) -> "Value":
        value = Value((), lambda _: expr)
        value._scalar = literal(expr)
        return value

    def at(self, index: Index) -> Any:
        if not self.shape:
            if self._scalar is None:
                self._scalar = literal(self._elements(()))
            return self._scalar
        return literal(self._elements(index))

    @property
    def kind(self) -> str:
        """The type of its elements: 'f32', 'i32' or 'bool'."""
        if self._kind is None:
            self._kind = self.at((0,) * len(self.shape)).type
        return self._kind

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def expr(self) -> Any:
        """The one element of a tensor of rank 0, or of extent 1 on each axis."""
        if self.count != 1:
            raise Unsupported(f"a tensor of shape {list(self.shape)} where one element is wanted")
        return self.at((0,) * len(self.shape))


def broadcast_shape(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    shapes = [tuple(shape) for shape in shapes]
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[axis] != 1 and result[axis] != extent:
                raise Unsupported(f"shapes {[list(shape) for shape in shapes]} do not broadcast")
            if extent != 1:
                result[axis] = extent
    return tuple(result)


def read_broadcast(value: Value, index: Index) -> Any:
    """The element of a value under an index of the shape that it is broadcast to."""
    if not value.shape:
        return value.at(())
    own = index[len(index) - len(value.shape):]
    return value.at(tuple(0 if extent == 1 else i for i, extent in zip(own, value.shape)))


def elementwise(function: Callable[..., Any], *operands: Any) -> Value:
    """function(elements...) on broadcast operands: Values, or Python's numbers."""
    values = [x if isinstance(x, Value) else Value.scalar(literal(x)) for x in operands]
    shape = broadcast_shape(x.shape for x in values)
    if not shape:
        return Value.scalar(function(*(x.at(()) for x in values)))
    return Value(shape, lambda index: function(*(read_broadcast(x, index) for x in values)))


def axis_of(axis: int, rank: int) -> int:
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def expanded(value: Value, shape: Sequence[int]) -> Value:
    added = len(shape) - len(value.shape)
    whole = tuple(
        value.shape[axis - added] if extent == -1 else int(extent) for axis, extent in enumerate(shape)
    )
    return Value(whole, lambda index: read_broadcast(value, index))


def permuted(value: Value, order: Sequence[int]) -> Value:
    rank = len(value.shape)
    order = [axis_of(axis, rank) for axis in order]

    def elements(index: Index) -> Any:
        original = [None] * rank
        for position, axis in enumerate(order):
            original[axis] = index[position]
        return value.at(tuple(original))

    return Value([value.shape[axis] for axis in order], elements)


def transposed(value: Value, first: int, second: int) -> Value:
    rank = len(value.shape)
    if rank == 0:
        return value
    order = list(range(rank))
    first, second = axis_of(first, rank), axis_of(second, rank)
    order[first], order[second] = order[second], order[first]
    return permuted(value, order)


def position_of(position: int, extent: int) -> int:
    """A negative one counts from the end."""
    if not -extent <= position < extent:
        raise Unsupported(f"index {position} on an axis of extent {extent}")
    return position % extent


def selected(value: Value, axis: int, position: Any) -> Value:
    """value[:, position] on one axis; `position` is an int or an expression."""
    axis = axis_of(axis, len(value.shape))
    if isinstance(position, int):
        position = position_of(position, value.shape[axis])
    return Value(
        value.shape[:axis] + value.shape[axis + 1:], lambda index: value.at(index[:axis] + (position,) + index[axis:])
    )


def sliced(value: Value, axis: int, begin: int | None, end: int | None, step: int = 1) -> Value:
    axis = axis_of(axis, len(value.shape))
    positions = range(value.shape[axis])[slice(begin, end, step)]
    start, stride = positions.start, positions.step

    def elements(index: Index) -> Any:
        return value.at(index[:axis] + (index[axis] * stride + start,) + index[axis + 1:])

    return Value(value.shape[:axis] + (len(positions),) + value.shape[axis + 1:], elements)


def flipped(value: Value, axes: Sequence[int]) -> Value:
    for axis in axes:
        axis = axis_of(axis, len(value.shape))
        value = _flipped_once(value, axis)
    return value


def _flipped_once(value: Value, axis: int) -> Value:
    last = value.shape[axis] - 1
    return Value(value.shape, lambda index: value.at(index[:axis] + (last - index[axis],) + index[axis + 1:]))


def unsqueezed(value: Value, axis: int) -> Value:
    axis = axis % (len(value.shape) + 1)
    shape = value.shape[:axis] + (1,) + value.shape[axis:]
    return Value(shape, lambda index: value.at(index[:axis] + index[axis + 1:]))


def squeezed(value: Value, axes: Sequence[int] | None = None) -> Value:
    rank = len(value.shape)
    wanted = range(rank) if axes is None else [axis_of(axis, rank) for axis in axes] if rank else []
    gone = {axis for axis in wanted if value.shape[axis] == 1}
    kept = [axis for axis in range(rank) if axis not in gone]

    def elements(index: Index) -> Any:
        whole = [0] * rank
        for position, axis in enumerate(kept):
            whole[axis] = index[position]
        return value.at(tuple(whole))

    return Value([value.shape[axis] for axis in kept], elements)


def viewed(value: Value, shape: Sequence[int]) -> Value:
    """Row-major reshape."""
    whole = [int(extent) for extent in shape]
    if -1 in whole:
        rest = math.prod(extent for extent in whole if extent != -1)
        whole[whole.index(-1)] = value.count // rest if rest else 0
    if math.prod(whole) != value.count:
        raise Unsupported(f"a view of shape {whole} of a tensor of shape {list(value.shape)}")

    def elements(index: Index) -> Any:
        offset: Any = 0
        for i, extent in zip(index, whole):
            offset = offset * extent + i
        original: list[Any] = []
        for extent in reversed(value.shape):
            original.append(offset % extent if extent > 1 else 0)
            offset = offset // extent if extent > 1 else offset
        return value.at(tuple(reversed(original)))

    return Value(whole, elements)


def indexed(value: Value, indices: Sequence[Value | None]) -> Value:
    """gathered() by indices of which the negative ones count from the end."""
    return gathered(value, [one if one is None else from_the_front_of(one, value.shape[axis])
                            for axis, one in enumerate(indices)])


def from_the_front_of(index: Value, extent: int) -> Value:
    if index.kind != "i32":
        return index
    return Value(index.shape, lambda at: from_the_front(index.at(at), lambda: extent, lambda: extent))


def gathered(value: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing, as aten.index: for each axis a Value of i32, or None for the whole axis."""
    indices = list(indices) + [None] * (len(value.shape) - len(indices))
    given = [axis for axis, index in enumerate(indices) if index is not None]
    for axis in given:
        if indices[axis].kind == "bool":  # type: ignore[union-attr]
            raise Unsupported("an index of booleans, whose result has no shape of its own: use torch.where")
    shape = broadcast_shape(indices[axis].shape for axis in given)  # type: ignore[union-attr]
    adjacent = given == list(range(given[0], given[-1] + 1)) if given else True
    front = given[0] if given and adjacent else 0
    free = [axis for axis in range(len(value.shape)) if indices[axis] is None]
    before, after = [axis for axis in free if axis < front], [axis for axis in free if axis >= front]

    def elements(index: Index) -> Any:
        whole: list[Any] = [0] * len(value.shape)
        for axis, i in zip(before, index):
            whole[axis] = i
        inner = index[len(before):len(before) + len(shape)]
        for axis in given:
            whole[axis] = read_broadcast(indices[axis], inner)  # type: ignore[arg-type]
        for axis, i in zip(after, index[len(before) + len(shape):]):
            whole[axis] = i
        return value.at(tuple(whole))

    return Value(
        [value.shape[axis] for axis in before] + list(shape) + [value.shape[axis] for axis in after], elements
    )


def reduced(
    join: Callable[[list[Any]], Any], value: Value, axes: Sequence[int] | None, keep: bool, empty: Any
) -> Value:
    """The elements along some axes (all, if none are given), joined by join(elements), unrolled.

    `keep` leaves these axes with extent 1. `empty` is the result where there is no element.
    """
    rank = len(value.shape)
    gone = sorted({axis_of(axis, rank) for axis in (range(rank) if not axes else axes)}) if rank else []
    extents = [value.shape[axis] for axis in gone]
    if math.prod(extents) > MOST_UNROLLED:
        raise Unsupported(
            f"a reduction over {math.prod(extents)} elements for each score; up to {MOST_UNROLLED} are unrolled"
        )
    kept = [axis for axis in range(rank) if axis not in gone]

    def elements(index: Index) -> Any:
        own = [index[axis] for axis in kept] if keep else list(index)
        terms: list[Any] = []
        for flat in range(math.prod(extents)):
            whole: list[Any] = [0] * rank
            for axis, i in zip(kept, own):
                whole[axis] = i
            for axis, extent in zip(reversed(gone), reversed(extents)):
                whole[axis] = flat % extent
                flat //= extent
            terms.append(value.at(tuple(whole)))
        return join(terms) if terms else empty

    if not gone:
        return value
    if keep:
        shape = [1 if axis in gone else value.shape[axis] for axis in range(rank)]
    else:
        shape = [value.shape[axis] for axis in kept]
    return Value(shape, elements)


def joined(function: Callable[[Any, Any], Any], terms: list[Any]) -> Any:
    """The terms joined as a tree, so that expressions stay shallow."""
    while len(terms) > 1:
        pairs = [function(terms[i], terms[i + 1]) for i in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(terms) - len(terms) % 2:]
    return terms[0]


def concatenated(values: Sequence[Value], axis: int) -> Value:
    values = [value for value in values if value.shape != (0,)]
    axis = axis_of(axis, len(values[0].shape))
    ends: list[int] = []
    for value in values:
        ends.append((ends[-1] if ends else 0) + value.shape[axis])

    def elements(index: Index) -> Any:
        i = index[axis]
        if isinstance(i, int):
            part = next(n for n, end in enumerate(ends) if i < end)
            begin = ends[part - 1] if part else 0
            return values[part].at(index[:axis] + (i - begin,) + index[axis + 1:])
        result = None
        for part in reversed(range(len(values))):
            begin = ends[part - 1] if part else 0
            inside = _core.clip(i - begin, 0, max(values[part].shape[axis] - 1, 0))
            element = values[part].at(index[:axis] + (inside,) + index[axis + 1:])
            result = element if result is None else _core.where(i < ends[part], *promoted(element, result))
        return result

    return Value(values[0].shape[:axis] + (ends[-1],) + values[0].shape[axis + 1:], elements)
