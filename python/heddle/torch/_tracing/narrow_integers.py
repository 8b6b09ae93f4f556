"""Arithmetic on 8- and 16-bit integers: torch's wraps to their type, where expressions compute in i32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import _core
from .operations import NARROW, wrapped
from .values import Value, elementwise

# Operations whose operands torch brings into one type, which is the result's.
OF_ONE_TYPE = frozenset((
    "abs", "add", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "clamp", "clamp_max", "clamp_min", "div", "floor_divide", "fmod", "maximum", "minimum", "mul", "neg", "pow",
    "remainder", "rsub", "sign", "square", "sub", "where", "__lshift__", "__rshift__"))
_PAIRS = {frozenset((torch.uint8, torch.int8)): torch.int16, frozenset((torch.uint8, torch.int16)): torch.int16,
          frozenset((torch.int8, torch.int16)): torch.int16}


def type_of(name: str, operands: Sequence[Any]) -> torch.dtype | None:
    """The narrow type in which torch computes this operation; None where it computes in another one."""
    if name not in OF_ONE_TYPE:
        return None
    tensors = [one for one in operands if isinstance(one, torch.Tensor) and one.dtype != torch.bool]
    if not any(one.dtype in NARROW for one in tensors) or any(one.dtype.is_floating_point for one in tensors):
        return None
    tensors = [one for one in tensors if not getattr(one, "_is_number", False)]
    with_axes = [one for one in tensors if one.dim()]  # decide alone: a 0-d tensor of integers widens none of these
    types = {one.dtype for one in with_axes or tensors}
    if len(types) > 1:
        return _PAIRS.get(frozenset(types))
    return next((one for one in types if one in NARROW), None)


def narrowed(x: Any, dtype: torch.dtype) -> Any:
    """A Value of integers, or a number, in this type. Anything else as it is."""
    if type(x) is int:
        unused = 8 * dtype.itemsize
        low = x & ((1 << unused) - 1)
        return low - (1 << unused) if dtype.is_signed and low >> (unused - 1) else low
    return elementwise(lambda one: element(one, dtype), x) if isinstance(x, Value) and x.kind == "i32" else x


def element(x: Any, dtype: torch.dtype) -> Any:
    info = torch.iinfo(dtype)
    least, greatest = _core.integer_range(x)
    return x if info.min <= least and greatest <= info.max else wrapped(x, dtype)
