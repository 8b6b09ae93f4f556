"""Mods to expressions: each mod is called once with symbolic scalars (_modes.py, _recording.py).

Tensors that the mod reads become captures wherever it finds them. Numbers become params (_numbers.py). Later calls of
the same code on tensors of the same types and ranks take the kept expression.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .._reached import NotKept, Reached
from ._modes import trace_with
from ._numbers import becomes_param, computed
from ._rebind import Rebound
from ._recording import MASK_PREFIX, Recording

SCORE = ("score", "b", "h", "q_idx", "kv_idx")
MASK = SCORE[1:]
MOST_KEPT = 512  # keys
MOST_VARIANTS = 16  # of one key: other shapes, or other numbers that Python's code needs

_counts = {"traces": 0}


def counts() -> dict[str, int]:
    """`traces`: how many mods were traced since the program began. `kept`: how many expressions are kept now.

    >>> import torch, heddle.torch
    >>> q, before = torch.randn(1, 1, 4, 8), heddle.torch.trace_counts()["traces"]
    >>> for slope in (0.5, 0.25):
    ...     out = heddle.torch.flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score - slope * kv_idx)
    >>> heddle.torch.trace_counts()["traces"] - before
    1
    """
    return {**_counts, "kept": sum(len(variants) for variants in list(_kept.values()))}


class Kept:
    """A mod's expression and where its captures and params come from."""

    __slots__ = ("expr", "captures", "params", "types", "guards", "shapes", "constants")

    def __init__(self, expr: Any, recording: Recording) -> None:
        positions = recording._positions
        self.expr = expr
        self.captures = [(name, positions[id(x)]) for name, x in recording.captures.items() if id(x) in positions]
        self.constants = {name: x for name, x in recording.captures.items() if id(x) not in positions}
        self.params = [(name, recipe) for recipe, name in recording.params.items()]
        reached = recording.reached
        # What arithmetic on numbers gives may leave i32, or become a float, for other numbers.
        self.types = [(recipe, type(computed(recipe, reached.numbers, reached.arrays)))
                      for recipe in recording.params if not isinstance(recipe, int)] if reached else []
        self.guards = recording.guards
        self.shapes = list(recording.shapes.items())

    def serves(self, reached: Reached) -> bool:
        arrays = reached.arrays
        return (all(tuple(arrays[i].shape) == shape for i, shape in self.shapes)
                and self.guards.hold(reached.numbers, arrays) and all(self.is_of(one, reached) for one in self.types))

    def is_of(self, typed: tuple[Any, type], reached: Reached) -> bool:
        try:
            value = computed(typed[0], reached.numbers, reached.arrays)
        except (ArithmeticError, ValueError):
            return False
        return type(value) is typed[1] and becomes_param(value)

    def bind(self, reached: Reached, captures: dict[str, Any], params: dict[str, Any]) -> None:
        for name, position in self.captures:
            captures[name] = reached.arrays[position]
        captures.update(self.constants)
        for name, recipe in self.params:
            params[name] = computed(recipe, reached.numbers, reached.arrays)


_kept: dict[Any, list[Kept]] = {}
_lock = threading.Lock()


def keep(key: Any, made: Kept) -> None:
    with _lock:
        while len(_kept) >= MOST_KEPT:
            _kept.pop(next(iter(_kept)))
        _kept[key] = [made, *_kept.get(key, ())][:MOST_VARIANTS]


class Mods:
    """The expressions of a call's mods, and the tensors and numbers that they read."""

    __slots__ = ("captures", "params", "device")

    def __init__(self, device: torch.device) -> None:
        self.captures: dict[str, torch.Tensor] = {}
        self.params: dict[str, float | int | bool] = {}
        self.device = device

    def score(self, mod: Callable[..., Any]) -> Any:
        return self._of(mod, SCORE, "", "f32")

    def mask(self, mod: Callable[..., Any]) -> Any:
        return self._of(mod, MASK, MASK_PREFIX, "bool")

    def _of(self, mod: Any, arguments: tuple[str, ...], prefix: str, kind: str) -> Any:
        try:
            reached = Reached(mod, params=True)
            # A learned 0-d tensor on the CPU is a capture of a GPU's call, others are params.
            learns = self.device.type != "cpu" and torch.is_grad_enabled()
            key = arguments, self.device.type, learns, reached.key
            variants = _kept.get(key, ())
        except (NotKept, TypeError):  # TypeError: a key that does not hash
            expr, recording = traced(mod, None, arguments, self.device, prefix, kind)
            self.captures.update(recording.captures)
            self.params.update(recording.values())
            return expr
        for kept in variants:
            if kept.serves(reached):
                kept.bind(reached, self.captures, self.params)
                return kept.expr
        expr, recording = traced(mod, reached, arguments, self.device, prefix, kind)
        made = Kept(expr, recording)
        if recording.is_kept:
            keep(key, made)
        made.bind(reached, self.captures, self.params)
        return expr


def traced(
    mod: Any, reached: Reached | None, arguments: tuple[str, ...], device: torch.device, prefix: str, kind: str
) -> tuple[Any, Recording]:
    _counts["traces"] += 1
    if reached is not None and reached.slots:
        try:
            recording = Recording(reached, device, prefix)
            rebound = Rebound(reached, recording.guards)
            again = rebound.of(mod)
            recording.guards.all.update(
                (i, number) for i, number in enumerate(reached.numbers) if i not in rebound.replaced)
            return trace_with(recording, again, arguments, kind), recording
        except Exception:  # perhaps for a number that is none: again, for these numbers alone
            pass
    recording = Recording(reached, device, prefix)
    if reached is not None:
        recording.guards.all.update(enumerate(reached.numbers))
    return trace_with(recording, mod, arguments, kind), recording
