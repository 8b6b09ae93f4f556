"""The operators heddle::context_forward and heddle::context_backward of torch.library: what torch.compile sees of
context parallel attention. They communicate; all ranks run them in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._call import Call
from ._context_attention import backward, forward
from ._context_call import ContextCall, check_tensors, chosen_groups, compare, row_bytes, takes_own_first
from ._context_groups import Made
from ._context_plan import plans
from ._context_positions import know_positions
from ._eager_backward import check_differentiable, empty_gradients, in_places, refuse_twice, wanted_of
from ._operands import FIRST, PLACES, SCHEMA, Count, call_of, operands, packed, unpacked, without_lists
from ._operators import Gradient, library, wanted_from
from ._results import empty_lse, empty_out

# The arguments before those of a call. `groups` 0: chosen by size.
CONTEXT = "Tensor plan, int exchange, int groups, bool reduces, bool own_first"
CONTEXT_COUNT = 5
library.define(f"context_forward({CONTEXT}, {SCHEMA}) -> (Tensor, Tensor, Tensor)")  # type: ignore[no-untyped-call]
library.define(  # type: ignore[no-untyped-call]
    f"context_backward(Tensor? d_out, Tensor? d_lse, Tensor out, Tensor lse, Tensor lse_rest, {CONTEXT}, {SCHEMA}, "
    "bool[] wanted, str[] wanted_captures) -> Tensor[]")
GIVEN = 5  # tensors of context_backward before the context


def context_of(
    plan: torch.Tensor, exchange: int, groups: int, reduces: bool, own_first: bool, call: Call
) -> ContextCall:
    made = plans.get(int(plan))
    if made is None:
        raise RuntimeError("the plan of a compiled context_parallel.attention no longer exists: keep it as long as its "
                           "calls")
    lists = made.masks[exchange][1].of_rows(row_bytes(call.key, call.value))
    call.version = lists.version
    mods = call.score, call.weight, sorted(call.params.items())  # rewritten on all ranks alike
    texts = call.score, call.mask, call.weight
    know_positions(call, lists.rows, (made.q_len, made.kv_len))
    context = ContextCall(made, lists, call, 1, False, reduces, mods, takes_own_first(lists, own_first), texts)
    context.groups = groups or chosen_groups(made, lists, call, context.own_first)
    return context


def run_forward(plan: torch.Tensor, exchange: int, groups: int, reduces: bool, own_first: bool, *rest: Any) -> Any:
    context = context_of(plan, exchange, groups, reduces, own_first, call_of(*rest))
    error = None
    try:
        check_tensors(context.plan, context.exchange, *context.call.tensors()[:FIRST])
    except ValueError as caught:
        error = caught
    compare(context.plan, context, error)
    with torch.no_grad():
        made = forward(context)
    return made.out, made.lse, made.lse_rest


def fake_forward(plan: Any, exchange: int, groups: int, reduces: bool, own_first: bool, query: torch.Tensor,
                 key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
    return empty_out(query, value.shape[3]), empty_lse(query), empty_lse(query)


def run_backward(d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor,
                 plan: torch.Tensor, exchange: int, groups: int, reduces: bool, own_first: bool,
                 *rest: Any) -> list[torch.Tensor]:
    context = context_of(plan, exchange, groups, reduces, own_first, call_of(*rest[:-2]))
    with torch.no_grad():
        return backward(context, Made(out, lse, lse_rest, ()), d_out, d_lse, wanted_from(rest))


def fake_backward(d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor,
                  plan: Any, exchange: int, groups: int, reduces: bool, own_first: bool,
                  *rest: Any) -> list[torch.Tensor]:
    call, wanted = without_lists(*rest[:-2]), wanted_from(rest)
    made = empty_gradients(call, wanted)
    of_inputs = [x for x, is_wanted in zip((call.query, call.key, call.value), wanted[:3]) if is_wanted]
    contiguous = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in of_inputs]
    return [*contiguous, *made[len(contiguous):]]


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    context, (query, key, value, *rest) = inputs[:CONTEXT_COUNT], inputs[CONTEXT_COUNT:]
    check_differentiable(without_lists(query, key, value, *rest))
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.context = context[1:]
    ctx.template, tensors = packed(rest)
    ctx.save_for_backward(*output, context[0], query, key, value, *tensors)


def gradients_of_forward(ctx: Any, d_out: Gradient, d_lse: Gradient, _: Gradient = None) -> tuple[Any, ...]:
    """The gradients of all arguments of heddle::context_forward."""
    nothing: list[Any] = [[None] * x if isinstance(x, Count) else [] if x == [] else None for x in ctx.template]
    without = (None,) * CONTEXT_COUNT
    if d_out is None and d_lse is None:
        return *without, None, None, None, *nothing
    out, lse, lse_rest, plan, query, key, value, *tensors = ctx.saved_tensors
    rest = unpacked(ctx.template, tensors)
    call = without_lists(query, key, value, *rest)
    needs = ctx.needs_input_grad[CONTEXT_COUNT:]
    captures, options = (list(needs[FIRST + PLACES[name]] or ()) for name in ("captures", "options"))
    wanted = wanted_of(call, [*needs[:FIRST], *captures, *options])
    made: Sequence[torch.Tensor] = torch.ops.heddle.context_backward(
        d_out, d_lse, out, lse, lse_rest, plan, *ctx.context, query, key, value, *rest, list(wanted[:4]),
        list(wanted.captures))
    placed = in_places(made, call, wanted)
    end = FIRST + len(captures)
    nothing[PLACES["captures"]], nothing[PLACES["options"]] = placed[FIRST:end] or None, placed[end:] or None
    return *without, *placed[:FIRST], *nothing


def traced(
    plan: torch.Tensor, exchange: int, groups: int, reduces: bool, own_first: bool, call: Call
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the operator on tensors that are traced."""
    out, lse, _ = torch.ops.heddle.context_forward(
        plan, exchange, groups, reduces, own_first, call.query, call.key, call.value, *operands(call, 2))
    return out, lse


for _key in ("CPU", "CUDA"):
    library.impl("context_forward", run_forward, _key)  # type: ignore[no-untyped-call]
    library.impl("context_backward", run_backward, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake("heddle::context_forward", fake_forward, lib=library)
torch.library.register_fake("heddle::context_backward", fake_backward, lib=library)
torch.library.register_autograd("heddle::context_forward", gradients_of_forward, setup_context=keep_inputs, lib=library)
torch.library.register_autograd("heddle::context_backward", refuse_twice, lib=library)
