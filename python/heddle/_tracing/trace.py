"""Python callables to expressions: a mod is called once with expressions for its arguments.

Arrays that it reaches become captures. Later calls of the same code with the same numbers, on arrays of the same types
and ranks, take the kept expression, by the rule of reached.py.
"""

from __future__ import annotations

import inspect
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from .. import _core
from . import numpy_functions
from .._dtypes import dtype_name
from .._mod import MASK_ARGUMENTS, RESERVED, SCORE_ARGUMENTS
from .byte_code import Uses
from .constants import is_constant, is_library
from .kinds import is_array
from .noted_errors import add_note
from .owners import of_class
from .reached import NotKept, Reached
from .rebound import Rebound
from .stand_ins import (
    AnyUseOf, AttributesOf, CapturedArray, CapturedElement, Type, is_of_pythons_class, is_refusal)

MOST_KEPT = 512

_kept: dict[Any, tuple[Any, tuple[str, ...]]] = {}
# The mods that C++ recognises, by their arguments.
recognised: dict[tuple[str, ...], _core.KeptMods] = {
    SCORE_ARGUMENTS: _core.KeptMods(), MASK_ARGUMENTS: _core.KeptMods()}


class Traced:
    """The expressions of a call's mods, and the arrays that they read."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self.captures: dict[str, Any] = dict(given or {})
        self._names: dict[int, str] = {id(array): name for name, array in self.captures.items()}
        self.reads_content = False  # whether the last mod saw what an array holds: its expression is not kept

    def capture(self, array: Any, wanted: str) -> Any:
        """The capture that stands for an array: one each, named as the mod names it, as far as that is a free name."""
        name = self._names.get(id(array))
        if name is None:
            wanted = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted)
            if not wanted or wanted[0].isdigit() or wanted in RESERVED:  # the mod's author may have named it `b`
                wanted = f"x_{wanted}"
            name, number = wanted, 2
            while name in self.captures:
                name, number = f"{wanted}_{number}", number + 1
            self.captures[name] = array
            self._names[id(array)] = name
        return CapturedArray(name, dtype_name(array), array, self)

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
        reached, key, kept = self._walked(mod, arguments)
        if reached is None:
            return self._called(mod, arguments)
        if kept is None:
            expr = self._called(mod, arguments)
            names = tuple(self._names.get(id(x), "") for x in reached.arrays)
            if self.reads_content:
                return expr
            if len(_kept) >= MOST_KEPT:
                _kept.pop(next(iter(_kept)), None)
            kept = _kept[key] = expr, names
        expr, names = kept
        self._take((name, array) for name, array in zip(names, reached.arrays) if name)
        if is_first:
            recognise(mod, arguments, reached, expr, names)
        return expr

    def _walked(self, mod: Any, arguments: tuple[str, ...]) -> tuple[Reached | None, Any, Any]:
        """The walk over a mod, its key, and what is kept by it. No walk: the mod is traced at each call."""
        try:
            reached = Reached(mod)
            key = arguments, reached.key, tuple(self.captures), tuple(self._names.get(id(x)) for x in reached.arrays)
            return reached, key, _kept.get(key)
        except (NotKept, TypeError, RecursionError):  # TypeError: a key that does not hash
            return None, None, None

    def _called(self, mod: Callable[..., Any], arguments: tuple[str, ...]) -> Any:
        check_arguments(mod, arguments)
        before = set(self.captures)
        leaves = [_core.leaf(name) for name in arguments]
        try:
            expr = self._run(Captured(self), mod, leaves)
        except IndexError as error:
            if not is_no_index(error):
                raise
            expr = self._run_by_objects(mod, leaves, error)
        except (TypeError, BufferError) as error:
            if not is_refusal(error):
                raise
            expr = self._run_with_arrays(mod, leaves, error)
        read = {*before, *expr.captures}
        for name in [one for one in self.captures if one not in read]:
            del self._names[id(self.captures.pop(name))]
        return expr

    def _run(self, rebound: Captured, mod: Any, leaves: list[Any]) -> Any:
        """The expression that a mod returns. If an array has no stand-in, the mod is as if it had not run."""
        self.reads_content = False
        try:
            expr = returned(mod, rebound.called(mod)(*leaves))
        except Exception as error:
            if not is_no_index(error):
                rebound.write_back()
            add_note(error, mod, [str(leaf) for leaf in leaves], "heddle's functions and NumPy's of expressions")
            raise
        rebound.write_back()
        return expr

    def _run_by_objects(self, mod: Any, leaves: list[Any], error: IndexError) -> Any:
        """_run() with stand-ins for all objects, also those that the code hands on: one of them may have the array.
        `error` says that an array has none."""
        rebound = Captured(self, all_objects=True)
        try:
            return self._run(rebound, mod, leaves)
        except (IndexError, TypeError) as another:
            if not is_no_index(another) and not is_refusal(another):
                raise
        rebound.refuse_index(error, mod)

    def _run_with_arrays(self, mod: Any, leaves: list[Any], error: Exception) -> Any:
        """The expression without stand-ins: the mod hands an array to C code, which takes none. It is not kept."""
        self.reads_content = True
        try:
            return returned(mod, mod(*leaves))
        except Exception:
            raise error from None


class Captured(Rebound):
    """A mod whose arrays are captures, also those that it reaches by objects and containers."""

    def __init__(self, traced: Traced, all_objects: bool = False) -> None:
        super().__init__()
        self._traced, self._all_objects = traced, all_objects
        self._arrays: dict[int, Any] = {}
        self._unreadable: list[ValueError] = []

    def called(self, mod: Any) -> Any:
        call = of_class(type(mod), "__call__")
        return self.of(types.MethodType(call, mod) if type(call) is types.FunctionType else mod)

    def put_builtin(self, scope: Any, name: str) -> None:
        if name == "type":
            scope.put(name, Type)

    def stand_in(self, value: Any, name: str, slot: Any) -> Any:
        if type(value) is CapturedArray or not is_array(value):
            return value
        known = self._arrays.get(id(value))
        if known is None:
            try:
                known = self._traced.capture(value, name)
            except ValueError as error:  # an element type that no expression reads; Python's code may
                self._unreadable.append(error)
                self._traced.reads_content, known = True, value
            self._arrays[id(value)] = known
        return known

    def refuse_index(self, error: IndexError, mod: Any) -> NoReturn:
        """Raises what an IndexError of NumPy's means, if a mod's index was an expression."""
        where = f"{described(mod)}, {line_of(error)}"
        if self._unreadable:
            raise ValueError(f"{where}: {' or '.join(str(one) for one in self._unreadable)}") from None
        raise TypeError(
            f"{where}: the mod reads an array that its code does not name; arrays that become captures are found in "
            "variables, defaults, partials, attributes, dicts and lists which the code names. Write the array into a "
            "variable before the call (table = holder.table), or give it by captures={'table': table} to a mod that is "
            "text") from None

    def of_object(self, value: Any, uses: Uses | None) -> Any:
        if type(value) in NO_OBJECTS or is_constant(value) or is_library(value):
            return value
        if uses is not None and not uses.whole:
            return AttributesOf(value, uses, self)
        return AnyUseOf(value, Uses(), self) if self._all_objects and is_of_pythons_class(value) else value


# How the errors of NumPy's begin for an index that is none.
NO_INDEX = ("only integers, slices", "arrays used as indices must be")


def is_no_index(error: Exception) -> bool:
    return isinstance(error, IndexError) and str(error).startswith(NO_INDEX)


def described(mod: Any) -> str:
    return f"mod {getattr(mod, '__qualname__', type(mod).__name__)}"


def returned(mod: Any, value: Any) -> Any:
    """The expression of a mod's result. Raises TypeError for what is none."""
    if value is None:
        raise TypeError(f"{described(mod)} returned None; an expression, a number or a bool is accepted. Does it lack a "
                        "return?")
    try:
        return _core.as_expr(value)
    except TypeError as error:
        raise TypeError(f"{described(mod)} returned {type(value).__name__}: {error}") from None


def line_of(error: BaseException) -> str:
    """Where the mod raised it: file, line, and the text there."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}{f' ({last.line})' if last.line else ''}"


# Kinds that hold no arrays, or that C++ reads.
NO_OBJECTS = (
    bool, int, float, complex, str, bytes, type(None), _core.Expr, _core.Capture, CapturedArray,
    CapturedElement, AttributesOf, AnyUseOf)


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
