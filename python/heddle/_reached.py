"""What a mod reaches beside its arguments: the key under which its expression is kept."""

import types
from typing import Any

PLAIN = (int, bool, str, bytes, type(None))
# What their names stand for does not change. (A module of the user's may hold numbers that do.)
FIXED_MODULES = ("builtins", "functools", "heddle", "math", "numpy", "operator")
FIXED_TYPES = (bool, float, int)


class NotKept(Exception):
    """The mod reaches something whose content may change unseen, such as an object's attributes."""


def is_array(value: Any) -> bool:
    """Whether a name stands for a tensor: it has a shape, and one of Python's protocols for its memory."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__dlpack__")


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """That a function may read, those of functions defined inside it too. In a fixed order."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += [name for name in global_names(constant) if name not in names]
    return tuple(names)


_names: dict[types.CodeType, tuple[str, ...]] = {}


def names_of(code: types.CodeType) -> tuple[str, ...]:
    known = _names.get(code)
    if known is None:
        if len(_names) > 1000:
            _names.clear()
        known = _names[code] = global_names(code)
    return known


def key_of(function: Any, arrays: list[Any]) -> Any:
    """The code of a function and of those that it reaches, numbers by value, arrays by element type and rank. Appends
    the arrays in the order in which they are met. Raises NotKept."""
    seen: dict[int, int] = {}

    def of_value(value: Any) -> Any:
        if is_array(value):
            known = next((i for i, one in enumerate(arrays) if one is value), len(arrays))
            if known == len(arrays):
                arrays.append(value)
            return known, value.dtype, len(value.shape)
        if isinstance(value, PLAIN):
            return type(value), value
        if isinstance(value, float):
            return type(value), float.hex(value)  # tells zeros apart, and a NaN equals itself
        if isinstance(value, types.FunctionType):
            return of_function(value)
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in FIXED_MODULES:
            return value.__name__
        if any(value is one for one in FIXED_TYPES):
            return value
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
            return value
        if type(value).__module__ == "nanobind":  # functions of heddle's
            return value.__name__
        raise NotKept

    def of_function(function: types.FunctionType) -> Any:
        known = seen.get(id(function))
        if known is not None:
            return "function", known
        seen[id(function)] = len(seen)
        code, scope = function.__code__, function.__globals__
        parts: list[Any] = [code]
        for cell in function.__closure__ or ():
            try:
                parts.append(of_value(cell.cell_contents))
            except ValueError:
                parts.append("empty")
        for name in names_of(code):
            if name in scope:
                parts.append(of_value(scope[name]))
        if function.__defaults__ is not None:
            parts += [of_value(value) for value in function.__defaults__]
        if function.__kwdefaults__ is not None:
            parts += [(name, of_value(value)) for name, value in function.__kwdefaults__.items()]
        return tuple(parts)

    if not isinstance(function, types.FunctionType):
        raise NotKept
    return of_function(function)
