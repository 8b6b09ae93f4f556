"""tensor[index] inside a mod."""

from __future__ import annotations

from typing import Any

import torch

from . import values
from ..._tracing.numbers import Number
from .recording import CaptureValue, Recording, chosen
from .values import Unsupported, Value


def getitem(recording: Recording, tensor: torch.Tensor, index: Any) -> Value:
    """tensor[index], of what Python's indexing of tensors takes: ints, slices, None, ..., lists of ints and tensors."""
    value = recording.value_of(tensor)
    entries = list(index) if isinstance(index, tuple) else [index]
    entries = [index_entry(recording, x) for x in entries]
    scalars = [scalar_index(x) for x in entries]
    if isinstance(value, CaptureValue) and None not in scalars and len(scalars) <= value.rank:
        return value.indexed(tuple(scalars))
    return indexed(value, without_ellipsis(entries, len(value.shape)))


def is_gather(index: Any) -> bool:
    """Whether indexing copies. Without tensors and lists it makes a view."""
    entries = index if isinstance(index, tuple) else (index,)
    return any(isinstance(x, (torch.Tensor, list, tuple)) for x in entries)


def index_entry(recording: Recording, x: Any) -> Any:
    """A number stays an int if it is negative: it counts from the end. Its sign is a guard."""
    if isinstance(x, Number):
        return x.concrete() if x.is_negative() else recording.param(x)
    return recording.value_of(x) if isinstance(x, torch.Tensor) else x


def without_ellipsis(entries: list[Any], rank: int) -> list[Any]:
    """The entries with a slice for each axis that ... stands for."""
    at = next((i for i, x in enumerate(entries) if x is Ellipsis), None)
    if at is None:
        return entries
    taken = sum(x is not None for x in entries) - 1
    return entries[:at] + [slice(None)] * (rank - taken) + entries[at + 1:]


def indexed(value: Value, entries: list[Any]) -> Value:
    if sum(x is not None for x in entries) > len(value.shape):
        raise IndexError(f"too many indices for a tensor of rank {len(value.shape)}: {len(entries)}")
    gathers: list[Value | None] = []
    axis = 0
    for x in entries:
        if isinstance(x, bool):
            raise Unsupported("an index that is a bool")
        if isinstance(x, int):
            value = values.selected(value, axis, x)
            continue
        if x is None:
            value = values.unsqueezed(value, axis)
        elif isinstance(x, slice):
            begin, end, step = (int(part) if part is not None else None for part in (x.start, x.stop, x.step))
            value = values.sliced(value, axis, begin, end, step or 1)
        gathers.append(gather_index(x, value.shape[axis]))
        axis += 1
    return values.indexed(value, gathers) if any(x is not None for x in gathers) else value


def gather_index(x: Any, extent: int) -> Value | None:
    """The indices by which an entry gathers on its axis; None for the whole axis."""
    if not isinstance(x, (list, tuple)):
        return x if isinstance(x, Value) else None
    literals = [values.literal(values.position_of(int(one), extent)) for one in x]
    return Value((len(literals),), lambda at: chosen(literals, at[0]))


def scalar_index(x: Any) -> Any:
    """An expression or an int that picks one element of an axis; None for anything else."""
    if isinstance(x, Value) and not isinstance(x, CaptureValue) and x.shape == () and x.kind == "i32":
        return x.expr
    return x if type(x) is int and x >= 0 else None
