"""flex_attention under torch.compile: a higher-order operator that Dynamo handles as torch's own, so that what a mod
captures becomes an input of the graph. Called, it turns the traced mods into text and calls heddle::forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Interpreter

from .._tracing.numbers import Number
from ._call import Call
from ._operator_rules import traced_forward
from ._private_names import needed
from ._tf32 import allow_tf32_for
from ._tracing.modes import trace_with, without_modes
from ._tracing.recording import MASK, SCORE, ModKind, Recording, Traced

NAME = "heddle_flex_attention"


class Inputs:
    """The inputs that Dynamo lifted out of a mod, in the form of a walk over a function (heddle._tracing.reached)."""

    def __init__(self, lifted: Sequence[Any]) -> None:
        self.arrays = [x for x in lifted if isinstance(x, torch.Tensor)]
        self.numbers = [x for x in lifted if not isinstance(x, torch.Tensor)]
        self.array_names = [f"x{i}" for i in range(len(self.arrays))]
        self.number_names = [f"n{i}" for i in range(len(self.numbers))]


# Functions that Dynamo calls on a number that varies, and the same on a tensor.
NUMBER_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.sym_max: torch.maximum, torch.sym_min: torch.minimum, torch.sym_float: lambda x: x,
    **{getattr(torch, f"_sym_{name}"): getattr(torch, name)
       for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2")},
}


class WithNumbers(Interpreter):
    """Runs a mod's graph. Dynamo lifts a float that varies as a 0-d tensor, and puts `.item()` into the graph.

    `.item()` of a tensor in `numbers` (by id) gives that number, of another one a read of the tensor.
    """

    def __init__(self, mod: GraphModule, recording: Recording, numbers: dict[int, Any]) -> None:
        super().__init__(mod)
        self.recording, self.numbers = recording, numbers

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target != "item" or isinstance(args[0], Traced):
            return super().call_method(target, args, kwargs)
        number = self.numbers.get(id(args[0]))
        return self.recording.wrapped(self.recording.value_of(args[0])) if number is None else number

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in NUMBER_FUNCTIONS and any(type(x) in (Traced, Number) for x in args):
            return NUMBER_FUNCTIONS[target](*(self.tensor(x) for x in args))
        return super().call_function(target, args, kwargs)

    def tensor(self, x: Any) -> torch.Tensor:
        if type(x) is Number:
            return self.recording.wrapped(self.recording.param(x))  # type: ignore[no-any-return]
        return x if isinstance(x, Traced) else torch.tensor(x)


def floats_of(mod: Any, lifted: Sequence[Any]) -> list[Any]:
    """The lifted floats, and the lifted tensors that the graph takes `.item()` of."""
    if not isinstance(mod, GraphModule):
        return []
    places = [node for node in mod.graph.nodes if node.op == "placeholder"]
    taken = {node.args[0] for node in mod.graph.nodes if node.op == "call_method" and node.target == "item"}
    return [x for x, place in zip(lifted, places[len(places) - len(lifted):])
            if place in taken or isinstance(x, (float, torch.SymFloat))]


def value_of(lifted: Any) -> float:
    """Its number now; a graph that is being compiled is guarded by it."""
    number = lifted.item() if isinstance(lifted, torch.Tensor) else lifted
    return float(number) if isinstance(number, torch.SymFloat) else int(number) if isinstance(
        number, torch.SymInt) else number


def at_hand(lifted: Any, device: torch.device) -> Any:
    """A 0-d tensor on the CPU goes to the device of the call: its content is not known in a trace."""
    is_number = isinstance(lifted, torch.Tensor) and lifted.dim() == 0
    return lifted.to(device) if is_number and lifted.device.type == "cpu" and device.type != "cpu" else lifted


def add(call: Call, mod: Callable[..., Any], lifted: Sequence[Any], kind: ModKind) -> Any:
    """The mod's expression; its captures and params go to the call."""
    lifted = [at_hand(x, call.query.device) for x in lifted]
    floats = floats_of(mod, lifted)
    try:
        return traced_into(call, mod, lifted, kind, {} if floats else None)
    except Exception:
        if not floats:
            raise
    # Perhaps for a float whose value Python needs: again, with a graph for these values alone.
    values = {id(x): value_of(x) for x in floats}
    return traced_into(call, mod, lifted, kind, values)


def traced_into(
    call: Call, mod: Any, lifted: Sequence[Any], kind: ModKind, numbers: dict[int, float] | None
) -> Any:
    recording = Recording(Inputs(lifted), call.query.device, kind)
    known = numbers or {}
    arguments = [x if isinstance(x, torch.Tensor) else known.get(id(x), recording.stand_in(x)) for x in lifted]
    run = mod if numbers is None else WithNumbers(mod, recording, numbers).run
    with without_modes():
        expr = trace_with(recording, lambda *own: run(*own, *arguments))
    call.captures.update(recording.tensors())
    call.params.update(recording.values())
    return expr


def traced_call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, mask_mod: Any, scale: float | None,
    options: dict[str, Any], score_lifted: Sequence[Any], mask_lifted: Sequence[Any],
) -> Call:
    """The Call of an operator's arguments, with the mods that Dynamo traced as expressions."""
    max_q_len, max_kv_len = options.get("longest", (None, None))
    call = Call(query, key, value, scale, max_q_len, max_kv_len, allow_tf32=allow_tf32_for(query), with_lse=options["with_lse"],
                clamps=True, score=options["score"], weight=options["weight"], captures=dict(options["captures"]),
                params=dict(options["params"]), options=dict(options["tensors"]))
    if options["with_score"]:
        call.score = add(call, score_mod, score_lifted, SCORE)
    if options["with_mask"]:
        call.mask = add(call, mask_mod, mask_lifted, MASK)
    return call


class FlexAttention(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__(NAME)  # type: ignore[no-untyped-call]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any, block_mask: tuple[Any, ...],
        scale: float | None, options: dict[str, Any], score_lifted: Sequence[Any] = (), mask_lifted: Sequence[Any] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        call = traced_call(query, key, value, score_mod, block_mask[-1], scale, options, score_lifted, mask_lifted)
        sizes, lists = block_mask[:4], [x for x in block_mask[4:-1] if x is not None]
        out, lse = traced_forward(call, lists, sizes if lists else ())
        return out, query.new_empty((0,)) if lse is None else lse


flex_attention = FlexAttention()


def register_with_dynamo(name: str) -> None:
    """Dynamo finds the handler of a higher-order operator by its name."""
    table: dict[str, Any] = needed("torch._dynamo.variables.higher_order_ops", "_hop_name_to_variable_class")
    table[name] = table["flex_attention"]


register_with_dynamo(NAME)
