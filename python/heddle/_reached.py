"""What a mod reaches beside its arguments: the key under which its expression is kept."""

from __future__ import annotations

import dis
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any

from ._steps import Steps

PLAIN = (int, bool, str, bytes, type(None))
# What their names stand for does not change. (A module of the user's may hold numbers that do.)
FIXED_MODULES = ("builtins", "functools", "heddle", "math", "numpy", "operator", "torch")
FIXED_TYPES = (bool, float, int)
LARGEST_I32 = 2**31 - 1


class NotKept(Exception):
    """The mod reaches something whose content may change unseen, such as an attribute that a property computes."""


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


class Facts:
    """What a function's code says of what it reaches."""

    __slots__ = ("names", "imports", "attributes")

    def __init__(self, code: types.CodeType) -> None:
        self.names = global_names(code)
        self.imports = any(not is_fixed_module(name) for name in imported(code))
        self.attributes = attributes_of_first(code)


_facts: dict[types.CodeType, Facts] = {}


def facts_of(code: types.CodeType) -> Facts:
    known = _facts.get(code)
    if known is None:
        if len(_facts) > 1000:
            _facts.clear()
        known = _facts[code] = Facts(code)
    return known


def names_of(code: types.CodeType) -> tuple[str, ...]:
    return facts_of(code).names


def imported(code: types.CodeType) -> list[str]:
    """The modules that it imports when it runs, by the functions inside it too."""
    names = [one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME"]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += imported(constant)
    return names


def attributes_of_first(code: types.CodeType) -> tuple[str, ...] | None:
    """The attributes that a method reads of its object, in order. None if it does anything else with the object."""
    if not code.co_argcount or code.co_varnames[0] in code.co_cellvars:
        return None
    own = code.co_varnames[0]
    found: list[str] = []
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL")]
    for one, after in zip(instructions, instructions[1:]):
        used = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if "FAST" not in one.opname or own not in used:
            continue
        is_read = one.opname.startswith("LOAD_FAST") and used[-1] == own and used.count(own) == 1
        if not is_read or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return None
        if after.argval not in found:
            found.append(after.argval)
    return tuple(found)


def is_fixed_module(name: str) -> bool:
    return name.partition(".")[0] in FIXED_MODULES


def is_number(value: Any) -> bool:
    """A number that may become a param: not a bool, and no integer past i32."""
    kind = type(value)
    return kind is float or kind is int and -LARGEST_I32 <= value <= LARGEST_I32


class Reached:
    """One walk over a mod. `key` identifies what its expression depends on: the code of all functions reached; numbers
    by value, or by their kind where `params`; arrays by element type and rank.

    `arrays` and `numbers` hold what was met, in the order of the walk. Where a number was met stands in `slots`:
    (id of the function or partial, how it holds the number, which one). `steps` says how all of it was found: `at` is
    the step's slot of a value.
    """

    __slots__ = (
        "key", "arrays", "numbers", "slots", "array_names", "number_names", "steps", "_known", "_params", "_seen")

    def __init__(self, function: Any, params: bool = False) -> None:
        self.arrays: list[Any] = []
        self.numbers: list[Any] = []
        self.slots: list[tuple[int, str, Any]] = []
        self.array_names: list[str] = []
        self.number_names: list[str] = []
        self._known: dict[int, int] = {}
        self._seen: dict[Any, int] = {}
        self._params = params
        self.steps = Steps()
        self.key = self._callable(function, 0)

    def _callable(self, function: Any, at: int) -> Any:
        if type(function) is types.FunctionType:
            return self._function(function, at)
        if type(function) is functools.partial:
            return self._partial(function, at)
        if not self._params:
            return self._value(function, "mod", None, at)
        if isinstance(function, types.MethodType):
            return self._bound(function, at)
        kind, name = type(function), "__call__"
        if is_module(function):
            if any(getattr(function, hooks, None) for hooks in HOOKS) or "forward" in function.__dict__:
                raise NotKept
            self.steps.check("no_item", self.steps.to("get", at, "__dict__"), "forward")
            for hooks in HOOKS:
                self.steps.check("size", self.steps.to("get", at, hooks), 0)
            name = "forward"
        call = of_class(kind, name)
        if isinstance(call, types.FunctionType):
            self.steps.check("type", at, kind)
            return self._method(call, self._of_class(at, kind, name), function, at)
        return self._value(function, "mod", None, at)

    def _bound(self, method: types.MethodType, at: int) -> Any:
        steps = self.steps
        steps.check("type", at, types.MethodType)
        owner = steps.to("get", at, "__self__")
        return self._method(method.__func__, steps.to("get", at, "__func__"), method.__self__, owner)

    def _of_class(self, at: int, kind: type, name: str) -> int:
        """The slot of a class's attribute, of an object of this class."""
        steps = self.steps
        return steps.result(of_class, (steps.to("constant", at, kind), steps.to("constant", at, name)))

    def _array(self, value: Any, name: str, at: int) -> Any:
        # The elements of NumPy's arrays are numbers to torch's code.
        if self._params and not hasattr(value, "requires_grad"):
            raise NotKept
        position = self._known.get(id(value))
        if position is None:
            position = self._known[id(value)] = len(self.arrays)
            self.arrays.append(value)
            self.array_names.append(name)
            self.steps.check("type", at, type(value))
            self.steps.array(at)
        else:
            self.steps.check("same", at, self.steps.array_slots[position])
        rank = len(value.shape)
        of_scalar = None if rank or not self._params else (value.device.type, value.requires_grad)
        return position, value.dtype, rank, of_scalar

    def _value(self, value: Any, name: str, slot: tuple[int, str, Any] | None, at: int) -> Any:
        kind, steps = type(value), self.steps
        if slot is not None and self._params and is_number(value):
            self.numbers.append(value)
            self.number_names.append(name)
            self.slots.append(slot)
            steps.number(at, kind)
            return kind
        if kind in PLAIN:
            steps.value(at, value)
            return kind, value
        if kind is float:
            steps.value(at, value)
            return kind, value.hex()  # tells zeros apart, and a NaN equals itself
        if kind is types.FunctionType:
            if is_librarys(value):
                steps.check("is", at, value)
                return value
            return self._function(value, at)
        if is_array(value):
            return self._array(value, name, at)
        if kind is tuple or kind is list:
            steps.check("type", at, kind)
            steps.check("size", at, len(value))
            return (kind, *(self._value(one, name, None, steps.to("at", at, i)) for i, one in enumerate(value)))
        if kind is dict:
            steps.check("keys", at, tuple(value))
            return (kind, *((key, self._value(one, str(key), None, steps.to("item", at, key)))
                            for key, one in value.items()))
        if kind is types.ModuleType:
            if is_fixed_module(value.__name__):
                steps.check("is", at, value)
                return value.__name__
            raise NotKept
        if kind is functools.partial:
            return self._partial(value, at)
        if kind is types.BuiltinFunctionType and isinstance(value.__self__, (types.ModuleType, type(None))):
            steps.check("is", at, value)
            return value
        if kind.__module__ == "torch":  # torch.dtype, torch.device
            steps.value(at, value)
            return value
        if kind.__module__ == "nanobind" or any(value is one for one in FIXED_TYPES):  # heddle's types
            steps.check("is", at, value)
            return getattr(value, "__name__", value)
        if isinstance(value, enum.Enum):
            steps.check("is", at, value)
            return value
        if self._params and isinstance(value, types.MethodType):
            return self._bound(value, at)
        raise NotKept

    def _function(self, function: types.FunctionType, at: int) -> Any:
        steps = self.steps
        known = self._seen.get(id(function))
        if known is not None:
            steps.same_function(at, known)
            return "function", known
        identity = id(function)
        number = self._seen[identity] = len(self._seen)
        code = function.__code__
        facts = facts_of(code)
        if facts.imports:
            raise NotKept
        by_value = "type" in facts.names  # type(number), which no stand-in can answer

        def part(value: Any, name: str, how: str, which: Any, at: int) -> Any:
            return self._value(value, name, None if by_value else (identity, how, which), at)

        steps.check("type", at, types.FunctionType)
        steps.check("is", steps.to("get", at, "__code__"), code)
        steps.function(at, number)
        parts: list[Any] = [code]
        cells = function.__closure__ or ()
        closure = steps.to("get", at, "__closure__") if cells else -1
        for i, cell in enumerate(cells):
            try:
                content = cell.cell_contents
            except ValueError:
                steps.check("no_cell", closure, i)
                parts.append("empty")
                continue
            parts.append(part(content, code.co_freevars[i], "closure", i, steps.to("cell", closure, i)))
        parts += [part(value, name, "global", name, at) for name, value, at in self._globals(function, facts, at)]
        defaults, keywords = steps.to("get", at, "__defaults__"), steps.to("get", at, "__kwdefaults__")
        if function.__defaults__ is None:
            steps.value(defaults, None)
        else:
            steps.check("type", defaults, tuple)
            steps.check("size", defaults, len(function.__defaults__))
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__):]
            parts += [part(value, name, "default", i, steps.to("at", defaults, i))
                      for i, (name, value) in enumerate(zip(names, function.__defaults__))]
        if function.__kwdefaults__ is None:
            steps.value(keywords, None)
        else:
            steps.check("keys", keywords, tuple(function.__kwdefaults__))
            parts += [(name, part(value, name, "keyword", name, steps.to("item", keywords, name)))
                      for name, value in function.__kwdefaults__.items()]
        attributes = steps.to("get", at, "__dict__")
        steps.check("keys", attributes, tuple(function.__dict__))
        parts += [(name, self._value(value, name, None, steps.to("item", attributes, name)))
                  for name, value in function.__dict__.items() if name != "__wrapped__"]
        return tuple(parts)

    def _globals(self, function: types.FunctionType, facts: Facts, at: int) -> Iterator[tuple[str, Any, int]]:
        """The globals that a function may read: names, values, slots."""
        if not facts.names:
            return
        steps, scope = self.steps, function.__globals__
        found = steps.to("get", at, "__globals__")
        for name in facts.names:
            if name in scope:
                yield name, scope[name], steps.to("item", found, name)
            else:
                steps.check("no_item", found, name)

    def _partial(self, partial: Any, at: int) -> Any:
        if not self._params:
            raise NotKept
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

    def _method(self, function: Any, function_at: int, owner: Any, at: int) -> Any:
        """A method and what it reads of its object. Raises NotKept if it does more with the object than that."""
        if type(function) is not types.FunctionType:
            raise NotKept
        identity = "method", id(owner), function.__code__
        known = self._seen.get(identity)
        if known is not None:
            self.steps.are_complete = False
            return identity[0], known
        self._seen[identity] = len(self._seen)
        attributes = facts_of(function.__code__).attributes
        kind, steps = type(owner), self.steps
        if attributes is None or not is_module(owner) and (
                of_class(kind, "__getattr__") is not None
                or of_class(kind, "__getattribute__") is not object.__getattribute__):
            raise NotKept
        steps.check("type", at, kind)
        if not is_module(owner):
            steps.value(self._of_class(at, kind, "__getattr__"), None)
            steps.check("is", self._of_class(at, kind, "__getattribute__"), object.__getattribute__)
        held = Held(owner, at, steps)
        return "method", kind, self._function(function, function_at), *(
            (name, self._attribute(owner, kind, held, name, at)) for name in attributes)

    def _attribute(self, owner: Any, kind: type, held: Held, name: str, at: int) -> Any:
        named, slot = of_class(kind, name), self._of_class(at, kind, name)
        own = held.find(name)
        if own is not None:
            if hasattr(type(named), "__set__"):  # a property hides it
                raise NotKept
            self.steps.check("is", slot, named)
            return self._value(own[0], name, None, own[1])
        if named is None:
            raise NotKept
        if isinstance(named, types.FunctionType):
            return self._method(named, slot, owner, at)
        return self._value(named, name, None, slot)


class Held:
    """The attributes that an object has itself: of a module also parameters and buffers, which come first."""

    def __init__(self, owner: Any, at: int, steps: Steps) -> None:
        own = getattr(owner, "__dict__", {})
        self._steps = steps
        self._dicts: list[tuple[dict[str, Any], int]] = []
        if type(own) is not dict or not hasattr(owner, "__dict__"):
            steps.are_complete = False
        slot = steps.to("get", at, "__dict__")
        if is_module(owner):
            for name in ("_buffers", "_parameters"):
                if name in own:
                    self._dicts.append((own[name], steps.to("item", slot, name)))
                else:
                    steps.check("no_item", slot, name)
        self._dicts.append((own, slot))

    def find(self, name: str) -> tuple[Any, int] | None:
        """An attribute and its slot. None if the object does not have it itself."""
        for own, slot in self._dicts:
            if name in own:
                return own[name], self._steps.to("item", slot, name)
            self._steps.check("no_item", slot, name)
        return None


def of_class(kind: type, name: str) -> Any:
    """A class's attribute as it stands there, not bound to anything. None if it has none."""
    for one in kind.__mro__:
        if name in one.__dict__:
            return one.__dict__[name]
    return None


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_module(value: Any) -> bool:
    """Of torch.nn, without importing it."""
    return hasattr(value, "_parameters") and hasattr(value, "_buffers")


def is_librarys(function: types.FunctionType) -> bool:
    """A function of a library's module itself: it reads nothing of the user's."""
    return "<" not in function.__qualname__ and function.__closure__ is None and is_fixed_module(
        function.__globals__.get("__name__", ""))
