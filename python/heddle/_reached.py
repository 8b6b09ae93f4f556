"""What a mod reaches beside its arguments: the key under which its expression is kept."""

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


_names: dict[types.CodeType, tuple[str, ...]] = {}


def names_of(code: types.CodeType) -> tuple[str, ...]:
    known = _names.get(code)
    if known is None:
        if len(_names) > 1000:
            _names.clear()
        known = _names[code] = global_names(code)
    return known


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
        self._seen: dict[int, int] = {}
        self._params = params
        self.key = self._callable(function)

    def _callable(self, function: Any) -> Any:
        if type(function) is types.FunctionType:
            return self._function(function)
        if isinstance(function, functools.partial):
            return self._partial(function)
        if self._params:
            if isinstance(function, types.MethodType):
                return self._method(function.__func__, function.__self__)
            call = inspect.getattr_static(type(function), "__call__", None)
            if isinstance(call, types.FunctionType) and not is_fixed_module(type(function).__module__):
                return self._method(call, function)
        return self._value(function, "mod", None)

    def _array(self, value: Any, name: str) -> Any:
        position = self._known.get(id(value))
        if position is None:
            position = self._known[id(value)] = len(self.arrays)
            self.arrays.append(value)
            self.array_names.append(name)
        rank = len(value.shape)
        return position, value.dtype, rank, None if rank or not self._params else value.device.type

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
            if "<" not in value.__qualname__ and is_fixed_module(value.__module__ or ""):  # one of the module's own
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
        parts: list[Any] = [code]
        for i, cell in enumerate(function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                parts.append("empty")
                continue
            parts.append(self._value(content, code.co_freevars[i], (identity, "closure", i)))
        for name in names_of(code):
            if name in scope:
                parts.append(self._value(scope[name], name, (identity, "global", name)))
        if function.__defaults__ is not None:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__):]
            parts += [
                self._value(value, name, (identity, "default", i))
                for i, (name, value) in enumerate(zip(names, function.__defaults__))
            ]
        if function.__kwdefaults__ is not None:
            parts += [
                (name, self._value(value, name, (identity, "keyword", name)))
                for name, value in function.__kwdefaults__.items()
            ]
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
        """A function and the attributes of its object that its code, and that of the methods it calls, names."""
        if type(function) is not types.FunctionType:
            raise NotKept
        names = list(names_of(function.__code__))
        done = 0
        while done < len(names):  # grows by the names of methods that are named
            named = inspect.getattr_static(type(owner), names[done], None)
            if isinstance(named, types.FunctionType):
                names += [name for name in names_of(named.__code__) if name not in names]
            done += 1
        return "method", self._function(function), self._object(owner, tuple(names))

    def _object(self, owner: Any, names: tuple[str, ...]) -> Any:
        known = self._seen.get(id(owner))
        if known is not None:
            return "object", known
        self._seen[id(owner)] = len(self._seen)
        kind: Any = type(owner)
        is_module = hasattr(owner, "_parameters") and hasattr(owner, "_buffers")
        if not is_module and (hasattr(kind, "__getattr__") or kind.__getattribute__ is not object.__getattribute__):
            raise NotKept
        held = dict(getattr(owner, "__dict__", {}))
        if is_module:
            for part in ("_parameters", "_buffers", "_modules"):
                held.update(held.get(part, {}))
        parts: list[Any] = [kind]
        for name in names:
            if name in held:
                parts.append((name, self._attribute(held[name], name, names)))
                continue
            named = inspect.getattr_static(kind, name, None)
            if isinstance(named, types.FunctionType):
                parts.append((name, self._function(named)))
            elif named is not None and not isinstance(named, (types.WrapperDescriptorType, types.MethodDescriptorType)):
                parts.append((name, self._value(named, name, None)))
        return tuple(parts)

    def _attribute(self, value: Any, name: str, names: tuple[str, ...]) -> Any:
        try:
            return self._value(value, name, None)
        except NotKept:
            if isinstance(value, (types.ModuleType, type)) or not hasattr(value, "__dict__"):
                raise
            return self._object(value, names)


def key_of(function: Any, arrays: list[Any]) -> Any:
    """The key of a function whose numbers count by value. Appends the arrays in the order of the walk.

    Raises NotKept.
    """
    if type(function) is not types.FunctionType:
        raise NotKept
    reached = Reached(function)
    arrays += reached.arrays
    return reached.key
