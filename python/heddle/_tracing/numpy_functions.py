"""NumPy's functions of expressions: numpy.exp(score), numpy.where(q_idx > kv_idx, x, y), numpy.float32(2) * score; and
torch's, for mods of heddle itself: torch.where(q_idx > kv_idx, x, y). heddle.torch has a tracer of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .. import _core
from .loaded import loaded
from .numpy_compositions import COMPOSED, OF_LISTS, astype


def _with_expressions(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*(_core.as_expr(value) for value in values))


# By the names of NumPy's; those of one argument that bear the library's name stand in _core.OPERATIONS.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "absolute": _core.abs, "abs": _core.abs, "fabs": _core.abs, "arctan": _core.atan, "atan": _core.atan, "rint": _core.round,
    "maximum": _core.maximum, "minimum": _core.minimum, "power": _core.power, "pow": _core.power,
    "where": _core.where, "clip": _core.clip, "round": _core.round, "around": _core.round,
    **COMPOSED, "square": lambda x: _core.as_expr(x) * x, "reciprocal": lambda x: 1.0 / _core.as_expr(x),
    **{name: getattr(_core, name) for name in _core.OPERATIONS},
    **{name: _with_expressions(getattr(operator, of)) for name, of in {
        "add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "true_divide": "truediv",
        "floor_divide": "floordiv", "remainder": "mod", "mod": "mod", "bitwise_and": "and_", "bitwise_or": "or_",
        "bitwise_xor": "xor", "logical_and": "and_", "logical_or": "or_", "logical_xor": "xor", "logical_not": "invert",
        "invert": "invert", "bitwise_not": "invert", "left_shift": "lshift", "right_shift": "rshift", "negative": "neg",
        "positive": "pos", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq",
        "not_equal": "ne"}.items()},
}


def without_expression(name: str) -> str:
    return (f"numpy.{name} has no expression in a mod; {', '.join(sorted({**FUNCTIONS, **OF_LISTS}))} have one, and so have "
            "the functions of heddle")


def of_expressions(function: Any, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The expression that a function of NumPy's gives. Raises TypeError for one that has none."""
    name = function.__name__
    known = FUNCTIONS.get(name)
    if known is None:
        raise TypeError(without_expression(name))
    if named:
        raise TypeError(f"numpy.{name} of an expression is called with {', '.join(named)}; it takes its operands alone")
    try:
        return known(*values)
    except TypeError as error:
        if "incompatible function arguments" not in str(error):
            raise
        raise TypeError(f"numpy.{name} of an expression is called with {len(values)} operands, "
                        f"{', '.join(type(one).__name__ for one in values)}; it takes expressions and numbers, as many as "
                        "its elements have") from None


def has_elements(value: Any) -> bool:
    """Whether it is an array with axes, or of objects: NumPy calls the function for each element."""
    numpy: Any = loaded("numpy")
    return isinstance(value, numpy.ndarray) and (value.ndim > 0 or value.dtype == object)


def as_object(value: Any) -> Any:
    if not isinstance(value, _core.Expr):
        return value
    numpy: Any = loaded("numpy")
    made = numpy.empty((), object)
    made[()] = value
    return made


def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
    if method != "__call__" or any(has_elements(one) for one in inputs):
        return getattr(ufunc, method)(*map(as_object, inputs), **named)
    return of_expressions(ufunc, inputs, named)


def array_function(self: Any, function: Any, types: Any, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if function.__name__ in FUNCTIONS and not any(has_elements(one) for one in values):
        return of_expressions(function, values, named)
    if function.__name__ in OF_LISTS:
        return OF_LISTS[function.__name__](*values, **named)
    try:
        return function._implementation(*values, **named)
    except (AttributeError, TypeError) as error:
        if any(isinstance(one, _core.Expr) for one in values):  # code of NumPy's that asks for what arrays have
            raise TypeError(f"{without_expression(function.__name__)} ({error})") from None
        raise


def clamped(x: Any, min: Any = None, max: Any = None) -> Any:
    x = _core.as_expr(x) if min is None else _core.maximum(x, min)
    return x if max is None else _core.minimum(x, max)


# Functions whose names or arguments in torch are others.
OF_TORCH: dict[str, Callable[..., Any]] = {
    "clamp": clamped, "clip": clamped,
    **{name: getattr(_core, name) for name in ("relu", "silu", "softplus")},
    **{name: FUNCTIONS[of] for name, of in {
        "sub": "subtract", "mul": "multiply", "div": "divide", "neg": "negative", "lt": "less", "le": "less_equal",
        "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}.items()},
}


@classmethod  # type: ignore[misc]
def torch_function(cls: Any, function: Any, types: Any, values: tuple[Any, ...] = (), named: Any = None) -> Any:
    name = function.__name__
    known = OF_TORCH.get(name, FUNCTIONS.get(name))
    named = {option: value for option, value in (named or {}).items() if value is not None and value is not False}
    if known is None or named and known is not clamped:
        raise TypeError(f"torch.{name} of a score or an index is no expression in a mod of heddle itself; the functions of "
                        "heddle are, and heddle.torch takes mods of torch's functions")
    return known(*values, **named)


def define_numpy_functions() -> None:
    setattr(_core.Expr, "__array_ufunc__", array_ufunc)
    setattr(_core.Expr, "__array_function__", array_function)
    setattr(_core.Expr, "__torch_function__", torch_function)
    setattr(_core.Expr, "astype", astype)


define_numpy_functions()
