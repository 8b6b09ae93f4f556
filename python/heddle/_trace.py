"""Python callables to expressions: a mod is called once with expressions for its arguments.

Arrays in its closure, in its globals, in its defaults and in its helper functions become captures. Later calls of the
same code with the same numbers, on arrays of the same types and ranks, take the kept expression.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _core
from ._reached import NotKept, Reached, is_array, names_of

SCORE_ARGUMENTS = ("score", "b", "h", "q_idx", "kv_idx")
MASK_ARGUMENTS = SCORE_ARGUMENTS[1:]
MOST_KEPT = 512

_kept: dict[Any, tuple[Any, tuple[str, ...]]] = {}
# What C++ recognises.
recognised: dict[tuple[str, ...], _core.KeptMods] = {
    SCORE_ARGUMENTS: _core.KeptMods(), MASK_ARGUMENTS: _core.KeptMods()}


class Traced:
    """The expressions of a call's mods, and the arrays that they read."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.captures: dict[str, Any] = dict(given or {})
        self._names: dict[int, str] = {id(array): name for name, array in self.captures.items()}
        self._functions: dict[int, Any] = {}

    def capture(self, array: Any, wanted: str) -> Any:
        """The capture that stands for an array: one each, named as the mod names it, as far as names are free."""
        name = self._names.get(id(array))
        if name is None:
            name, number = wanted, 2
            while name in self.captures:
                name, number = f"{wanted}_{number}", number + 1
            self.captures[name] = array
            self._names[id(array)] = name
        return _core.Capture(name, dtype_name(array), len(array.shape))

    def of(self, mod: Any, arguments: tuple[str, ...]) -> Any:
        """The expression of a mod: an expression, text, or a callable of these arguments."""
        if mod is None or isinstance(mod, _core.Expr):
            return mod
        if isinstance(mod, str):
            declared = {name: (dtype_name(array), len(array.shape)) for name, array in self.captures.items()}
            return _core.parse(mod, declared, {})
        if not callable(mod):
            raise TypeError(f"a mod is a function, text or an expression, not {type(mod).__name__}")
        is_first = not self.captures  # else names may be taken, and arrays named
        if is_first:
            found = recognised[arguments].find(mod)
            if found is not None:
                self._take(found[1].items())
                return found[0]
        return self._traced(mod, arguments, is_first)

    def _take(self, captures: Iterable[tuple[str, Any]]) -> None:
        for name, array in captures:
            self.captures[name] = array
            self._names[id(array)] = name

    def _traced(self, mod: Callable[..., Any], arguments: tuple[str, ...], is_first: bool) -> Any:
        """The kept expression, or that of a call of the mod."""
        reached = None
        try:
            if type(mod) is types.FunctionType:
                reached = Reached(mod)
        except NotKept:
            pass
        if reached is None:
            check_arguments(mod, arguments)
            return self._called(mod, arguments)
        key = (arguments, reached.key, tuple(self.captures), tuple(self._names.get(id(x)) for x in reached.arrays))
        kept = _kept.get(key)
        if kept is None:
            check_arguments(mod, arguments)
            expr = self._called(mod, arguments)
            names = tuple(self._names.get(id(x), "") for x in reached.arrays)
            if len(_kept) >= MOST_KEPT:
                _kept.pop(next(iter(_kept)), None)
            kept = _kept[key] = expr, names
        expr, names = kept
        self._take((name, array) for name, array in zip(names, reached.arrays) if name)
        if is_first:
            recognise(mod, arguments, reached, expr, names)
        return expr

    def _called(self, mod: Callable[..., Any], arguments: tuple[str, ...]) -> Any:
        return _core.as_expr(self.rebound(mod)(*(_core.leaf(name) for name in arguments)))

    def rebound(self, function: Any) -> Any:
        """The same function, but that arrays which it reaches are captures."""
        if isinstance(function, types.MethodType):
            return types.MethodType(self.rebound(function.__func__), function.__self__)
        if not isinstance(function, types.FunctionType):
            return function
        known = self._functions.get(id(function))
        if known is not None:
            return known
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        names = names_of(function.__code__)
        reached = {name: function.__globals__[name] for name in names if name in function.__globals__}
        replaced = {name: self.replaced(value, name) for name, value in reached.items() if self.is_replaced(value)}
        scope = {**function.__globals__, **replaced} if replaced else function.__globals__
        again = types.FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self._functions[id(function)] = again
        for cell, original, name in zip(cells, function.__closure__ or (), function.__code__.co_freevars):
            try:
                cell.cell_contents = self.replaced(original.cell_contents, name)
            except ValueError:  # not bound yet: the mod says so when it reads the name
                pass
        again.__defaults__ = self.all_replaced(function, function.__defaults__)
        again.__kwdefaults__ = {
            name: self.replaced(value, name) for name, value in (function.__kwdefaults__ or {}).items()
        } or None
        return again

    def all_replaced(self, function: types.FunctionType, defaults: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if not defaults:
            return defaults
        names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(defaults):]
        return tuple(self.replaced(value, name) for name, value in zip(names, defaults))

    def is_replaced(self, value: Any) -> bool:
        return is_array(value) or isinstance(value, (types.FunctionType, types.MethodType))

    def replaced(self, value: Any, name: str) -> Any:
        if is_array(value):
            return self.capture(value, name)
        return self.rebound(value) if self.is_replaced(value) else value


def recognise(
    mod: Any, arguments: tuple[str, ...], reached: Reached, expr: Any, names: tuple[str, ...]
) -> None:
    """Lets C++ find this expression for mods that are walked over as this one was."""
    if not reached.steps.are_complete:
        return
    captures = [(name, position) for position, name in enumerate(names) if name]
    try:
        recognised[arguments].keep(mod, expr, reached.steps.all, reached.arrays, captures, [], {})
    except TypeError:  # an array that DLPack does not describe
        pass


def check_arguments(mod: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    """Raises TypeError where the mod cannot be called with so many."""
    try:
        signature = inspect.signature(mod)
    except (TypeError, ValueError):
        return  # a callable of C's, which says so itself
    try:
        signature.bind(*arguments)
    except TypeError:
        name = getattr(mod, "__name__", mod)
        raise TypeError(f"a mod takes ({', '.join(arguments)}); {name}{signature} does not") from None


def dtype_name(array: Any) -> str:
    """The library's name of an array's element type: "f32"."""
    known = {
        "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
        "float8_e5m2": "e5m2", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint64": "u64",
        "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "bool",
    }
    text = str(array.dtype).rpartition(".")[2]
    if text not in known:
        raise ValueError(f"a mod reads an array of {text}; {', '.join(known)} are accepted")
    return known[text]
