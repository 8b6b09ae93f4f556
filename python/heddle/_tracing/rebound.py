"""A copy of a mod in which stand-ins take the place of some of the values that it reaches."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from .byte_code import Uses, facts_of, merged
from .constants import is_constant, is_library_function
from .._mod import Mod

MISSING = object()
Slot = tuple[int, str, Any] | None  # as in reached.Reached


class Rebound:
    """Makes copies of functions, and of containers, partials and methods that hold a stand-in. Everything else stays
    what it is. What a mod writes into a copy goes to the original by write_back()."""

    opens_mods = True  # whether a ready-made mod is its function; else the mod itself, which has a form for tensors

    def __init__(self) -> None:
        self._functions: dict[int, Any] = {}
        self._scopes: dict[int, Written] = {}
        self._containers: dict[int, Written] = {}
        self._attributes: dict[int, Written] = {}
        self._cells: dict[int, tuple[Any, Any, Any]] = {}  # originals, copies, what the copies held first
        self._uses: dict[tuple[int, str], Uses] = {}
        self._originals: dict[int, tuple[Any, Any]] = {}

    def stand_in(self, value: Any, name: str, slot: Slot) -> Any:
        """The stand-in for a value; the value itself if there is none."""
        return value

    def of_object(self, value: Any, uses: Uses | None) -> Any:
        """The stand-in for an object that is none of the kinds below."""
        return value

    def put_builtin(self, scope: Written, name: str) -> None:
        """Puts what stands for a builtin into the globals."""

    def of(self, value: Any, name: str = "", slot: Slot = None, uses: Uses | None = None) -> Any:
        made = self._made(value, name, slot, uses)
        if made is not value:
            self._originals[id(made)] = made, value
        return made

    def original(self, value: Any) -> Any:
        """The user's value for one that a mod holds."""
        known = self._originals.get(id(value))
        return value if known is None else known[1]

    def _made(self, value: Any, name: str, slot: Slot, uses: Uses | None) -> Any:
        made = self.stand_in(value, name, slot)
        if made is not value:
            return made
        kind = type(value)
        if kind is types.FunctionType:
            return value if is_constant(value) or is_library_function(value) else self._function(value)
        if kind is functools.partial:
            return self._partial(value)
        if kind is types.MethodType:
            return self._method(value)
        if kind is Mod:
            return self.of(value.function) if self.opens_mods else value
        if kind in (tuple, list, dict):
            return self._container(value, name)
        return self.of_object(value, uses)

    def write_back(self) -> None:
        """Gives what the mod wrote into copies of its globals, containers and variables to the originals."""
        for one in (*self._scopes.values(), *self._containers.values(), *self._attributes.values()):
            one.write_back(self.original)
        for cell, copy, before in self._cells.values():
            content = content_of(copy)
            if content is MISSING and before is not MISSING:
                del cell.cell_contents
            elif content is not before:
                cell.cell_contents = self.original(content)

    def _function(self, function: types.FunctionType) -> Any:
        known = self._functions.get(id(function))
        if known is not None:
            return known
        code, identity = function.__code__, id(function)
        facts = facts_of(code)
        closure = function.__closure__ or ()
        cells = tuple(self._cells[id(one)][1] if id(one) in self._cells else types.CellType() for one in closure)
        scope = self._scope(function.__globals__, facts.writes_globals)
        again = types.FunctionType(code, scope.copy, function.__name__, None, cells or None)
        self._functions[identity] = again  # before its parts, which may lead to it
        self._originals[id(again)] = again, function
        again.__module__, again.__qualname__ = function.__module__, function.__qualname__
        for i, (cell, original) in enumerate(zip(cells, closure)):
            name, content = code.co_freevars[i], content_of(original)
            if content is not MISSING:  # else the mod says so when it reads the name
                uses = self._merged(id(original), name, facts.cells.get(name))
                cell.cell_contents = content = self.of(content, name, (identity, "closure", i), uses)
            self._cells[id(original)] = original, cell, content
        for name, uses in facts.globals.items():
            if name not in function.__globals__:
                self.put_builtin(scope, name)
            else:
                uses = self._merged(id(function.__globals__), name, uses)
                scope.put(name, self.of(function.__globals__[name], name, (identity, "global", name), uses))
        self._set_defaults(function, again)
        again.__dict__.update({name: self.of(value, name) for name, value in function.__dict__.items()})
        attributes = self._attributes[identity] = Written(function.__dict__, again.__dict__)
        attributes.remember()
        return again

    def _merged(self, holder: int, name: str, uses: Uses | None) -> Uses | None:
        """The uses, by all functions so far, of a variable of this cell or these globals. None if no code names it, such
        as the __class__ of super()."""
        known = self._uses.get((holder, name))
        if uses is None:
            return known
        both = self._uses[holder, name] = merged(known, uses)
        return both

    def _scope(self, scope: dict[str, Any], is_written: bool) -> Written:
        known = self._scopes.get(id(scope))
        if known is None:
            known = self._scopes[id(scope)] = Written(scope, dict(scope))
        if is_written:
            known.remember()
        return known

    def _set_defaults(self, function: types.FunctionType, again: Any) -> None:
        identity, code = id(function), function.__code__
        if function.__defaults__ is not None:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__):]
            again.__defaults__ = tuple(self.of(value, name, (identity, "default", i))
                                       for i, (name, value) in enumerate(zip(names, function.__defaults__)))
        if function.__kwdefaults__ is not None:
            again.__kwdefaults__ = {name: self.of(value, name, (identity, "keyword", name))
                                    for name, value in function.__kwdefaults__.items()}

    def _partial(self, partial: Any) -> Any:
        identity = id(partial)
        names = positional_names(partial.func)
        args = [self.of(value, name, (identity, "closure", i))
                for i, (value, name) in enumerate(zip(partial.args, (*names, *("arg" for _ in partial.args))))]
        keywords = {name: self.of(value, name, (identity, "keyword", name)) for name, value in partial.keywords.items()}
        return functools.partial(self.of(partial.func), *args, **keywords)

    def _method(self, method: types.MethodType) -> Any:
        function, owner = method.__func__, method.__self__
        if type(function) is not types.FunctionType or is_library_function(function):
            return method
        return types.MethodType(self.of(function), self.of_object(owner, facts_of(function.__code__).first))

    def _container(self, value: Any, name: str) -> Any:
        known = self._containers.get(id(value))
        if known is not None:
            return known.copy
        if type(value) is tuple:
            made = tuple(self.of(one, name) for one in value)
            return value if all(x is y for x, y in zip(made, value)) else made
        held = self._containers[id(value)] = Written(value, type(value)(value))  # before its items may lead to it
        for key, one in value.items() if type(value) is dict else enumerate(value):
            held.put(key, self.of(one, str(key) if type(key) is str else name))
        if held.is_plain():
            del self._containers[id(value)]
            return value
        held.remember()
        return held.copy


class Written:
    """A dict or a list, and its copy for a mod to read and write."""

    def __init__(self, original: Any, copy: Any) -> None:
        self.original, self.copy = original, copy
        self.before: Any = None  # the copy as it was before the mod wrote into it, if it may

    def put(self, key: Any, value: Any) -> None:
        self.copy[key] = value
        if self.before is not None:
            self.before[key] = value

    def remember(self) -> None:
        if self.before is None:
            self.before = type(self.copy)(self.copy)

    def is_plain(self) -> bool:
        if type(self.copy) is list:
            return all(x is y for x, y in zip(self.copy, self.original))
        return all(value is self.original[key] for key, value in self.copy.items())

    def write_back(self, original_of: Callable[[Any], Any]) -> None:
        if self.before is None:
            return
        if type(self.copy) is list:
            if len(self.copy) != len(self.before) or any(x is not y for x, y in zip(self.copy, self.before)):
                self.original[:] = [original_of(one) for one in self.copy]
            return
        for key, value in self.copy.items():
            if self.before.get(key, MISSING) is not value:
                self.original[key] = original_of(value)
        for key in self.before.keys() - self.copy.keys():
            self.original.pop(key, None)


def content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def positional_names(function: Any) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]
