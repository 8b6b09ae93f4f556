"""The backward of a call on plain tensors, straight to the library. The scores are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from .. import _core
from ._call import Call
from ._results import ordered_out
from ._tracing.recording import DETACHED_PREFIX, HAS_DETACHED

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Results(NamedTuple):
    """The results of a forward, and the loss's gradients with respect to them. None counts as 0."""

    out: torch.Tensor
    lse: torch.Tensor
    lse_rest: torch.Tensor | None
    d_out: torch.Tensor | None
    d_lse: torch.Tensor | None


class Wanted(NamedTuple):
    """The gradients that a backward computes, and in this order returns."""

    query: bool
    key: bool
    value: bool
    sinks: bool
    captures: tuple[str, ...]


def wanted_of(call: Call, asked: Sequence[bool]) -> Wanted:
    """From what autograd asks for, in the order of call.tensors(). What only a mask reads has no gradient."""
    captures = [name for name, is_asked in zip(call.captures, asked[3:])
                if is_asked and not name.startswith(DETACHED_PREFIX)]
    read: set[str] = set()
    if captures:
        for mod in (call.score, call.weight):
            if mod is not None:
                read.update(call.expression(mod).captures)
    of_options = dict(zip(call.options, asked[3 + len(call.captures):]))
    return Wanted(asked[0], asked[1], asked[2], of_options.get("sinks", False),
                  tuple([name for name in captures if name in read]))


def in_places(made: Sequence[torch.Tensor | None], call: Call, wanted: Wanted) -> list[torch.Tensor | None]:
    """The gradients in the order of call.tensors(), where autograd expects them."""
    given = iter(made)
    of_inputs = [next(given) if is_wanted else None for is_wanted in wanted[:3]]
    of_sinks = next(given) if wanted.sinks else None
    of_captures = dict(zip(wanted.captures, given))
    return [*of_inputs, *(of_captures.get(name) for name in call.captures),
            *(of_sinks if name == "sinks" else None for name in call.options)]


def empty_gradient(x: torch.Tensor) -> torch.Tensor:
    """For the gradient of rows: dense, its axes in the order of x's strides, the last one contiguous. In f32 if it is
    one of those that sums_of_sequences() adds up."""
    dtype = x.dtype if x.dtype in FLOATING else torch.bfloat16
    if x.shape[0] > 1 and x.stride(0) == 0 and x.device.type != "cpu":
        return torch.empty(x.shape, dtype=torch.promote_types(dtype, torch.float32), device=x.device)
    if x.dtype == dtype and (x.stride(3) == 1 or x.shape[3] == 1) and 0 not in x.stride():
        return torch.empty_like(x)
    return ordered_out(x, x.shape[3], dtype)


def empty_gradients(call: Call, wanted: Wanted) -> list[torch.Tensor]:
    """Where a backward writes, in the order of Wanted."""
    inputs = call.query, call.key, call.value
    made = [empty_gradient(x) for x, is_wanted in zip(inputs, wanted[:3]) if is_wanted]
    if wanted.sinks:
        made.append(torch.empty_like(call.options["sinks"], memory_format=torch.contiguous_format))
    for name in wanted.captures:
        x = call.captures[name]
        made.append(torch.empty(x.shape, dtype=x.dtype if x.dtype in FLOATING else torch.float32, device=x.device))
    return made


def of_sequences(call: Call, wanted: Wanted) -> Call:
    """`call`, in which each sequence has keys and values of its own, where one serves all and its gradient is wanted.
    Hopper's kernels compute the gradient of each sequence, and with few keys other GPUs are busier so; a CPU's sum."""
    batch = call.query.shape[0]
    if call.query.device.type == "cpu" or batch == 1:
        return call
    shared = {name: x.expand(batch, *x.shape[1:])
              for name, x, is_wanted in (("key", call.key, wanted.key), ("value", call.value, wanted.value))
              if is_wanted and x.shape[0] == 1}
    return call.changed(**shared) if shared else call


def written_gradients(call: Call, each: Call, wanted: Wanted) -> list[torch.Tensor]:
    """What the kernels of `each`, which is of_sequences(call), write, in the order of Wanted. In f32 where
    summed_gradients() adds them up."""
    made = empty_gradients(call, wanted)
    inputs, of_each = (call.query, call.key, call.value), (each.query, each.key, each.value)
    pairs = [(x, own) for x, own, is_wanted in zip(inputs, of_each, wanted[:3]) if is_wanted]
    for i, (x, own) in enumerate(pairs):
        if own is not x:
            made[i] = torch.empty(own.shape, dtype=torch.promote_types(made[i].dtype, torch.float32), device=x.device)
    return made


def summed_gradients(written: Sequence[torch.Tensor], call: Call, wanted: Wanted) -> list[torch.Tensor]:
    """The gradients of `call`, in the order of Wanted, from those that written_gradients() has."""
    inputs = [x for x, is_wanted in zip((call.query, call.key, call.value), wanted[:3]) if is_wanted]
    sums = [x if x.shape[0] == of.shape[0] else empty_gradient(of).copy_(x.sum(0, keepdim=True))
            for x, of in zip(written, inputs)]
    return [*sums, *written[len(inputs):]]


def rows(x: torch.Tensor) -> torch.Tensor:
    """Gradients may come expanded, and saved tensors with other strides from hooks; the library takes contiguous rows."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def is_deterministic() -> bool:
    """Whether the caller wants an error rather than gradients whose bits differ from run to run."""
    return torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def backward_request(
    call: Call, results: Results, wanted: Wanted
) -> tuple[_core.BackwardInputs, _core.Targets, _core.Arguments, list[torch.Tensor]]:
    """Inputs, targets and arguments of a backward, and the targets for summed_gradients()."""
    each = of_sequences(call, wanted)
    written = written_gradients(call, each, wanted)
    targets, rest = _core.Targets(), iter(written)
    for name, is_wanted in zip(("q", "k", "v", "sinks"), wanted):
        if is_wanted:
            setattr(targets, name, next(rest))
    targets.captures = dict(zip(wanted.captures, rest))
    arguments = call.arguments()
    arguments.deterministic = is_deterministic()
    arguments.batch_invariant = False  # a promise of the forward
    out, lse, lse_rest, d_out, d_lse = results
    d_out = rows(torch.zeros_like(out) if d_out is None else d_out)
    inputs = _core.BackwardInputs(rows(each.query), rows(each.key), rows(each.value), rows(out), rows(lse), d_out,
                                  None if d_lse is None else rows(d_lse), None if lse_rest is None else rows(lse_rest))
    return inputs, targets, arguments, written


def backward(call: Call, results: Results, wanted: Wanted) -> list[torch.Tensor]:
    """The wanted gradients, in the order of Wanted. Waits for nothing."""
    if not any(wanted):
        return []
    inputs, targets, arguments, written = backward_request(call, results, wanted)
    if call.query.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        run_in_graph(inputs, targets, arguments, call.query.device)
    else:
        _core.attention_backward(inputs, targets, arguments)
    return summed_gradients(written, call, wanted)


_in_graphs: list[Any] = []  # plans that graphs run; the graphs do not say when they end


def run_in_graph(
    inputs: _core.BackwardInputs, targets: _core.Targets, arguments: _core.Arguments, device: torch.device
) -> None:
    """Runs in a stream that a CUDA graph captures: the plan of an earlier call, with a workspace of torch's."""
    plan = _core.BackwardPlan(inputs, targets, arguments, True)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device) if plan.workspace_bytes else None
    plan.run(inputs, targets, workspace, arguments.stream, arguments)
    _in_graphs.append(plan)


def check_differentiable(call: Call) -> None:
    """Raises NotImplementedError for a call whose gradients do not exist."""
    if "page_table" in call.options:
        raise NotImplementedError("keys and values in pages have no backward, and an input requires a gradient: call "
                                  "under torch.no_grad()")
    if HAS_DETACHED in call.params:
        raise NotImplementedError("a mod detaches a value (detach(), torch.no_grad()), which heddle's gradients would pass through: "
                                  "compute it outside of the mod")
    for name, x in call.options.items():
        if name != "sinks" and x.requires_grad:
            raise NotImplementedError(f"{name} has no gradient, and requires one: detach it")


def refuse_twice(*_: Any) -> NoReturn:
    raise NotImplementedError("heddle.torch has no double backward: a gradient of attention is differentiated again. "
                              "Call torch's own attention there")
