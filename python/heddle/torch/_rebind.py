"""A copy of a mod in which stand-ins (_numbers.py) take the place of numbers. Everything else stays what it is."""

from __future__ import annotations

from typing import Any

from .. import _rebind
from .._reached import Reached
from ._numbers import Guards, Number


class Rebound(_rebind.Rebound):
    def __init__(self, reached: Reached, guards: Guards) -> None:
        super().__init__()
        self._numbers = {
            slot: Number(reached.numbers[i], i, guards) for i, slot in enumerate(reached.slots)
        }
        self.replaced: set[int] = set()  # positions of the numbers that have stand-ins now

    def stand_in(self, value: Any, name: str, slot: _rebind.Slot) -> Any:
        number = None if slot is None else self._numbers.get(slot)
        if number is None:
            return value
        self.replaced.add(number.recipe)
        return number
