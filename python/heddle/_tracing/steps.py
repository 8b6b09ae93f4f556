"""The steps of a walk over a mod, so that core/kept_mods.cc can take them again."""

from __future__ import annotations

from typing import Any

Step = tuple[str, int, int, Any]  # kind, the slot that it fills (-1: none), the slot that it looks at, what is expected


class Steps:
    """The steps of a walk: each value that it met has a slot, the mod itself slot 0.

    If the same steps from another mod find what is expected, its walk would give the same key. The kinds of steps stand
    in core/kept_mods.h.
    """

    __slots__ = ("all", "slots", "are_complete", "array_slots", "number_slots", "_functions")

    def __init__(self) -> None:
        self.all: list[Step] = []
        self.slots = 1
        self.are_complete = True  # False if the walk met what no step can look at
        self.array_slots: list[int] = []
        self.number_slots: list[int] = []
        self._functions: dict[int, int] = {}

    def check(self, kind: str, at: int, expected: Any) -> None:
        self.all.append((kind, -1, at, expected))

    def to(self, kind: str, at: int, what: Any) -> int:
        """The slot of the value that this step finds."""
        slot = self.slots
        self.slots = slot + 1
        self.all.append((kind, slot, at, what))
        return slot

    def function(self, at: int, number: int) -> None:
        """A function that was not met before."""
        if self._functions:
            self.check("fresh", at, tuple(self._functions.values()))
        self._functions[number] = at

    def same_function(self, at: int, number: int) -> None:
        self.check("same", at, self._functions[number])

    def array(self, at: int) -> None:
        """An array that was not met before."""
        self.check("array", at, len(self.array_slots))
        self.array_slots.append(at)

    def number(self, at: int, kind: type) -> None:
        """A number whose value does not matter."""
        self.of_type(at, kind)
        self.number_slots.append(at)

    def of_type(self, at: int, kind: type) -> None:
        """A number that can become a param."""
        self.check("type", at, kind)
        if kind is int:
            self.check("i32", at, None)

    def value(self, at: int, value: Any) -> None:
        """A number or a text whose value matters."""
        kind = type(value)
        if value is None or kind is bool:
            self.check("is", at, value)
            return
        self.check("type", at, kind)
        self.check("bits" if kind is float else "equal", at, value)

    def result(self, function: Any, arguments: tuple[int, ...]) -> int:
        """The slot of a function's result on the values in these slots."""
        return self.to("call", 0, (function, arguments))
