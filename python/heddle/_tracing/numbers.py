"""Stand-ins for the numbers that a mod of torch's face reaches. Arithmetic on them is recorded, and repeated for later
values.

A number becomes a param where it meets a tensor. Where Python needs its value (a branch, a range, an index of a list)
the number becomes a guard: the expression serves later calls with that value only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .reached import Reached
from .rebound import Rebound, Slot

# How a number is computed from the numbers of a walk:
# - an int: the walk's number at this position
# - ("item", position): the content of the walk's array at this position
# - ("extent", position, axis): the extent of that array on this axis
# - (None, value, text): a constant; the text tells 1, 1.0 and True apart, because equal recipes become one param
# - (function, recipe, ...): the function of other recipes
Recipe = Any


def computed(recipe: Recipe, numbers: Sequence[Any], arrays: Sequence[Any]) -> Any:
    if isinstance(recipe, int):
        return numbers[recipe]
    function, *operands = recipe
    if function is None:
        return operands[0]
    if function == "item":
        return arrays[operands[0]].item()
    if function == "extent":
        return arrays[operands[0]].shape[operands[1]]
    return function(*(computed(one, numbers, arrays) for one in operands))


class Guards:
    """The values that numbers must have for an expression to be right: by recipe."""

    def __init__(self) -> None:
        self.all: dict[Recipe, Any] = {}

    def hold(self, numbers: Sequence[Any], arrays: Sequence[Any]) -> bool:
        try:
            return all(same(computed(recipe, numbers, arrays), value) for recipe, value in self.all.items())
        except ArithmeticError:
            return False


def same(x: Any, y: Any) -> bool:
    if type(x) is not type(y):
        return False
    return x.hex() == y.hex() if isinstance(x, float) else bool(x == y)  # tells zeros apart, and a NaN equals itself


class Number:
    """`value` is that of the traced call. Operators on numbers give another Number, operators on a tensor a tensor."""

    __slots__ = ("value", "recipe", "guards")

    def __init__(self, value: Any, recipe: Recipe, guards: Guards) -> None:
        self.value, self.recipe, self.guards = value, recipe, guards

    def concrete(self) -> Any:
        self.guards.all[self.recipe] = self.value
        return self.value

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(number, int) in a mod; the type is part of the kept expression's key
        return type(self.value)

    def is_negative(self) -> bool:
        return bool(derived(operator.lt, self, 0))

    # Torch's functions take it for a tensor; the tracing mode, which they then call, knows better.
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError("a number of a mod is used outside of its trace")

    def __bool__(self) -> bool:
        return bool(derived(bool, self).concrete())

    def __int__(self) -> int:
        return int(self.concrete())

    def __index__(self) -> int:
        return operator.index(self.concrete())

    def __float__(self) -> float:
        return float(self.concrete())

    def __hash__(self) -> int:
        return hash(self.concrete())

    def __repr__(self) -> str:
        return repr(self.concrete())

    def __format__(self, spec: str) -> str:
        return format(self.concrete(), spec)

    def __round__(self, digits: int | None = None) -> Any:
        return derived(round, self) if digits is None else derived(round, self, digits)

    def __getattr__(self, name: str) -> Any:  # is_integer, bit_length, ...
        return getattr(self.concrete(), name)


def derived(function: Callable[..., Any], *operands: Any) -> Any:
    """function(operands...) now, and its recipe."""
    first = next(one for one in operands if isinstance(one, Number))
    values = [one.value if isinstance(one, Number) else one for one in operands]
    recipe = (function, *(one.recipe if isinstance(one, Number) else (None, one, repr(one)) for one in operands))
    return Number(function(*values), recipe, first.guards)


def is_operand(value: Any) -> bool:
    return isinstance(value, (Number, int, float))


def define_operators() -> None:
    def binary(name: str, function: Callable[[Any, Any], Any], reflected: bool) -> None:
        def forward(self: Number, other: Any) -> Any:
            return derived(function, self, other) if is_operand(other) else NotImplemented

        def backward(self: Number, other: Any) -> Any:
            return derived(function, other, self) if is_operand(other) else NotImplemented

        setattr(Number, f"__{name}__", forward)
        if reflected:
            setattr(Number, f"__r{name}__", backward)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"):
        binary(name.rstrip("_"), getattr(operator, name), True)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        binary(name, getattr(operator, name), False)
    unary = {"neg": operator.neg, "pos": operator.pos, "abs": abs, "invert": operator.invert, "floor": math.floor,
             "ceil": math.ceil, "trunc": math.trunc}
    for name, function in unary.items():
        setattr(Number, f"__{name}__", lambda self, function=function: derived(function, self))


define_operators()


class NumbersRebound(Rebound):
    """A copy of a mod in which stand-ins take the place of the numbers that the walk met. Everything else stays what it
    is."""

    opens_mods = False

    def __init__(self, reached: Reached, guards: Guards) -> None:
        super().__init__()
        self._numbers = {slot: Number(reached.numbers[i], i, guards) for i, slot in enumerate(reached.slots)}
        self.replaced: set[int] = set()  # positions of the numbers that have stand-ins now

    def stand_in(self, value: Any, name: str, slot: Slot) -> Any:
        number = None if slot is None else self._numbers.get(slot)
        if number is None:
            return value
        self.replaced.add(number.recipe)
        return number
