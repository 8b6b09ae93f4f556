"""Ready-made mods: functions that the tracer follows, which combine with others."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from . import _core
from ._core import Expr
from ._dtypes import dtype_name

SCORE_ARGUMENTS = ("score", "b", "h", "q_idx", "kv_idx")
MASK_ARGUMENTS = SCORE_ARGUMENTS[1:]
# The ready-made mods of scores.
SCORE_MODS = frozenset({"alibi", "graph_bias", "relative_bias", "softcap", "swin_bias", "t5_bias"})
# Words of the text form, which no capture and no param may be called.
RESERVED = frozenset({
    *SCORE_ARGUMENTS, "q_token", "kv_token", "q_len", "kv_len", "q_start", "kv_start", "and", "or", "not", "if", "else",
    "inf", "nan", "True", "False", "at", "min", "max", "pow", "f32", "i32", "clip", *dir(_core)})


# heddle.torch's: a mod of torch's tensors, an array as a tensor, and whether Dynamo traces, which calls nothing of C++.
on_tensors: Callable[[Any, tuple[Any, ...]], Any] | None = None
as_tensor: Callable[[Any], Any] | None = None
is_compiling: Callable[[], bool] | None = None


class Mod:
    """A mod for heddle.attention. Masks combine with & | ~, and with functions of (b, h, q_idx, kv_idx).

    Your own function may call it, with its own or other arguments: softcap(alibi(score, ...), ...). Functions for
    heddle.torch may, too, with tensors. The functions of heddle.mods make it: from `function`, with a `name` for texts,
    and `expr`, the expression of a mod that reads no array.

    >>> import numpy as np, heddle
    >>> near = heddle.mods.sliding_window(1)
    >>> mine = lambda b, h, q_idx, kv_idx: near(b, h, q_idx, kv_idx) | (kv_idx == 0)
    >>> print(heddle.BlockMask.build(mine, 4, 4, block=1))
    #...
    ##..
    ###.
    #.##
    """

    __slots__ = ("_name", "expr", "function", "recipe")

    def __init__(self, function: Callable[..., Any], name: str, expr: Expr | None = None) -> None:
        self.function = function
        self.expr = expr  # for a mod that reads no array: it is always the same
        self._name = name
        # How it is made: (heddle.mods' function by name, its arguments as text, the arrays and the expressions among them);
        # ("&", mask, mask), ("|", mask, mask), ("~", mask). None: a mod of the user's.
        self.recipe: tuple[Any, ...] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if on_tensors is not None and hasattr(arguments[-1], "new_ones"):
            return on_tensors(self, arguments)
        return self.function(*arguments)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def __and__(self, other: Any) -> Mod:
        return _both(self, other, "&")

    def __rand__(self, other: Any) -> Mod:
        return _both(other, self, "&")

    def __or__(self, other: Any) -> Mod:
        return _both(self, other, "|")

    def __ror__(self, other: Any) -> Mod:
        return _both(other, self, "|")

    def __invert__(self) -> Mod:
        function = self.function
        expr = None if self.expr is None else ~self.expr
        made = Mod(lambda b, h, q_idx, kv_idx: ~function(b, h, q_idx, kv_idx), f"~{self._name}", expr)
        made.recipe = "~", self
        return made

    def __reduce__(self) -> Any:
        if self.recipe is None:
            return object.__reduce_ex__(self, 4)
        return remade, self.recipe

    def __repr__(self) -> str:
        return f"<heddle.mods {self._name}>"


def expr_of_text(text: str, captures: dict[str, tuple[str, int]], params: dict[str, str]) -> Expr:
    """The expression of a pickle."""
    return _core.parse(text, captures, params)


def remade(kind: str, *parts: Any) -> Mod:
    """The mod of a recipe: of a pickle, and of a copy, whose arrays are copies."""
    if kind == "~":
        made: Mod = ~parts[0]
        return made
    if kind in ("&", "|"):
        return _both(parts[0], parts[1], kind)
    function: Callable[..., Mod] = getattr(importlib.import_module("heddle.mods"), kind)
    text, arrays, exprs = parts
    rest = {tuple: iter(arrays), type(None): iter(exprs)}
    return function(*(next(rest[type(one)]) if type(one) in rest else one for one in ast.literal_eval(text)))


def _function_of(mod: Any) -> Callable[..., Any]:
    if isinstance(mod, Mod):
        return mod.function
    if isinstance(mod, Expr):
        return lambda b, h, q_idx, kv_idx: mod
    if not callable(mod):
        raise TypeError(f"a mask combines with masks, functions and expressions, not with {type(mod).__name__}")
    return mod  # type: ignore[no-any-return]


def _both(one: Any, other: Any, operator: str) -> Mod:
    f, g = _function_of(one), _function_of(other)
    names = [mod._name if isinstance(mod, Mod) else getattr(mod, "__name__", str(mod)) for mod in (one, other)]
    name = f"({names[0]} {operator} {names[1]})"
    left, right = (mod.expr if isinstance(mod, Mod) else None for mod in (one, other))
    if operator == "&":
        expr = left & right if left is not None and right is not None else None
        made = Mod(lambda b, h, q_idx, kv_idx: f(b, h, q_idx, kv_idx) & g(b, h, q_idx, kv_idx), name, expr)
    else:
        expr = left | right if left is not None and right is not None else None
        made = Mod(lambda b, h, q_idx, kv_idx: f(b, h, q_idx, kv_idx) | g(b, h, q_idx, kv_idx), name, expr)
    made.recipe = operator, one, other
    return made


def mask(expr: Callable[[], Any], name: str) -> Mod:
    return Mod(lambda b, h, q_idx, kv_idx: _core.of_arguments(expr(), [b, h, q_idx, kv_idx]), name)


def score(expr: Callable[[], Any], name: str) -> Mod:
    return Mod(
        lambda score, b, h, q_idx, kv_idx: _core.of_arguments(expr(), [score, b, h, q_idx, kv_idx]), name)


def checked(mod: Mod, expr: Callable[[], Any]) -> Mod:
    """The mod, once its numbers were found good: before a call, so that the traceback points at them."""
    mod.expr = expr()
    return mod


def refuse_no_array(name: str, value: Any) -> None:
    if not (hasattr(value, "__dlpack__") and hasattr(value, "dtype") and hasattr(value, "shape")):
        raise TypeError(f"{name} is of type {type(value).__name__}; an array of NumPy, or anything with __dlpack__, "
                        "is accepted")
    try:
        dtype_name(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
