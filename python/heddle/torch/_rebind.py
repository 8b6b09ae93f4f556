"""A copy of a mod in which stand-ins (_numbers.py) take the place of numbers. Everything else stays what it is."""

from __future__ import annotations

import functools
import types
from typing import Any

from .._reached import Reached, is_librarys, names_of
from ._numbers import Guards, Number


class Rebound:
    def __init__(self, reached: Reached, guards: Guards) -> None:
        self._numbers = {
            slot: Number(reached.numbers[i], i, guards) for i, slot in enumerate(reached.slots)
        }
        self._functions: dict[int, Any] = {}
        self.replaced: set[int] = set()  # positions of the numbers that have stand-ins now

    def of(self, value: Any) -> Any:
        if type(value) is types.FunctionType:
            return self._function(value)
        if type(value) is functools.partial:
            return self._partial(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__), value.__self__)
        if type(value) in (tuple, list):
            return type(value)(self.of(one) for one in value)
        if type(value) is dict:
            return {key: self.of(one) for key, one in value.items()}
        return value

    def _content(self, value: Any, slot: tuple[int, str, Any]) -> Any:
        number = self._numbers.get(slot)
        if number is None:
            return self.of(value)
        self.replaced.add(number.recipe)
        return number

    def _partial(self, partial: Any) -> Any:
        identity = id(partial)
        args = [self._content(value, (identity, "closure", i)) for i, value in enumerate(partial.args)]
        keywords = {name: self._content(value, (identity, "keyword", name)) for name, value in partial.keywords.items()}
        return functools.partial(self.of(partial.func), *args, **keywords)

    def _function(self, function: types.FunctionType) -> Any:
        known = self._functions.get(id(function))
        if known is not None:
            return known
        identity = id(function)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        scope = dict(function.__globals__)
        again = types.FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self._functions[identity] = again
        again.__module__ = function.__module__
        again.__dict__.update(function.__dict__)
        for i, (cell, original) in enumerate(zip(cells, function.__closure__ or ())):
            try:
                cell.cell_contents = self._content(original.cell_contents, (identity, "closure", i))
            except ValueError:  # not bound yet: the mod says so when it reads the name
                pass
        for name in names_of(function.__code__):
            if name in scope and (is_function(scope[name]) or (identity, "global", name) in self._numbers):
                scope[name] = self._content(scope[name], (identity, "global", name))
        if function.__defaults__ is not None:
            again.__defaults__ = tuple(
                self._content(value, (identity, "default", i)) for i, value in enumerate(function.__defaults__)
            )
        if function.__kwdefaults__ is not None:
            again.__kwdefaults__ = {name: self._content(value, (identity, "keyword", name))
                                    for name, value in function.__kwdefaults__.items()}
        return again


def is_function(value: Any) -> bool:
    """One that may hold numbers: torch's own functions hold none of the user's."""
    if type(value) is types.FunctionType:
        return not is_librarys(value)
    return type(value) is functools.partial
