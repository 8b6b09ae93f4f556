"""The walk over all that a mod reaches beside its arguments: it makes the key under which the expression is kept.

The rule: an expression is kept only if everything that the mod reached is
- watched: a part of the key, which each later call compares (here, or in C++ by the steps of the walk); or
- constant: listed in constants.py.
Anything else raises NotKept, and the mod is traced at each call. `byte_code.py` says what code reaches: an instruction
or an attribute that it does not know is not kept either. Both faces, NumPy's and torch's, keep by this rule alone.
"""

from __future__ import annotations

import builtins
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from .. import _core
from .byte_code import MUTATORS, Facts, Uses, facts_of, is_known_attribute
from .constants import CONSTANT_MODULES, is_constant, is_library
from .kinds import (
    PLAIN, Same, is_array, is_compared, is_fixed_enum, is_number, is_numpy_scalar, refuse_special)
from .._mod import Mod
from .owners import (
    NotKept, check_call_of_module, check_lookups, is_torch_module, of_class, of_module, of_object, of_plain_class)
from .steps import Steps

__all__ = ["NotKept", "Reached"]

MOST_STEPS = 5000  # a longer walk takes longer than a trace
MOST_DEPTH = 20  # containers within containers


class Reached:
    """One walk over a mod. `key` identifies what its expression depends on: the code of all functions reached; numbers
    by value, or by their kind where `params`; arrays by element type, rank and class.

    `arrays` and `numbers` hold what was met, in the order of the walk. Where a number was met stands in `slots`:
    (id of the function or partial, how it holds the number, which one). `steps` says how all of it was found: `at` is
    the step's slot of a value.
    """

    __slots__ = (
        "key", "arrays", "numbers", "slots", "array_names", "number_names", "steps", "_known", "_params", "_by_value",
        "_seen", "_depth", "_containers", "_unwatched")

    def __init__(self, function: Any, params: bool = False) -> None:
        if _core.traces_always():
            raise NotKept("the setting to trace always")
        self._params = params
        self._walk(function, by_value=False)
        if self._by_value and self.numbers:  # type(number), which no stand-in can answer
            self._walk(function, by_value=True)

    def _walk(self, function: Any, by_value: bool) -> None:
        self.arrays: list[Any] = []
        self.numbers: list[Any] = []
        self.slots: list[tuple[int, str, Any]] = []
        self.array_names: list[str] = []
        self.number_names: list[str] = []
        self._known: dict[int, int] = {}
        self._seen: dict[Any, int] = {}
        self._by_value = by_value
        self._depth = 0
        self._containers: set[type] = set()
        self._unwatched: set[type] = set()
        self.steps = Steps()
        self.key = self._callable(function, 0)
        if self._unwatched & self._containers:
            raise NotKept("a container that the mod may change, or may compare by `is`")

    def _callable(self, function: Any, at: int) -> Any:
        kind = type(function)
        if kind in (types.FunctionType, functools.partial, types.MethodType, Mod):
            return self._value(function, "mod", None, at)
        name = "__call__"
        if is_torch_module(function):
            check_call_of_module(self.steps, function, at)
            name = "forward"
        call = of_class(kind, name)
        if type(call) is not types.FunctionType:
            return self._value(function, "mod", None, at)
        self.steps.check("type", at, kind)
        return self._method(call, self.steps.to("of_class", at, name), function, at)

    def _array(self, value: Any, name: str, at: int) -> Any:
        kind = type(value)
        # The elements of NumPy's arrays are numbers to torch's code, and classes of the user's have code of their own.
        if self._params and not kind.__module__.startswith("torch"):
            raise NotKept(f"an array of the class {kind.__name__}")
        position = self._known.get(id(value))
        if position is None:
            position = self._known[id(value)] = len(self.arrays)
            self.arrays.append(value)
            self.array_names.append(name)
            self.steps.check("type", at, kind)
            self.steps.array(at)
        else:
            self.steps.check("same", at, self.steps.array_slots[position])
        rank = len(value.shape)
        of_torch = (value.device, rank == 0 and value.requires_grad) if self._params else None
        return position, kind, value.dtype, rank, of_torch

    def _value(
        self, value: Any, name: str, slot: tuple[int, str, Any] | None, at: int, uses: Uses | None = None,
    ) -> Any:
        """The part of the key of a value, and its steps. `uses`: what the code does with it, None for anything."""
        kind, steps = type(value), self.steps
        if len(steps.all) > MOST_STEPS:
            raise NotKept("more than a walk may find")
        if slot is not None and self._params and not self._by_value and is_number(value):
            self.numbers.append(value)
            self.number_names.append(name)
            self.slots.append(slot)
            steps.number(at, kind)
            return kind, *self._plain_attributes(uses)
        if kind in PLAIN:
            steps.value(at, value)
            return kind, value, *self._plain_attributes(uses)
        if kind is float:
            steps.value(at, value)
            return kind, value.hex(), *self._plain_attributes(uses)  # tells zeros apart, and a NaN equals itself
        if is_constant(value):
            if value is type:
                self._by_value = True
            steps.check("is", at, value)
            return Same(value), *self._plain_attributes(uses)
        if kind is types.FunctionType or kind is types.MethodType:
            for one in () if uses is None else uses.names():
                refuse_special(one)
            return self._function(value, at) if kind is types.FunctionType else self._bound(value, at)
        if kind is functools.partial or kind is Mod:
            if uses is not None and not {"func", "args", "keywords"}.issuperset(uses.names()):
                raise NotKept(f"an attribute of a {kind.__name__}")
            if kind is functools.partial:
                return self._partial(value, at)
            steps.check("type", at, Mod)
            return "mod", self._callable(value.function, steps.to("get", at, "function"))
        if is_array(value):
            self._plain_attributes(uses)
            return self._array(value, name, at)
        if kind is tuple or kind is list or kind is dict:
            return self._container(value, name, at, uses)
        if is_compared(value):
            steps.check("type", at, kind)
            steps.check("equal", at, value)
            return kind, value, *self._plain_attributes(uses)
        if is_numpy_scalar(value):
            return self._numpy_scalar(value, at, uses)
        if kind is _core.Expr or kind is _core.Capture or is_fixed_enum(value):
            names = set() if uses is None else set(uses.names())
            if isinstance(value, enum.Enum) and not names <= {"name", "value"}:
                raise NotKept(f"an attribute of {value!r}")
            steps.check("is", at, value)
            return Same(value)
        return self._owner(value, at, uses)

    def _plain_attributes(self, uses: Uses | None) -> tuple[()]:
        """Nothing; raises NotKept if an attribute of a number, a text or an array may reach anything else."""
        for name in () if uses is None else uses.names():
            if not is_known_attribute(name):
                raise NotKept(f"the attribute {name}")
        return ()

    def _numpy_scalar(self, value: Any, at: int, uses: Uses | None) -> Any:
        self._plain_attributes(uses)
        kind, item = type(value), value.item()
        self.steps.check("type", at, kind)
        self.steps.check("bits" if type(item) is float else "equal", at, value)
        return kind, item.hex() if type(item) is float else item

    def _container(self, value: Any, name: str, at: int, uses: Uses | None) -> Any:
        kind, steps = type(value), self.steps
        self._plain_attributes(uses)
        self._containers.add(kind)
        if kind is not tuple and uses is not None and not MUTATORS.isdisjoint(uses.names()):
            raise NotKept("a container that the mod changes")
        if self._depth > MOST_DEPTH:
            raise NotKept("containers within containers")
        self._depth += 1
        if kind is dict:
            if not all(type(key) in PLAIN for key in value):
                raise NotKept("a dict with other keys than numbers and texts")
            steps.check("keys", at, tuple(value))
            parts = [(type(key), key, self._value(one, str(key), None, steps.to("item", at, key)))
                     for key, one in value.items()]
        else:
            steps.check("type", at, kind)
            steps.check("size", at, len(value))
            parts = [self._value(one, name, None, steps.to("at", at, i)) for i, one in enumerate(value)]
        self._depth -= 1
        return kind, *parts

    def _owner(self, value: Any, at: int, uses: Uses | None) -> Any:
        """An object, a class or a module, of which the code only reads attributes."""
        kind, steps = type(value), self.steps
        if uses is None or uses.whole or uses.writes:
            raise NotKept(f"an object of the class {kind.__name__}")
        if kind is types.ModuleType:
            steps.check("is", at, value)
            return Same(value), *self._of_module(value, at, uses)
        if isinstance(value, enum.EnumMeta):
            steps.check("is", at, value)
            return Same(value), *(self._member(value, name, deeper) for name, deeper in uses.attributes.items())
        if isinstance(value, type):
            steps.check("type", at, type)
            return kind, *((name, self._value(*self._named(of_plain_class, value, name, at), deeper))
                           for name, deeper in uses.attributes.items())
        return self._object(value, at, uses)

    def _named(self, find: Any, owner: Any, name: str, at: int) -> tuple[Any, str, None, int]:
        refuse_special(name)
        value, slot = find(self.steps, owner, name, at)
        return value, name, None, slot

    def _of_module(self, module: types.ModuleType, at: int, uses: Uses) -> Iterator[Any]:
        """The attributes that are read of a module. Its constants need no steps, nor do a library's own modules on the way
        to them: `at` is negative for one of these."""
        for name, deeper in uses.attributes.items():
            value: Any = module.__dict__.get(name)
            if is_constant(value):
                self._by_value = self._by_value or value is type
                yield Same(value), *self._plain_attributes(deeper)
            elif is_library(value) and not deeper.whole:
                yield Same(value), *self._of_module(value, -1, deeper)
            else:
                found = self.steps.to("constant", 0, module) if at < 0 else at
                yield self._value(*self._named(of_module, module, name, found), deeper)

    def _member(self, kind: Any, name: str, deeper: Uses) -> Any:
        """A member of an enumeration, which always has the same ones."""
        member = kind._member_map_.get(name)
        if member is None or not is_fixed_enum(member) or not set(deeper.names()) <= {"name", "value"}:
            raise NotKept(f"{kind.__name__}.{name}")
        return name

    def _object(self, owner: Any, at: int, uses: Uses) -> Any:
        kind, steps = type(owner), self.steps
        check_lookups(steps, owner, at)
        parts = []
        for name, deeper in uses.attributes.items():
            refuse_special(name)
            value, slot, is_method = of_object(steps, owner, name, at)
            parts.append((name, self._method(value, slot, owner, at) if is_method
                          else self._value(value, name, None, slot, deeper)))
        return kind, *parts

    def _method(self, function: Any, function_at: int, owner: Any, at: int) -> Any:
        """A method and what it reads of its object. Raises NotKept if it does more with the object than that."""
        if type(function) is not types.FunctionType:
            raise NotKept(f"the method {function!r}")
        identity = "method", id(owner), function.__code__
        known = self._seen.get(identity)
        if known is not None:
            self.steps.are_complete = False
            return identity[0], known
        self._seen[identity] = len(self._seen)
        first = facts_of(function.__code__).first
        if first is None or first.whole or first.writes:
            raise NotKept(f"{function.__qualname__}, which does more with its object than reading attributes")
        return "method", self._function(function, function_at, True), self._object(owner, at, first)

    def _bound(self, method: types.MethodType, at: int) -> Any:
        steps = self.steps
        steps.check("type", at, types.MethodType)
        owner = steps.to("get", at, "__self__")
        return self._method(method.__func__, steps.to("get", at, "__func__"), method.__self__, owner)

    def _function(self, function: types.FunctionType, at: int, is_method: bool = False) -> Any:
        steps = self.steps
        known = self._seen.get(id(function))
        if known is not None:
            steps.same_function(at, known)
            return "function", known
        identity = id(function)
        number = self._seen[identity] = len(self._seen)
        code = function.__code__
        facts = facts_of(code)
        refused = facts.refused if is_method else facts.refused_as_function
        if refused is not None:
            raise NotKept(f"{function.__qualname__}: {refused}")
        self._note_writes(facts)
        steps.check("type", at, types.FunctionType)
        steps.check("is", steps.to("get", at, "__code__"), code)
        steps.function(at, number)
        parts: list[Any] = [code]
        for name, value, slot, found, uses in self._cells(function, facts, at):
            parts.append("empty" if slot is None else self._value(
                value, name, (identity, "closure", slot), found, uses))
        parts += [self._value(value, name, (identity, "global", name), found, uses)
                  for name, value, found, uses in self._globals(function, facts, at)]
        parts += [self._imported(name, uses) for name, uses in facts.imports.items()]
        parts += self._defaults(function, at)
        attributes = steps.to("get", at, "__dict__")
        steps.check("keys", attributes, tuple(function.__dict__))
        parts += [(name, self._value(value, name, None, steps.to("item", attributes, name)))
                  for name, value in function.__dict__.items() if name != "__wrapped__"]
        return tuple(parts)

    def _note_writes(self, facts: Facts) -> None:
        if facts.writes_items:
            self._unwatched |= {list, dict}
        if facts.adds_in_place:
            self._unwatched.add(list)
        if facts.compares_identity:  # no step watches which containers are one
            self._unwatched |= {tuple, list, dict}

    def _cells(
        self, function: types.FunctionType, facts: Facts, at: int
    ) -> Iterator[tuple[str, Any, int | None, int, Uses]]:
        """The variables of outer functions that it reads: names, values, numbers, slots, uses. No number: not bound."""
        steps, code = self.steps, function.__code__
        if not facts.cells:
            return
        closure = steps.to("get", at, "__closure__")
        for i, cell in enumerate(function.__closure__ or ()):
            uses = facts.cells.get(code.co_freevars[i])
            if uses is None:
                continue
            try:
                content = cell.cell_contents
            except ValueError:
                steps.check("no_cell", closure, i)
                yield code.co_freevars[i], None, None, -1, uses
                continue
            yield code.co_freevars[i], content, i, steps.to("cell", closure, i), uses

    def _globals(self, function: types.FunctionType, facts: Facts, at: int) -> Iterator[tuple[str, Any, int, Uses]]:
        """The globals that it reads: names, values, slots, uses. Raises NotKept for a builtin that is not constant."""
        if not facts.globals:
            return
        if getattr(function, "__builtins__") is not builtins.__dict__:  # mypy knows no such attribute
            raise NotKept("builtins of its own")
        steps, scope = self.steps, function.__globals__
        found = steps.to("get", at, "__globals__")
        for name, uses in facts.globals.items():
            if name in scope:
                yield name, scope[name], steps.to("item", found, name), uses
                continue
            steps.check("no_item", found, name)
            value = builtins.__dict__.get(name)
            if not is_constant(value):
                raise NotKept(f"the builtin {name}")
            self._by_value = self._by_value or value is type
            self._plain_attributes(uses)

    def _imported(self, name: str, uses: Uses) -> Any:
        """A module that a function imports: a library's, which stays what it is."""
        module = sys.modules.get(name)
        if uses.whole or uses.writes or module is None or not (is_library(module) or name in CONSTANT_MODULES):
            raise NotKept(f"the import of {name}")
        return Same(module), *self._of_module(module, -1, uses)

    def _defaults(self, function: types.FunctionType, at: int) -> list[Any]:
        steps, identity, code = self.steps, id(function), function.__code__
        defaults, keywords = steps.to("get", at, "__defaults__"), steps.to("get", at, "__kwdefaults__")
        parts: list[Any] = []
        if function.__defaults__ is None:
            steps.value(defaults, None)
        else:
            steps.check("type", defaults, tuple)
            steps.check("size", defaults, len(function.__defaults__))
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__):]
            parts += [self._value(value, name, (identity, "default", i), steps.to("at", defaults, i))
                      for i, (name, value) in enumerate(zip(names, function.__defaults__))]
        if function.__kwdefaults__ is None:
            steps.value(keywords, None)
        else:
            steps.check("keys", keywords, tuple(function.__kwdefaults__))
            parts += [(name, self._value(value, name, (identity, "keyword", name), steps.to("item", keywords, name)))
                      for name, value in function.__kwdefaults__.items()]
        return parts

    def _partial(self, partial: Any, at: int) -> Any:
        identity, steps = id(partial), self.steps
        steps.check("type", at, functools.partial)
        parts = [self._callable(partial.func, steps.to("get", at, "func"))]
        args, keywords = steps.to("get", at, "args"), steps.to("get", at, "keywords")
        steps.check("size", args, len(partial.args))
        steps.check("keys", keywords, tuple(partial.keywords))
        parts += [self._value(value, f"arg{i}", (identity, "closure", i), steps.to("at", args, i))
                  for i, value in enumerate(partial.args)]
        parts += [(name, self._value(value, name, (identity, "keyword", name), steps.to("item", keywords, name)))
                  for name, value in partial.keywords.items()]
        return "partial", *parts
