"""Kinds of values that a mod may reach."""

from __future__ import annotations

import enum
from typing import Any

from .loaded import loaded
from .owners import NotKept

PLAIN = (int, bool, str, bytes, type(None))
LARGEST_PARAM = 2**30 - 1  # of integers: an index plus or minus a param stays in i32


def is_array(value: Any) -> bool:
    """Whether a name stands for a tensor: it has a shape, and one of Python's protocols for its memory."""
    return hasattr(type(value), "__dlpack__") and hasattr(value, "dtype") and hasattr(value, "shape")


def is_number(value: Any) -> bool:
    """A number that may become a param: not a bool, and no integer whose sum with an index may leave i32."""
    kind = type(value)
    return kind is float or kind is int and -LARGEST_PARAM <= value <= LARGEST_PARAM


class Same:
    """A value of a key that equals itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def refuse_special(name: str) -> None:
    if name.startswith("__") and name.endswith("__"):
        raise NotKept(f"the attribute {name}")


def is_compared(value: Any) -> bool:
    """Immutable values that equal each other by their content."""
    kind = type(value)
    torch = loaded("torch")
    return kind is range or torch is not None and kind in (
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


def is_numpy_scalar(value: Any) -> bool:
    numpy = loaded("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and type(value.item()) in (bool, int, float)


ENUM_NAMES = ("__new__", "__new_member__", "_generate_next_value_", "__doc__", "__dict__", "__weakref__", "__init__")


def is_fixed_enum(value: Any) -> bool:
    """A member of an enumeration that has neither methods nor properties of its own, and a plain value."""
    if not isinstance(value, enum.Enum):
        return False
    own = [kind for kind in type(value).__mro__ if isinstance(kind, enum.EnumMeta) and kind.__module__ != "enum"]
    has_code = any(hasattr(one, "__get__") and getattr(one, "__module__", None) != "enum" and name not in ENUM_NAMES
                   for kind in own for name, one in vars(kind).items())
    return not has_code and type(value.value) in (*PLAIN, float)
