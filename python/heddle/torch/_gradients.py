"""Gradients of eager calls: heddle's backward as an autograd.Function.

It keeps query, key, value, out, lse, lse_rest and what the mods read, all by save_for_backward, which notices later writes. The
scores are computed again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .. import _core
from ._recording import DETACHED_PREFIX, HAS_DETACHED
from ._run import Call, attend, empty_lse, is_plain, ordered_out, suited

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Wanted(NamedTuple):
    """The gradients that a backward computes, and in this order returns."""

    query: bool
    key: bool
    value: bool
    sinks: bool
    captures: tuple[str, ...]


def wanted_of(
    call: Call, inputs: Sequence[bool], captures: Iterable[tuple[str, bool]], tensors: Iterable[tuple[str, bool]]
) -> Wanted:
    """From what autograd asks for. `call` has its captures. What only a mask reads has no gradient."""
    read: set[str] = set()
    asked = [name for name, is_asked in captures if is_asked and not name.startswith(DETACHED_PREFIX)]
    if asked:
        for mod in (call.score, call.weight):
            if mod is not None:
                read.update(call.expression(mod).captures)
    sinks = any(is_asked for name, is_asked in tensors if name == "sinks")
    return Wanted(inputs[0], inputs[1], inputs[2], sinks, tuple([name for name in asked if name in read]))


def empty_gradient(x: torch.Tensor) -> torch.Tensor:
    """For the gradient of rows: dense, its axes in the order of x's strides, the last one contiguous."""
    dtype = x.dtype if x.dtype in FLOATING else torch.bfloat16
    if x.dtype == dtype and (x.stride(3) == 1 or x.shape[3] == 1) and 0 not in x.stride():
        return torch.empty_like(x)
    return ordered_out(x, x.shape[3], dtype)


def empty_gradients(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
                    wanted: Wanted) -> list[torch.Tensor]:
    """Where a backward writes, in the order of Wanted."""
    made = [empty_gradient(x) for x, is_wanted in zip((query, key, value), wanted[:3]) if is_wanted]
    if wanted.sinks:
        made.append(torch.empty_like(call.tensors["sinks"], memory_format=torch.contiguous_format))
    for name in wanted.captures:
        x = call.captures[name]
        made.append(torch.empty(x.shape, dtype=x.dtype if x.dtype in FLOATING else torch.float32, device=x.device))
    return made


def rows(x: torch.Tensor) -> torch.Tensor:
    """Gradients may come expanded; the library takes rows that are contiguous."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def is_deterministic() -> bool:
    """Whether the caller wants an error rather than gradients whose bits differ from run to run."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def backward_request(
    d_out: torch.Tensor | None, d_lse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor,
    lse_rest: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
    wanted: Wanted,
) -> tuple[Any, Any, Any, list[torch.Tensor]]:
    """Inputs, targets and arguments of a backward, and the targets in the order of Wanted."""
    made = empty_gradients(query, key, value, call, wanted)
    targets, written = _core.Targets(), iter(made)
    for name, is_wanted in zip(("q", "k", "v", "sinks"), wanted):
        if is_wanted:
            setattr(targets, name, next(written))
    targets.captures = dict(zip(wanted.captures, written))
    arguments = call.arguments(query.device)
    arguments.deterministic = is_deterministic()
    d_out = rows(torch.zeros_like(out) if d_out is None else d_out)
    inputs = _core.BackwardInputs(query, key, value, out, lse, d_out, None if d_lse is None else rows(d_lse),
                                  lse_rest)
    return inputs, targets, arguments, made


def backward(
    d_out: torch.Tensor | None, d_lse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor,
    lse_rest: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
    wanted: Wanted,
) -> list[torch.Tensor]:
    """The wanted gradients, in the order of Wanted. Waits for nothing. No lse_rest: 0."""
    if not any(wanted):
        return []
    inputs, targets, arguments, made = backward_request(d_out, d_lse, out, lse, lse_rest, query, key, value, call,
                                                           wanted)
    if query.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        run_in_graph(inputs, targets, arguments, query.device)
    else:
        _core.attention_backward(inputs, targets, arguments)
    return made


_in_graphs: list[Any] = []  # plans that graphs run; the graphs do not say when they end


def run_in_graph(inputs: Any, targets: Any, arguments: Any, device: torch.device) -> None:
    """Runs in a stream that a CUDA graph captures: the plan of an earlier call, with a workspace of torch's."""
    plan = _core.BackwardPlan(inputs, targets, arguments, True)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device) if plan.workspace_bytes else None
    plan.run(inputs, targets, workspace, arguments.stream, arguments)
    _in_graphs.append(plan)


def check_differentiable(call: Call) -> None:
    """Raises NotImplementedError for a call whose gradients do not exist."""
    if "page_table" in call.tensors:
        raise NotImplementedError("keys and values in pages have no backward, and an input requires a gradient: call "
                                  "under torch.no_grad()")
    if HAS_DETACHED in call.params:
        raise NotImplementedError("a mod detaches a value (detach()), which heddle's gradients would pass through: "
                                  "detach the tensor outside of the mod")
    for name, x in call.tensors.items():
        if name != "sinks" and x.requires_grad:
            raise NotImplementedError(f"{name} has no gradient, and requires one: detach it")


def attend_with_gradients(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, out: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As _run.attend(), recorded by autograd. `out` is new memory of the caller's."""
    check_differentiable(call)
    if out is not None and out._is_view():
        raise RuntimeError("out= is given, which autograd cannot record, and an input requires a gradient: call "
                           "without out, or under torch.no_grad()")
    query, key, value = suited(query, key, value) or (query, key, value)
    call.captures = {name: x if x.device == query.device else x.to(query.device) for name, x in call.captures.items()}
    from ._backward_plans import check_backward_exists

    check_backward_exists(query, key, value, call)
    record: Any = Attention.apply
    made = record(call, (out,), query, key, value, *call.captures.values(), *call.tensors.values())
    return made if call.with_lse else (made, None)


class Attention(torch.autograd.Function):
    """attend() of (call, (out,), query, key, value, captures..., options...): out, or (out, lse)."""

    @staticmethod
    def forward(ctx: Any, call: Call, outs: Any, *tensors: torch.Tensor) -> Any:
        query, key, value = tensors[:3]
        call = copy.copy(call)
        call.lse_rest = empty_lse(query)
        out, lse = attend(query, key, value, call, outs[0], empty_lse(query))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, lse, call.lse_rest, *tensors)
        ctx.captures, ctx.options = tuple(call.captures), tuple(call.tensors)
        ctx.call = call
        call.captures, call.tensors, call.max_scores, call.lse_rest = {}, {}, None, None  # saved, not held
        return (out, lse) if call.with_lse else out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> Any:
        if d_out is None and d_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        out, lse, lse_rest, *tensors = ctx.saved_tensors
        call, needs = copy.copy(ctx.call), ctx.needs_input_grad[2:]
        first = 3 + len(ctx.captures)
        call.captures = dict(zip(ctx.captures, tensors[3:first]))
        call.tensors = dict(zip(ctx.options, tensors[first:]))
        wanted = wanted_of(call, needs[:3], zip(ctx.captures, needs[3:first]), zip(ctx.options, needs[first:]))
        with torch.no_grad():
            query, key, value = tensors[:3]
            made = computed(d_out, d_lse, out, lse, lse_rest, query, key, value, call, wanted)
        if torch.is_grad_enabled():  # create_graph
            record: Any = RefusedTwice.apply
            made = record(len(made), *made, *(x for x in (d_out, d_lse, *tensors) if x is not None))
        return None, None, *in_places(made, call, wanted)


def computed(
    d_out: torch.Tensor | None, d_lse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor,
    lse_rest: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
    wanted: Wanted,
) -> Sequence[torch.Tensor]:
    """backward(), or the operator where a transform or a mode is active."""
    if any(x is not None and torch._C._functorch.is_legacy_batchedtensor(x) for x in (d_out, d_lse)):
        raise NotImplementedError("heddle.torch has no backward of batched gradients (is_grads_batched=True, "
                                  "vectorize=True): use torch.func.vjp and torch.func.vmap")
    if is_plain(*(x for x in (d_out, d_lse, out, query, key, value) if x is not None)):
        return backward(d_out, d_lse, out, lse, lse_rest, query, key, value, call, wanted)
    from ._library_backward import traced_backward

    return traced_backward(d_out, d_lse, out, lse, lse_rest, query, key, value, call, wanted)


def in_places(made: Sequence[torch.Tensor], call: Call, wanted: Wanted) -> list[torch.Tensor | None]:
    """The gradients where autograd expects them: of query, key and value, of all captures, of all options."""
    given = iter(made)
    of_inputs = [next(given) if is_wanted else None for is_wanted in wanted[:3]]
    of_sinks = next(given) if wanted.sinks else None
    of_captures = dict(zip(wanted.captures, given))
    return [*of_inputs, *(of_captures.get(name) for name in call.captures),
            *(of_sinks if name == "sinks" else None for name in call.tensors)]


class RefusedTwice(torch.autograd.Function):
    """Gradients that cannot be differentiated again. Gets how many they are, they, and what they were computed from."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([x.view_as(x) for x in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        refuse_twice()


def refuse_twice(*_: Any) -> Any:
    raise NotImplementedError("heddle.torch has no double backward: a gradient of attention is differentiated again. "
                              "Call torch's own attention there")

