"""The table of aten operations that tracing reads, and how aten.py, aten_inverses.py and aten_tensors.py fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import values
from .values import Unsupported, Value, as_i32, elementwise

Operation = Callable[..., Any]
AnyOperation = TypeVar("AnyOperation", bound=Operation)
NARROW = (torch.uint8, torch.int8, torch.uint16, torch.int16)
OPERATIONS: dict[str, Operation] = {}


def kind_of(dtype: torch.dtype) -> str:
    """The type that elements of a dtype have in expressions. Raises Unsupported for complex ones."""
    if dtype.is_complex:
        raise Unsupported(f"{dtype}: mods compute with real numbers, integers and booleans")
    if dtype == torch.bool:
        return "bool"
    return "f32" if dtype.is_floating_point else "i32"


def check_elements(name: str, x: torch.Tensor) -> None:
    """Raises Unsupported, which names it, for a tensor of which no mod can read elements."""
    if x.is_nested:
        raise Unsupported(f"a mod reads '{name}', a nested tensor; tensors of torch.strided are accepted, such as its values() "
                          "and offsets()")
    if x.is_complex() or x.is_quantized:
        instead = "its real and imag" if x.is_complex() else "its dequantize()"
        raise Unsupported(f"a mod reads '{name}', a tensor of {x.dtype}; {instead}, taken before an index, are accepted")


def cast(value: Value, dtype: torch.dtype | None) -> Value:
    """As `dtype` has the value: small integers wrap. Half types are computed as f32 and do not round."""
    if dtype is None:
        return value
    if dtype in NARROW and value.kind != "bool":
        return elementwise(lambda x: wrapped(as_i32(x), dtype), value)
    return cast_to(value, kind_of(dtype))


def wrapped(x: Any, dtype: torch.dtype) -> Any:
    bits = 8 * dtype.itemsize
    low = x & (2**bits - 1)
    return (low ^ 2**(bits - 1)) - 2**(bits - 1) if dtype.is_signed else low  # no shift, which would not wrap (_exact.py)


def cast_to(value: Any, kind: str) -> Value:
    return elementwise(values.AS[kind], value)


def op(*names: str) -> Callable[[AnyOperation], AnyOperation]:
    """Registers a function of whole tensors under aten's names."""
    def register(function: AnyOperation) -> AnyOperation:
        for name in names:
            OPERATIONS[name] = function
        return function

    return register


def define(name: str, function: Callable[..., Any]) -> None:
    """Registers a function of elements under aten's name."""
    OPERATIONS[name] = lambda *operands: elementwise(function, *operands)
