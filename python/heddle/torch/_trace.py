"""Torch functions to expressions: a mod is called once with symbolic scalars, and each aten operation builds expressions.

Tensors that the mod reads become captures wherever it finds them. Numbers become params (_numbers.py). The expression is
kept for later calls of the same code over the same kinds of tensors.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .. import _core
from .._reached import NotKept, Reached
from .._trace import dtype_name
from . import _values as values
from ._aten import OPERATIONS, kind_of
from ._numbers import Guards, Number, Recipe, becomes_param, computed
from ._rebind import Rebound
from ._values import Unsupported, Value

SCORE = ("score", "b", "h", "q_idx", "kv_idx")
MASK = SCORE[1:]
MOST_KEPT = 512
MOST_LITERALS = 16
DTYPES = {"f32": torch.float32, "i32": torch.int32, "bool": torch.bool}
OWN_FILES = (torch.__path__[0], __file__.rpartition("torch")[0])
SHAPE_GETTERS = (torch.Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__len__,
                 torch.Tensor.nelement, torch.Tensor.stride, torch.Tensor.is_contiguous)

_counts = {"traces": 0, "kept": 0}


def counts() -> dict[str, int]:
    """How many mods were traced since the program began, and how many expressions are kept."""
    return {**_counts, "kept": sum(len(variants) for variants in _kept.values())}


class Traced(torch.Tensor):
    """A symbolic tensor inside a mod."""

    _value: Value

    @staticmethod
    def __new__(cls, value: Value, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> "Traced":
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)  # type: ignore[attr-defined]
        made._value = value
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("a value of a mod is used outside of its trace")

    def __repr__(self, **_: Any) -> str:
        try:
            return f"Traced({self._value.expr})"
        except Unsupported:
            return f"Traced(shape={list(self._value.shape)})"


class CaptureValue(Value):
    """A tensor of the user's, of which some leading axes may be indexed already. Whoever asks for its shape makes the
    expression hold for that shape alone."""

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
        if len(index) == self.rank:
            return Value.scalar(self.at(index))
        return CaptureValue(self.recording, self.tensor, self.capture, self.prefix + index)


class Recording:
    """One trace: what it captured and took for granted."""

    def __init__(self, reached: Any, device: torch.device, prefix: str) -> None:
        self.guards = Guards()
        self.reached = reached
        self.device = device
        self.prefix = prefix
        self.is_kept = reached is not None
        self.captures: dict[str, torch.Tensor] = {}
        self.params: dict[Recipe, str] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._positions = {id(array): i for i, array in enumerate(reached.arrays)} if reached else {}

    def shape_matters(self, tensor: torch.Tensor) -> None:
        position = self._positions.get(id(tensor))
        if position is not None:
            self.shapes[position] = tuple(tensor.shape)

    def _free(self, wanted: str) -> str:
        wanted = self.prefix + "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted).strip("_")
        if not wanted or wanted[0].isdigit() or wanted in RESERVED:
            wanted = f"x{wanted}"
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Of a tensor that no operation of the mod made."""
        if isinstance(tensor, Traced):
            return tensor._value
        position = self._positions.get(id(tensor))
        if position is None:
            self.is_kept = False
        if tensor.dim() == 0 and tensor.device.type == "cpu" and self.device.type != "cpu":
            if position is None:
                return Value.scalar(values.literal(tensor.item()))
            return self.param(Number(tensor.item(), ("item", position), self.guards))
        name = self._names.get(id(tensor))
        if name is None:
            wanted = self.reached.array_names[position] if self.reached and position is not None else "tensor"
            name = self._names[id(tensor)] = self._free(wanted)
            self.captures[name] = tensor
        capture = _core.Capture(name, dtype_name(tensor), tensor.dim())
        if tensor.dim() == 0:
            return Value.scalar(capture[()])
        return CaptureValue(self, tensor, capture, ())

    def constant(self, tensor: torch.Tensor) -> Value:
        """Of torch.tensor(...) inside the mod: its content is the code's."""
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
        if not becomes_param(value):
            return Value.scalar(values.literal(number.concrete()))
        name = self.params.get(number.recipe)
        if name is None:
            recipe = number.recipe
            wanted = self.reached.number_names[recipe] if isinstance(recipe, int) and self.reached else "number"
            name = self.params[recipe] = self._free(wanted)
        kind = "bool" if isinstance(value, bool) else "f32" if isinstance(value, (float, torch.SymFloat)) else "i32"
        return Value.scalar(_core.param(name, kind))

    def stand_in(self, x: Any) -> Any:
        """A number that was found by no walk, as one that is recorded."""
        numbers = self.reached.numbers if self.reached is not None else []
        position = next((i for i, one in enumerate(numbers) if one is x), None)
        return x if position is None else Number(x, position, self.guards)

    def values(self) -> dict[str, Any]:
        """The params' values of this trace."""
        reached = self.reached
        return {name: computed(recipe, reached.numbers if reached else [], reached.arrays if reached else [])
                for recipe, name in self.params.items()}

    def operand(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.value_of(x)
        return self.param(x) if isinstance(x, Number) else x

    def wrapped(self, value: Any, dtype: torch.dtype | None = None, wide: bool = False) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self.wrapped(one, dtype, wide) for one in value)
        if not isinstance(value, Value):
            return value
        kind = value.kind
        if dtype is None or kind_of(dtype) != kind:
            dtype = torch.int64 if wide and kind == "i32" else DTYPES[kind]
        if isinstance(value, CaptureValue):
            return Traced(value, dtype, self.device, tuple(value.tensor.shape[len(value.prefix):]))
        return Traced(value, dtype, self.device, value.shape)


# Words of the text form, which no capture may be called.
RESERVED = {"score", "b", "h", "q_idx", "kv_idx", "q_token", "kv_token", "q_len", "kv_len", "q_start", "kv_start", "and",
            "or", "not", "if", "else", "inf", "nan", "True", "False"} | {name for name in dir(_core)} | {
    "at", "min", "max", "pow", "f32", "i32", "clip"}


def chosen(literals: list[Any], position: Any) -> Any:
    if isinstance(position, int):
        return literals[position]
    text = str(position)
    if text.lstrip("-").isdigit():
        return literals[int(text)]
    result = literals[-1]
    for i in reversed(range(len(literals) - 1)):
        result = _core.where(position <= i, *values.promoted(literals[i], result))
    return result


def users_line() -> str:
    """Where the mod is: the innermost frame that is neither torch's nor heddle's."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_FILES):
        frame = frame.f_back
    if frame is None:
        return ""
    import linecache

    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f" ({frame.f_code.co_filename}:{frame.f_lineno}{': ' + line if line else ''})"


class Functions(TorchFunctionMode):
    """Sees torch's functions as the mod calls them: indexing, and numbers among the operands."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self.recording
        if func is torch.Tensor.__getitem__:
            return recording.wrapped(getitem(recording, args[0], args[1]), args[0].dtype)
        if func is torch.Tensor.__setitem__:
            raise NotImplementedError(f"a mod writes into a tensor{users_line()}; write it with torch.where")
        if any(func == getter for getter in SHAPE_GETTERS) and not isinstance(args[0], Traced):
            recording.shape_matters(args[0])
        if any(isinstance(one, Number) for one in args) or any(isinstance(one, Number) for one in kwargs.values()):
            args, kwargs = tree_map(self.number, (args, kwargs))
        return func(*args, **kwargs)

    def number(self, x: Any) -> Any:
        if not isinstance(x, Number):
            return x
        return self.recording.wrapped(self.recording.param(x))


def getitem(recording: Recording, tensor: torch.Tensor, index: Any) -> Value:
    value = recording.value_of(tensor)
    entries = list(index) if isinstance(index, tuple) else [index]
    entries = [recording.operand(x) if isinstance(x, (torch.Tensor, Number)) else x for x in entries]
    scalars = [scalar_index(x) for x in entries]
    if isinstance(value, CaptureValue) and None not in scalars and len(scalars) <= value.rank:
        return value.indexed(tuple(scalars))
    if Ellipsis in [x for x in entries if not isinstance(x, Value)]:
        at = next(i for i, x in enumerate(entries) if x is Ellipsis)
        taken = sum(x is not None for x in entries) - 1
        entries[at:at + 1] = [slice(None)] * (len(value.shape) - taken)
    gathers: list[Value | None] = []
    axis = 0
    for x in entries:
        if x is None:
            value, axis = values.unsqueezed(value, axis), axis + 1
            gathers.append(None)
        elif isinstance(x, slice):
            ends = [int(end) if end is not None else None for end in (x.start, x.stop, x.step)]
            value, axis = values.sliced(value, axis, ends[0], ends[1], ends[2] or 1), axis + 1
            gathers.append(None)
        elif isinstance(x, bool):
            raise Unsupported("an index that is a bool")
        elif isinstance(x, int):
            value = values.selected(value, axis, x)
        elif isinstance(x, (list, tuple)):
            literals = [values.literal(int(one)) for one in x]
            gathers.append(Value((len(literals),), lambda at, literals=literals: chosen(literals, at[0])))
            axis += 1
        else:
            gathers.append(x)
            axis += 1
    return values.gathered(value, gathers) if any(x is not None for x in gathers) else value


def scalar_index(x: Any) -> Any:
    """An expression or an int that picks one element of an axis; None for anything else."""
    if isinstance(x, Value) and not isinstance(x, CaptureValue) and x.shape == () and x.kind == "i32":
        return x.expr
    return x if type(x) is int and x >= 0 else None


class Operations(TorchDispatchMode):
    """Sees the aten operations that are left."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self.recording
        space, _, name = func._schema.name.partition("::")
        if name in ("_local_scalar_dense", "item"):
            return self.python_value(func, args[0])
        if name in ("lift_fresh", "lift_fresh_copy") and not isinstance(args[0], Traced):
            return recording.wrapped(recording.constant(args[0]), args[0].dtype)
        operation = OPERATIONS.get(name)
        in_place = operation is None and name.endswith("_") and not name.startswith("_")
        if in_place:
            operation = OPERATIONS.get(name[:-1])
        if operation is None or space not in ("aten", "approx", "prims"):
            return self.decomposed(func, args, kwargs)
        if in_place and not isinstance(args[0], Traced):
            raise NotImplementedError(f"a mod writes into a tensor ({name}{users_line()}); compute a new one")
        try:
            operands, named = tree_map(recording.operand, (args, kwargs))
            value = operation(*operands, **named)
        except Unsupported as error:
            raise NotImplementedError(f"{error}{users_line()}") from None
        if in_place:
            args[0]._value = values.expanded(cast_like(value, args[0]._value), args[0]._value.shape)
            return args[0]
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        wide = any(one.dtype == torch.int64 for one in tensors)
        return recording.wrapped(value, kwargs.get("dtype"), wide)

    def python_value(self, func: Any, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, Traced):
            raise TypeError(
                f"a mod's Python code needs the value of {tensor._value.expr}, which differs from score to score"
                f"{users_line()}: write torch.where(condition, x, y), and & | ~ between conditions instead of if, and, "
                "or, not and chained comparisons"
            )
        self.recording.is_kept = False
        return func(tensor)

    def decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        from torch._decomp import decomposition_table

        decomposition = decomposition_table.get(func)
        if decomposition is None:
            raise NotImplementedError(
                f"{func._schema.name.removeprefix('aten::')} has no expression in heddle{users_line()}"
            )
        with self:
            return decomposition(*args, **kwargs)


def cast_like(value: Value, target: Value) -> Value:
    return values.elementwise(values.AS[target.kind], value)


class Kept:
    """A mod's expression and where its captures and params come from."""

    __slots__ = ("expr", "captures", "params", "guards", "shapes", "constants")

    def __init__(self, expr: Any, recording: Recording) -> None:
        positions = recording._positions
        self.expr = expr
        self.captures = [(name, positions[id(x)]) for name, x in recording.captures.items() if id(x) in positions]
        self.constants = {name: x for name, x in recording.captures.items() if id(x) not in positions}
        self.params = [(name, recipe) for recipe, name in recording.params.items()]
        self.guards = recording.guards
        self.shapes = list(recording.shapes.items())

    def serves(self, reached: Reached) -> bool:
        arrays = reached.arrays
        return all(tuple(arrays[i].shape) == shape for i, shape in self.shapes) and self.guards.hold(
            reached.numbers, arrays
        )

    def bind(self, reached: Reached, captures: dict[str, Any], params: dict[str, Any]) -> None:
        for name, position in self.captures:
            captures[name] = reached.arrays[position]
        captures.update(self.constants)
        for name, recipe in self.params:
            params[name] = computed(recipe, reached.numbers, reached.arrays)


_kept: dict[Any, list[Kept]] = {}
_lock = threading.Lock()


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
        return self._of(mod, MASK, "mask_", "bool")

    def _of(self, mod: Any, arguments: tuple[str, ...], prefix: str, kind: str) -> Any:
        try:
            reached: Reached | None = Reached(mod, params=True)
            key = arguments, self.device.type, reached.key  # type: ignore[union-attr]
            variants = _kept.get(key, ())
        except (NotKept, TypeError):  # TypeError: a key that does not hash
            reached, key, variants = None, None, ()
        for kept in variants:
            if kept.serves(reached):  # type: ignore[arg-type]
                kept.bind(reached, self.captures, self.params)  # type: ignore[arg-type]
                return kept.expr
        expr, recording = traced(mod, reached, arguments, self.device, prefix, kind)
        made = Kept(expr, recording)
        if recording.is_kept and key is not None:
            with _lock:
                while len(_kept) >= MOST_KEPT:
                    _kept.pop(next(iter(_kept)))
                _kept.setdefault(key, []).insert(0, made)
        if reached is None:
            self.captures.update(recording.captures)
        else:
            made.bind(reached, self.captures, self.params)
        return expr


def traced(
    mod: Any, reached: Reached | None, arguments: tuple[str, ...], device: torch.device, prefix: str, kind: str
) -> tuple[Any, Recording]:
    _counts["traces"] += 1
    if reached is not None and reached.slots:
        try:
            recording = Recording(reached, device, prefix)
            return trace_with(recording, Rebound(reached, recording.guards).of(mod), arguments, kind), recording
        except Exception:  # perhaps for a number that is none: again, for these numbers alone
            pass
    recording = Recording(reached, device, prefix)
    if reached is not None:
        recording.guards.all.update(enumerate(reached.numbers))
    return trace_with(recording, mod, arguments, kind), recording


def trace_with(recording: Recording, mod: Any, arguments: tuple[str, ...], kind: str) -> Any:
    leaves = [
        Traced(Value.scalar(_core.leaf(name)), torch.float32 if name == "score" else torch.int32, recording.device, ())
        for name in arguments
    ]
    with torch.no_grad(), Functions(recording), Operations(recording):
        try:
            result = mod(*leaves)
        except Unsupported as error:
            raise NotImplementedError(f"{error}{users_line()}") from None
        return checked(recording, result, kind)


def checked(recording: Recording, result: Any, kind: str) -> Any:
    if isinstance(result, Number):
        result = recording.param(result)
    elif isinstance(result, torch.Tensor):
        result = recording.value_of(result)
    elif isinstance(result, (bool, int, float)):
        result = Value.scalar(values.literal(result))
    else:
        raise TypeError(f"a mod returned {type(result).__name__}; a tensor is accepted")
    if result.count != 1:
        raise TypeError(f"a mod returned a tensor of shape {list(result.shape)}; a scalar is accepted")
    expr = result.expr
    if kind == "bool" and expr.type != "bool":
        raise TypeError(f"a mask_mod returned {'floating-point numbers' if expr.type == 'f32' else 'integers'}; bool is "
                        "accepted")
    return values.as_f32(expr) if kind == "f32" else expr
