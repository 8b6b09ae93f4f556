"""The record of one trace: the symbolic tensors that stand for the user's, and the names of its captures and params."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ... import _core
from ..._dtypes import dtype_name
from ..._mod import MASK_ARGUMENTS, RESERVED, SCORE_ARGUMENTS
from ..._tracing.kinds import is_number
from ..._tracing.negative_indices import from_the_front
from ..._tracing.numbers import Guards, Number, Recipe, computed
from .._private_names import without_dispatch
from . import values
from .operations import check_elements, kind_of
from .values import Unsupported, Value

READS_SCORE = re.compile(r"\bscore\b")
DTYPES = {"f32": torch.float32, "i32": torch.int32, "bool": torch.bool}
MOST_LITERALS = 16
MASK_PREFIX = "mask_"  # for all that a mask reads: in one call, names of score and mask differ
# A tensor that the mod detaches has a name with this prefix, and no gradient by that name.
DETACHED_PREFIX = "detached_"
# A param, True, of a mod that detaches a value of the score, which expressions cannot say. None reads it.
HAS_DETACHED = "has_detached"


class ModKind(NamedTuple):
    """A kind of mod: its arguments, the prefix of its captures' names, and the type of its expression."""

    arguments: tuple[str, ...]
    prefix: str
    type: str


SCORE = ModKind(SCORE_ARGUMENTS, "", "f32")
MASK = ModKind(MASK_ARGUMENTS, MASK_PREFIX, "bool")
def becomes_param(value: Any) -> bool:
    return is_number(value) or isinstance(value, (bool, torch.SymInt))


def computed_again(x: torch.SymInt | torch.SymFloat) -> Any:
    """x from the symbols that it depends on: a graph that is being traced did not see how the mod's Python computed it."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    class Again(PythonReferenceAnalysis):
        @staticmethod
        def int_truediv(a: Any, b: Any) -> Any:  # the parent's gives an expression
            return a / b

    node: Any = x.node
    symbols = {symbol: node.shape_env.create_symintnode(symbol, hint=None) for symbol in node.expr.free_symbols}
    return sympy_interp(Again, symbols, node.expr)


class Memory:
    """The memory that views of one tensor share: how often a mod wrote into it."""

    __slots__ = ("writes", "is_users")

    def __init__(self, is_users: bool = False) -> None:
        self.writes = 0
        self.is_users = is_users

    @staticmethod
    def of(tensor: torch.Tensor) -> "Memory":
        return tensor._memory if isinstance(tensor, Traced) else Memory(is_users=True)


class Traced(torch.Tensor):
    """A symbolic tensor inside a mod. A write changes `_value`; other views of the memory cannot be read after it."""

    _value: Value
    _content: Any = None  # a function of nothing that gives what it holds (contents.py), if that is known
    _memory: Memory
    _known_writes: int
    _is_number = False  # whether it stands for a number of Python's, which widens no type of torch's
    _is_detached = False  # whether it was computed under a torch.no_grad() of the mod's

    @staticmethod
    def __new__(
        cls, value: Value, dtype: torch.dtype, device: torch.device, shape: Sequence[int], memory: Memory | None = None,
    ) -> "Traced":
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made._value = value
        made._memory = Memory() if memory is None else memory
        made._known_writes = made._memory.writes
        return made

    def read(self) -> Value:
        if self._known_writes != self._memory.writes:
            raise Unsupported("a tensor is read after a write into another one that shares its memory: use clone()")
        return self._value

    def write(self, value: Value) -> None:
        self._value, self._content = value, None
        self._memory.writes += 1
        self._known_writes = self._memory.writes

    def become_view(self, value: Value, func: Any, args: Any, kwargs: Any) -> "Traced":
        """Another shape of the same memory, by squeeze_(), t_() and their like."""
        with without_dispatch():
            func(*args, **kwargs)  # torch's C++ has to see the shape, too
        self._value, self._content = value, None
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares a static one
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        raise RuntimeError("a value of a mod is used outside of its trace")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no names
        try:
            return f"Traced({self._value.expr})"
        except Unsupported:
            return f"Traced(shape={list(self._value.shape)})"


class CaptureValue(Value):
    """A tensor of the user's, some of whose leading axes are indexed already (`prefix`).

    Its rank is free to read. Reading its shape makes the expression serve later calls with that shape only.
    """

    __slots__ = ("recording", "tensor", "prefix", "capture")

    def __init__(self, recording: "Recording", tensor: torch.Tensor, capture: Any, prefix: tuple[Any, ...]) -> None:
        self.recording, self.tensor, self.capture, self.prefix = recording, tensor, capture, prefix
        self._elements = lambda index: self.capture[prefix + tuple(index)]
        self._scalar = None
        self._kind = None

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        if self.rank:
            self.recording.shape_matters(self.tensor)
        return tuple(self.tensor.shape[len(self.prefix):])

    @property
    def rank(self) -> int:
        return self.tensor.dim() - len(self.prefix)

    def at(self, index: values.Index) -> Any:
        return self.capture[self.prefix + tuple(index)]

    def indexed(self, index: tuple[Any, ...]) -> Value:
        index = tuple([self._from_the_front(one, axis) for axis, one in enumerate(index, len(self.prefix))])
        if len(index) == self.rank:
            return Value.scalar(self.at(index))
        return CaptureValue(self.recording, self.tensor, self.capture, self.prefix + index)

    def _from_the_front(self, index: Any, axis: int) -> Any:
        return from_the_front(index, lambda: self._fixed_extent(axis), lambda: self.recording.extent(self.tensor, axis))

    def _fixed_extent(self, axis: int) -> int:
        self.recording.shape_matters(self.tensor)
        return int(self.tensor.shape[axis])


class Recording:
    """One trace: its captures and params, and the shapes and numbers that its expression depends on."""

    def __init__(self, reached: Any, device: torch.device, kind: ModKind) -> None:
        self.guards = Guards()
        self.reached = reached
        self.device = device
        self.kind = kind
        self.is_kept = reached is not None
        self.with_gradients = torch.is_grad_enabled()
        self.is_silent = False  # while a function runs that the mod called with gradients on
        self.turns_off = False  # while the mod's code has turned gradients off itself
        self.warns = False  # of an autograd.Function, once
        self.captures: dict[str, torch.Tensor] = {}
        self.params: dict[Recipe, str] = {}
        self.symbols: dict[str, torch.SymInt] = {}  # params that torch.export keeps open: lengths, by their names
        self.real_symbols: dict[str, torch.SymFloat] = {}  # what Python's code computed of them
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._names: dict[tuple[int, bool], str] = {}  # by the tensor's id, and whether it is detached
        self._taken: set[str] = set()
        self._positions = {id(array): i for i, array in enumerate(reached.arrays)} if reached else {}

    def shape_matters(self, tensor: torch.Tensor) -> None:
        position = self._positions.get(id(tensor))
        if position is not None:
            self.shapes[position] = tuple(tensor.shape)

    def _free(self, wanted: str, detached: bool = False) -> str:
        prefix = self.kind.prefix
        first = prefix + DETACHED_PREFIX if detached else prefix
        wanted = first + "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted).strip("_")
        is_masks = not prefix and wanted.startswith(MASK_PREFIX.rstrip("_"))
        is_detached = not detached and wanted.startswith(DETACHED_PREFIX.rstrip("_"))
        if not wanted or wanted[0].isdigit() or wanted in RESERVED or wanted == HAS_DETACHED or is_masks or is_detached:
            wanted = f"x{wanted}"
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name

    def value_of(self, tensor: torch.Tensor, detached: bool = False) -> Value:
        """The symbolic value of a tensor: a mod's own, or a capture. `detached`: one without a gradient."""
        if isinstance(tensor, Traced):
            return tensor.read()
        position = self._positions.get(id(tensor))
        if position is None:
            self.is_kept = False
        is_learned = self.with_gradients and tensor.requires_grad
        if tensor.dim() == 0 and tensor.device.type == "cpu" and self.device.type != "cpu" and not is_learned:
            if position is None:
                return Value.scalar(values.literal(tensor.item()))
            return self.param(Number(tensor.item(), ("item", position), self.guards))
        name = self._names.get((id(tensor), detached))
        if name is None:
            wanted = self.reached.array_names[position] if self.reached and position is not None else "tensor"
            check_elements(wanted, tensor)
            name = self._names[id(tensor), detached] = self._free(wanted, detached)
            self.captures[name] = tensor
        capture = _core.Capture(name, dtype_name(tensor), tensor.dim())
        if tensor.dim() == 0:
            return Value.scalar(capture[()])
        return CaptureValue(self, tensor, capture, ())

    def constant(self, tensor: torch.Tensor) -> Value:
        """The value of torch.tensor(...) in the mod's code. Literals if it is small: its content never changes."""
        plain = tensor.detach()
        if plain.numel() <= MOST_LITERALS:
            literals = [values.literal(x) for x in plain.flatten().tolist()]
            flat = Value((len(literals),), lambda index: chosen(literals, index[0]))
            return values.viewed(flat, tuple(plain.shape)) if plain.dim() != 1 else flat
        kept, value = self.is_kept, self.value_of(plain)
        self.is_kept = kept
        return value

    def param(self, number: Number) -> Value:
        value = number.value
        if isinstance(value, torch.SymFloat):
            return self.symbol(value)
        if not becomes_param(value):
            return Value.scalar(values.literal(number.concrete()))
        name = self.params.get(number.recipe)
        if name is None:
            recipe = number.recipe
            wanted = self.reached.number_names[recipe] if isinstance(recipe, int) and self.reached else "number"
            name = self.params[recipe] = self._free(wanted)
        kind = "bool" if isinstance(value, bool) else "f32" if isinstance(value, float) else "i32"
        return Value.scalar(_core.param(name, kind))

    def extent(self, tensor: torch.Tensor, axis: int) -> Any:
        """The extent of an axis, as a param where later calls may have another."""
        extent, position = tensor.shape[axis], self._positions.get(id(tensor))
        if isinstance(extent, torch.SymInt):
            return self.symbol(extent).expr
        if position is None:
            return values.literal(extent)
        return self.param(Number(extent, ("extent", position, axis), self.guards)).expr

    def symbol(self, x: torch.SymInt | torch.SymFloat) -> Value:
        """The value of a symbolic number: a param, or for a real one, for which operators have no argument, a capture."""
        is_real = isinstance(x, torch.SymFloat)
        known: dict[str, Any] = self.real_symbols if is_real else self.symbols
        name = next((name for name, one in known.items() if one is x or str(one) == str(x)), None)
        if name is None:
            name = self._free("number" if is_real else "length")
            known[name] = x
            self.is_kept = False  # it belongs to the graph that is being traced
        return Value.scalar(_core.Capture(name, "f64", 0)[()] if is_real else _core.param(name, "i32"))

    def detached(self, x: torch.Tensor) -> Any:
        """x.detach() as the mod sees it."""
        if not isinstance(x, Traced):
            return self.wrapped(self.value_of(x, True), x.dtype)
        value = self.without_gradient(x.read()) if x.dtype.is_floating_point else x.read()
        return self.wrapped(value, x.dtype, memory=x._memory)

    def refuse_gradients(self) -> None:
        self.params[None, True, "True"] = HAS_DETACHED

    def without_gradient(self, value: Value) -> Value:
        if isinstance(value, CaptureValue):
            whole = self.value_of(value.tensor, True)
            return CaptureValue(self, value.tensor, whole.capture, value.prefix) if isinstance(whole, CaptureValue) else whole
        if not value.shape:
            return Value.scalar(self.expr_without_gradient(value.expr))
        return Value(value.shape, lambda index: self.expr_without_gradient(value.at(index)))

    def expr_without_gradient(self, expr: Any) -> Any:
        """The expression with its captures under their detached names. Expressions cannot say it of the score."""
        text, captures, params = expr.__reduce__()[1]
        if READS_SCORE.search(text):
            self.refuse_gradients()
            return expr
        names = {name: key for key, name in self._names.items()}
        renamed = {}
        for name in captures:
            tensor = self.captures.get(name)
            if tensor is not None and tensor.dtype.is_floating_point and not names[name][1]:
                self.value_of(tensor, True)
                renamed[name] = self._names[id(tensor), True]
        if not renamed:
            return expr
        text = re.sub(r"\b(" + "|".join(renamed) + r")\b", lambda found: renamed[found[1]], text)
        return _core.parse(text, {renamed.get(name, name): of for name, of in captures.items()}, params)

    def has_gradients(self) -> bool:
        """Whether what the mod calls has gradients: not under a torch.no_grad() of its own."""
        turned_off = self.turns_off or torch.is_inference_mode_enabled()
        return self.is_silent or not self.with_gradients or torch.is_grad_enabled() or not turned_off

    def is_in_function(self) -> bool:
        """Whether the mod's code is the forward of an autograd.Function, in which torch turns gradients off unseen."""
        return self.with_gradients and not self.is_silent and not self.turns_off and not torch.is_grad_enabled()

    def constant_for_gradients(self, x: Any) -> Any:
        """An operand of what the mod computes under a torch.no_grad() of its own."""
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            return x
        if not isinstance(x, Traced):
            return self.detached(x) if x.requires_grad else x
        return x if x._is_detached or not self.is_learned(x) else self.detached(x)

    def is_learned(self, x: Traced) -> bool:
        """Whether a gradient may come from this value: of the score, or of a capture that requires one."""
        value = x.read()
        if isinstance(value, CaptureValue):
            return value.tensor.requires_grad
        if value.count != 1:
            return True
        detached = {name for (_, is_detached), name in self._names.items() if is_detached}
        return READS_SCORE.search(str(value.expr)) is not None or any(
            self.captures[name].requires_grad for name in value.expr.captures if name in self.captures and name not in detached)

    def stand_in(self, x: Any) -> Any:
        """A recorded number in place of one that Dynamo lifted out of the mod."""
        numbers = self.reached.numbers if self.reached is not None else []
        position = next((i for i, one in enumerate(numbers) if one is x), None)
        return x if position is None else Number(x, position, self.guards)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The captures of this trace. Called under the modes of the caller, which see how symbols become tensors."""
        reals = {name: torch.full((), computed_again(x), dtype=torch.float64, device=self.device)
                 for name, x in self.real_symbols.items()}
        return {**self.captures, **reals}

    def values(self) -> dict[str, Any]:
        """The params' values of this trace."""
        reached = self.reached
        found = {name: computed(recipe, reached.numbers if reached else [], reached.arrays if reached else [])
                 for recipe, name in self.params.items()}
        lengths = {name: x if x.node.expr.is_symbol else computed_again(x) for name, x in self.symbols.items()}
        return {**found, **lengths}

    def operand(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.value_of(x)
        if type(x) in (torch.SymInt, torch.SymFloat):
            return self.symbol(x)
        return self.param(x) if isinstance(x, Number) else x

    def wrapped(
        self, value: Any, dtype: torch.dtype | None = None, wide: bool = False, memory: Memory | None = None
    ) -> Any:
        """A value as the mod sees it. `memory` is that of the tensor that it is a view of."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrapped(one, dtype, wide, memory) for one in value)
        if not isinstance(value, Value):
            return value
        kind = value.kind
        if dtype is None or kind_of(dtype) != kind:
            dtype = torch.int64 if wide and kind == "i32" else DTYPES[kind]
        # A capture's `shape` would make the expression depend on it.
        shape = value.tensor.shape[len(value.prefix):] if isinstance(value, CaptureValue) else value.shape
        return Traced(value, dtype, self.device, tuple(shape), memory)


def chosen(literals: list[Any], position: Any) -> Any:
    """literals[position], also for a position that is an expression."""
    if isinstance(position, int):
        return literals[position]
    text = str(position)
    if text.lstrip("-").isdigit():
        return literals[int(text)]
    result = literals[-1]
    for i in reversed(range(len(literals) - 1)):
        result = _core.where(position <= i, *values.promoted(literals[i], result))
    return result
