"""What a mod reaches beside its arguments: the key under which its expression is kept."""

import dis
import enum
import functools
import inspect
import types
from typing import Any

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
    (id of the function or partial, how it holds the number, which one).
    """

    __slots__ = ("key", "arrays", "numbers", "slots", "array_names", "number_names", "_known", "_params", "_seen")

    def __init__(self, function: Any, params: bool = False) -> None:
        self.arrays: list[Any] = []
        self.numbers: list[Any] = []
        self.slots: list[tuple[int, str, Any]] = []
        self.array_names: list[str] = []
        self.number_names: list[str] = []
        self._known: dict[int, int] = {}
        self._seen: dict[Any, int] = {}
        self._params = params
        self.key = self._callable(function)

    def _callable(self, function: Any) -> Any:
        if type(function) is types.FunctionType:
            return self._function(function)
        if type(function) is functools.partial:
            return self._partial(function)
        if not self._params:
            return self._value(function, "mod", None)
        if isinstance(function, types.MethodType):
            return self._method(function.__func__, function.__self__)
        if is_module(function):
            if any(getattr(function, hooks, None) for hooks in HOOKS):
                raise NotKept
            return self._method(type(function).forward, function)
        call = inspect.getattr_static(type(function), "__call__", None)
        if isinstance(call, types.FunctionType):
            return self._method(call, function)
        return self._value(function, "mod", None)

    def _array(self, value: Any, name: str) -> Any:
        # The elements of NumPy's arrays are numbers to torch's code.
        if self._params and not hasattr(value, "requires_grad"):
            raise NotKept
        position = self._known.get(id(value))
        if position is None:
            position = self._known[id(value)] = len(self.arrays)
            self.arrays.append(value)
            self.array_names.append(name)
        rank = len(value.shape)
        of_scalar = None if rank or not self._params else (value.device.type, value.requires_grad)
        return position, value.dtype, rank, of_scalar

    def _value(self, value: Any, name: str, slot: tuple[int, str, Any] | None) -> Any:
        kind = type(value)
        if slot is not None and self._params and is_number(value):
            self.numbers.append(value)
            self.number_names.append(name)
            self.slots.append(slot)
            return kind
        if kind in PLAIN:
            return kind, value
        if kind is float:
            return kind, value.hex()  # tells zeros apart, and a NaN equals itself
        if kind is types.FunctionType:
            if is_librarys(value):
                return value
            return self._function(value)
        if is_array(value):
            return self._array(value, name)
        if kind is tuple or kind is list:
            return (kind, *(self._value(one, name, None) for one in value))
        if kind is dict:
            return (kind, *((key, self._value(one, str(key), None)) for key, one in value.items()))
        if kind is types.ModuleType:
            if is_fixed_module(value.__name__):
                return value.__name__
            raise NotKept
        if kind is functools.partial:
            return self._partial(value)
        if kind is types.BuiltinFunctionType and isinstance(value.__self__, (types.ModuleType, type(None))):
            return value
        if kind.__module__ in ("nanobind", "torch") or any(value is one for one in FIXED_TYPES):  # heddle's; dtypes
            return value if kind.__module__ == "torch" else getattr(value, "__name__", value)
        if isinstance(value, enum.Enum):
            return value
        if self._params and isinstance(value, types.MethodType):
            return self._method(value.__func__, value.__self__)
        raise NotKept

    def _function(self, function: types.FunctionType) -> Any:
        known = self._seen.get(id(function))
        if known is not None:
            return "function", known
        identity = id(function)
        self._seen[identity] = len(self._seen)
        code, scope = function.__code__, function.__globals__
        facts = facts_of(code)
        if facts.imports:
            raise NotKept
        by_value = "type" in facts.names  # type(number), which no stand-in can answer

        def part(value: Any, name: str, how: str, which: Any) -> Any:
            return self._value(value, name, None if by_value else (identity, how, which))

        parts: list[Any] = [code]
        for i, cell in enumerate(function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                parts.append("empty")
                continue
            parts.append(part(content, code.co_freevars[i], "closure", i))
        parts += [part(scope[name], name, "global", name) for name in facts.names if name in scope]
        if function.__defaults__ is not None:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__):]
            defaults = enumerate(zip(names, function.__defaults__))
            parts += [part(value, name, "default", i) for i, (name, value) in defaults]
        if function.__kwdefaults__ is not None:
            parts += [(name, part(value, name, "keyword", name)) for name, value in function.__kwdefaults__.items()]
        if function.__dict__:
            parts += [(name, self._value(value, name, None)) for name, value in function.__dict__.items()
                      if name != "__wrapped__"]
        return tuple(parts)

    def _partial(self, partial: Any) -> Any:
        if not self._params:
            raise NotKept
        identity = id(partial)
        parts = [self._callable(partial.func)]
        parts += [self._value(value, f"arg{i}", (identity, "closure", i)) for i, value in enumerate(partial.args)]
        parts += [
            (name, self._value(value, name, (identity, "keyword", name))) for name, value in partial.keywords.items()
        ]
        return "partial", *parts

    def _method(self, function: Any, owner: Any) -> Any:
        """A method and what it reads of its object. Raises NotKept if it does more with the object than that."""
        if type(function) is not types.FunctionType:
            raise NotKept
        identity = "method", id(owner), function.__code__
        known = self._seen.get(identity)
        if known is not None:
            return identity[0], known
        self._seen[identity] = len(self._seen)
        attributes = facts_of(function.__code__).attributes
        kind = type(owner)
        if attributes is None or not is_module(owner) and (
                hasattr(kind, "__getattr__")
                or inspect.getattr_static(kind, "__getattribute__") is not object.__getattribute__):
            raise NotKept
        held = dict(getattr(owner, "__dict__", {}))
        if is_module(owner):
            held.update(held.get("_parameters", {}))
            held.update(held.get("_buffers", {}))
        return "method", kind, self._function(function), *(
            (name, self._attribute(owner, kind, held, name)) for name in attributes)

    def _attribute(self, owner: Any, kind: type, held: dict[str, Any], name: str) -> Any:
        if name in held:
            return self._value(held[name], name, None)
        named = inspect.getattr_static(kind, name, None)
        if isinstance(named, types.FunctionType):
            return self._method(named, owner)
        if named is None:
            raise NotKept
        return self._value(named, name, None)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_module(value: Any) -> bool:
    """Of torch.nn, without importing it."""
    return hasattr(value, "_parameters") and hasattr(value, "_buffers")


def is_librarys(function: types.FunctionType) -> bool:
    """A function of a library's module itself: it reads nothing of the user's."""
    return "<" not in function.__qualname__ and function.__closure__ is None and is_fixed_module(
        function.__globals__.get("__name__", ""))


def key_of(function: Any, arrays: list[Any]) -> Any:
    """The key of a function whose numbers count by value. Appends the arrays in the order of the walk.

    Raises NotKept.
    """
    if type(function) is not types.FunctionType:
        raise NotKept
    reached = Reached(function)
    arrays += reached.arrays
    return reached.key
