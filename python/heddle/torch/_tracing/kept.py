"""Mods to expressions: each mod is called once with symbolic scalars (modes.py, recording.py).

Tensors that the mod reads become captures wherever it finds them. Numbers become params (heddle/_tracing/numbers.py).
Later calls of the same code on tensors of the same types and ranks take the kept expression.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ... import _core
from ..._tracing.numbers import NumbersRebound, Recipe, computed
from ..._tracing.reached import NotKept, Reached
from ..._tracing.steps import Steps
from .modes import trace_with
from .._wide_integers import WIDE
from .ready_made import is_ready_made, ready_made
from .recording import MASK, SCORE, ModKind, Recording, becomes_param

MOST_KEPT = 512  # keys
MOST_VARIANTS = 16  # for one key: other shapes, or other numbers that Python's code needs
MOST_WALKS = 4  # to one expression

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

    __slots__ = ("expr", "captures", "params", "types", "guards", "shapes", "constants", "recognised")

    def __init__(self, expr: Any, recording: Recording) -> None:
        positions = recording._positions
        self.expr = expr
        self.captures = [(name, positions[id(x)]) for name, x in recording.captures.items() if id(x) in positions]
        self.constants = {name: x for name, x in recording.captures.items() if id(x) not in positions}
        self.params = [(name, recipe) for recipe, name in recording.params.items()]
        reached = recording.reached
        # For other numbers, arithmetic on them may leave i32 or become a float.
        self.types = [(recipe, type(computed(recipe, reached.numbers, reached.arrays)))
                      for recipe in recording.params if not isinstance(recipe, int)] if reached else []
        self.guards = recording.guards
        self.shapes = list(recording.shapes.items())
        self.recognised = 0  # how many walks lead to it in C++

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

    def recognise(self, mod: Any, reached: Reached, known: _core.KeptMods, device: torch.device) -> None:
        """Lets C++ find this expression for mods that are walked over as this one was."""
        steps = reached.steps
        if not steps.are_complete or self.recognised >= MOST_WALKS or needs_a_look(reached, device):
            return
        self.recognised += 1
        for position, shape in self.shapes:
            steps.check("shape", 0, (position, shape))
        slots = Slots(steps)
        for recipe, value in self.guards.all.items():
            steps.value(slots.of(recipe), value)
        for recipe, kind in self.types:
            if not issubclass(kind, (bool, int, float)):
                return
            steps.of_type(slots.of(recipe), kind)
        params = [(name, slots.of(recipe)) for name, recipe in self.params]
        try:
            known.keep(mod, self.expr, steps.all, reached.arrays, self.captures, params, self.constants)
        except TypeError:  # an array that DLPack does not describe
            pass

    def bind(self, reached: Reached, captures: dict[str, Any], params: dict[str, Any]) -> None:
        for name, position in self.captures:
            captures[name] = reached.arrays[position]
        captures.update(self.constants)
        for name, recipe in self.params:
            params[name] = computed(recipe, reached.numbers, reached.arrays)


def needs_a_look(reached: Reached, device: torch.device) -> bool:
    """Whether a 0-d tensor on the CPU is a param or a capture of this device's call, by whether it is learned, and
    whether integers on a GPU may not fit i32: C++ does not look at that."""
    return device.type != "cpu" and any(x.dim() == 0 and x.is_floating_point() and x.device.type == "cpu" or x.dtype in WIDE
                                        for x in reached.arrays)


class Slots:
    """Where the numbers of recipes (heddle/_tracing/numbers.py) stand in a walk."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._known: dict[Recipe, int] = {}

    def of(self, recipe: Recipe) -> int:
        if isinstance(recipe, int):
            return self._steps.number_slots[recipe]
        known = self._known.get(recipe)
        if known is None:
            known = self._known[recipe] = self._computed(*recipe)
        return known

    def _computed(self, function: Any, *operands: Any) -> int:
        if function is None:
            return self._steps.to("constant", 0, operands[0])
        if function == "item":
            return self._steps.result(torch.Tensor.item, (self._steps.array_slots[operands[0]],))
        if function == "extent":
            return self._steps.to("extent", 0, (operands[0], (operands[1],)))
        return self._steps.result(function, tuple([self.of(one) for one in operands]))


_kept: dict[Any, list[Kept]] = {}
_lock = threading.Lock()


@functools.cache
def known_of(kind: ModKind, device: str) -> _core.KeptMods:
    """The mods of a kind that C++ recognises, for queries on this kind of device."""
    return _core.KeptMods()


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
        return self._of(mod, SCORE)

    def mask(self, mod: Callable[..., Any]) -> Any:
        return self._of(mod, MASK)

    def _of(self, mod: Any, kind: ModKind) -> Any:
        if is_ready_made(mod):
            expr, captures = ready_made(mod, kind)
            self.captures.update(captures)
            return expr
        known = known_of(kind, self.device.type)
        found = known.find(mod)
        if found is not None:
            self.captures.update(cast(dict[str, torch.Tensor], found[1]))
            self.params.update(found[2])
            return found[0]
        reached, key, variants = self._walked(mod, kind)
        if reached is None:
            expr, recording = traced(mod, None, kind, self.device)
            self.captures.update(recording.tensors())
            self.params.update(recording.values())
            return expr
        for kept in variants:
            if kept.serves(reached):
                kept.recognise(mod, reached, known, self.device)
                kept.bind(reached, self.captures, self.params)
                return kept.expr
        expr, recording = traced(mod, reached, kind, self.device)
        if recording.symbols or recording.real_symbols:
            self.captures.update(recording.tensors())
            self.params.update(recording.values())
            return expr
        made = Kept(expr, recording)
        if recording.is_kept:
            keep(key, made)
            made.recognise(mod, reached, known, self.device)
        made.bind(reached, self.captures, self.params)
        return expr

    def _walked(self, mod: Any, kind: ModKind) -> tuple[Reached | None, Any, Sequence[Kept]]:
        """The walk over a mod, its key, and what is kept by it. No walk: the mod is traced at each call."""
        try:
            reached = Reached(mod, params=True)
            # A learned 0-d tensor on the CPU is a capture of a GPU's call, others are params.
            learns = self.device.type != "cpu" and torch.is_grad_enabled()
            key = kind.arguments, self.device.type, learns, reached.key
            return reached, key, _kept.get(key, ())
        except (NotKept, TypeError, RecursionError):  # TypeError: a key that does not hash
            return None, None, ()


def traced(mod: Any, reached: Reached | None, kind: ModKind, device: torch.device) -> tuple[Any, Recording]:
    """The expression of a mod, and what its trace recorded."""
    _counts["traces"] += 1

    def of(stand_ins: bool) -> tuple[Any, Recording]:
        recording = Recording(reached, device, kind)
        rebound = NumbersRebound(reached, recording.guards) if reached is not None and stand_ins else None
        called = mod if rebound is None else rebound.of(mod)
        replaced = set() if rebound is None else rebound.replaced
        numbers = [] if reached is None else reached.numbers
        recording.guards.all.update((i, number) for i, number in enumerate(numbers) if i not in replaced)
        return trace_with(recording, called), recording

    if reached is not None and reached.slots:
        try:
            return of(stand_ins=True)
        except Exception:  # perhaps for a number that is none: again, for these numbers alone
            pass
    return of(stand_ins=False)
