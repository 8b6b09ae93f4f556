"""Stand-ins for arrays, their elements and objects while a mod of NumPy's face is traced."""

from __future__ import annotations

import copy
import enum
import operator
import types
from collections.abc import Callable
from typing import Any

from .. import _core
from .byte_code import Uses
from .kinds import is_array
from .negative_indices import from_the_front
from .numpy_functions import array_ufunc


def is_expr(value: Any) -> bool:
    return issubclass(type(value), _core.Expr)  # isinstance would ask a stand-in for its class


class CapturedArray(_core.Capture):
    """An array that the mod reached. Reads at expressions are reads of a capture. Everything else gets the array
    itself, by `content()`, which says that Python's code saw what the array holds now."""

    def __init__(self, name: str, dtype: str, array: Any, trace: Any) -> None:
        super().__init__(name, dtype, len(array.shape))
        self._array, self._trace = array, trace

    def content(self) -> Any:
        self._trace.reads_content = True
        return self._array

    def __getitem__(self, index: Any) -> Any:
        indices = index if type(index) is tuple else (index,)
        if any(is_expr(one) for one in indices):
            return _core.Capture.__getitem__(self, self._from_the_front(indices))
        if len(indices) == self.rank and all(type(one) is int and one >= 0 for one in indices):
            return CapturedElement(lambda: _core.Capture.__getitem__(self, index), lambda: self.content()[index])
        return self._again(self.content()[index])

    def _from_the_front(self, indices: tuple[Any, ...]) -> tuple[Any, ...]:
        """Negative numbers count from the end, which is at another place in an array of another shape."""
        indices = tuple([from_the_front(one, lambda axis=axis: self.content().shape[axis])  # type: ignore[misc]
                         for axis, one in enumerate(indices)])
        if not any(type(one) is int and one < 0 for one in indices):
            return indices
        shape = self.content().shape
        return tuple([one + extent if type(one) is int and -extent <= one < 0 else one
                      for one, extent in zip(indices, shape)]) + indices[len(shape):]

    def _again(self, value: Any) -> Any:
        """What comes of the array, a capture of its own if it is an array: a view, its transpose, a sum of two."""
        if not getattr(value, "shape", ()) or not is_array(value):
            return value
        try:
            return self._trace.capture(value, self.name)
        except ValueError:  # an element type that no expression reads
            return value

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(array, numpy.ndarray) in a mod; the class is a part of the key
        return type(self._array)

    @property
    def dtype(self) -> Any:  # a part of the key, too
        return self._array.dtype

    @property
    def ndim(self) -> int:
        return len(self._array.shape)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.content(), name)
        if type(found) is not types.BuiltinMethodType:
            return self._again(found)
        return lambda *arguments, **named: self._again(found(*map(content_of, arguments), **named))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.content()[index] = value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if any(is_expr(one) for one in inputs):
            return array_ufunc(self, ufunc, method, *inputs, **named)
        if "out" in named:
            named["out"] = tuple(map(content_of, named["out"]))
        return self._again(getattr(ufunc, method)(*map(content_of, inputs), **named))

    __hash__ = None  # type: ignore[assignment]


class CapturedElement:
    """An element of an array at a place that is no expression, and what is computed from such ones alone: an expression
    where a mod computes with it, the number that it is now where Python's code needs one."""

    def __init__(self, expr: Callable[[], Any], content: Callable[[], Any]) -> None:
        self._expr, self.content = expr, content

    def __heddle_expr__(self) -> Any:  # core/expressions.cc calls it
        return self._expr()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.content())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.content(), name)

    def __hash__(self) -> int:
        return hash(self.content())


def content_of(value: Any) -> Any:
    return value.content() if type(value) in (CapturedArray, CapturedElement) else value


def is_scalar(value: Any) -> bool:
    kind = type(value)
    return kind is CapturedElement or kind in (bool, int, float) or kind is CapturedArray and value.rank == 0


def applied(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """An operator on two values, one of which is a stand-in."""
    if not (is_expr(x) or is_expr(y)):
        if not (is_scalar(x) and is_scalar(y)):
            made = function(content_of(x), content_of(y))
            return next(one for one in (x, y) if type(one) is CapturedArray)._again(made) if (
                CapturedArray in (type(x), type(y))) else made
        return CapturedElement(lambda: function(_core.as_expr(x), _core.as_expr(y)),
                       lambda: function(content_of(x), content_of(y)))
    return function(_core.as_expr(x), _core.as_expr(y))


def define_operators() -> None:
    """Gives both stand-ins the operators of arrays and numbers."""
    def unary(function: Any) -> Any:
        return lambda self, *arguments: function(self.content(), *map(content_of, arguments))

    def lazy(function: Any) -> Any:
        return lambda self: (CapturedElement(lambda: function(_core.as_expr(self)), lambda: function(self.content()))
                             if is_scalar(self) else function(self.content()))

    def binary(function: Any, is_reflected: bool) -> Any:
        return lambda self, other: applied(function, *((other, self) if is_reflected else (self, other)))

    for kind in (CapturedArray, CapturedElement):
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor",
                     "matmul"):
            bare, function = name.rstrip("_"), getattr(operator, name)
            setattr(kind, f"__{bare}__", binary(function, False))
            setattr(kind, f"__r{bare}__", binary(function, True))
        for name in ("lt", "le", "gt", "ge", "eq", "ne"):
            setattr(kind, f"__{name}__", binary(getattr(operator, name), False))
        for name in ("neg", "pos", "abs", "invert"):
            setattr(kind, f"__{name}__", lazy(getattr(operator, name)))
        for name, function in {"float": float, "int": int, "complex": complex, "bool": bool, "len": len, "iter": iter,
                               "index": operator.index, "round": round, "str": str, "repr": repr,
                               "contains": operator.contains, "format": format, "divmod": divmod,
                               "copy": copy.copy, "reduce_ex": lambda array, protocol: array.__reduce_ex__(protocol),
                               "deepcopy": lambda array, memo: copy.deepcopy(array, memo)}.items():
            setattr(kind, f"__{name}__", unary(function))
        setattr(kind, "__rdivmod__", lambda self, other: divmod(content_of(other), self.content()))
        setattr(kind, "__array__", unary(lambda array, *given: array.__array__(*given)))


def define_operators_in_place() -> None:
    """`x += y` writes into an array; a number of an array, and an expression, make a new value."""
    def in_place(name: str) -> Any:
        new, function = getattr(operator, name), getattr(operator, f"i{name.rstrip('_')}")

        def apply(self: Any, other: Any) -> Any:
            if is_expr(other):
                return new(self, other)
            function(self.content(), content_of(other))
            return self
        return apply

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"):
        setattr(CapturedArray, f"__i{name.rstrip('_')}__", in_place(name))


define_operators()
define_operators_in_place()


def is_refusal(error: Exception) -> bool:
    """Whether C code says that it takes no stand-in."""
    kinds = CapturedArray, CapturedElement, AttributesOf, AnyUseOf
    return any(kind.__name__ in str(error) for kind in kinds)


class TypeOfTypes(type):
    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        first = arguments[0] if len(arguments) == 1 else None
        stands = type(first) in (CapturedArray, CapturedElement, AttributesOf, AnyUseOf)
        return first.__class__ if stands else type(*arguments, **options)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type)


class Type(metaclass=TypeOfTypes):
    """Stands for the builtin `type`, which would give the class of a stand-in."""


class AttributesOf:
    """Stands for an object of which code only reads attributes (`uses`): reads and writes are the object's, but what is
    read is replaced as what the mod reaches by itself."""

    def __init__(self, owner: Any, uses: Uses, rebound: Any) -> None:
        object.__setattr__(self, "_state", (owner, uses, rebound))

    def __getattribute__(self, name: str) -> Any:
        owner, uses, rebound = object.__getattribute__(self, "_state")
        return rebound.of(getattr(owner, name), name, None, uses.attributes.get(name))

    def __setattr__(self, name: str, value: Any) -> None:
        owner, _, rebound = object.__getattribute__(self, "_state")
        setattr(owner, name, rebound.original(value))


class AnyUseOf(AttributesOf):
    """Stands for an object with which code does anything: it calls it, indexes it, hands it on."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        owner, _, rebound = object.__getattribute__(self, "_state")
        return rebound.called(owner)(*arguments, **named)

    def __hash__(self) -> int:
        return hash(owner_of(self))


def owner_of(value: Any) -> Any:
    return object.__getattribute__(value, "_state")[0] if type(value) is AnyUseOf else value


def define_special_methods() -> None:
    def forwarded(name: str) -> Any:
        def apply(self: Any, *arguments: Any) -> Any:
            owner, _, rebound = object.__getattribute__(self, "_state")
            method = getattr(owner, name, None)
            if method is None:
                if name == "__bool__":
                    return bool(owner)
                raise TypeError(f"'{type(owner).__name__}' object has no {name}")
            return rebound.of(rebound.of(method)(*map(owner_of, arguments)))
        return apply

    operators = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
    for name in (*operators, *(f"r{one}" for one in operators), "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "len",
                 "iter", "next", "getitem", "setitem", "contains", "bool", "float", "int", "index", "str", "format",
                 "enter", "exit"):
        setattr(AnyUseOf, f"__{name}__", forwarded(f"__{name}__"))


define_special_methods()
NO_PLAIN_OBJECTS = (
    int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type, types.ModuleType, BaseException, enum.Enum)


def is_of_pythons_class(value: Any) -> bool:
    """Whether a value is an object of a class written in Python, and none of a kind that C code looks into."""
    is_heap_type = bool(type(value).__flags__ & 1 << 9)
    return is_heap_type and type(value).__module__ != "builtins" and not isinstance(value, NO_PLAIN_OBJECTS)
