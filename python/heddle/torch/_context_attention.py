"""Context parallel attention on plain tensors, forward and backward: exchange of one group of heads beside the
attention of the one before. With own_first the passes are those of _context_own_first.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .. import _core
from . import _context_own_first, _eager
from ._backward_plans import ASKED_ON, layout
from ._context_call import ContextCall
from ._context_exchange import Moving, gradients_return, join_side
from ._context_groups import Ahead, Gradients, Made, columns, group_request, moving_keys, summing
from ._eager_backward import Wanted, in_places, is_deterministic, rows, wanted_of
from ._gradients import RefusedTwice
from ._results import empty_lse, empty_out, ordered_out


def forward(context: ContextCall, max_scores: torch.Tensor | None = None) -> Made:
    """The results of this rank's queries. All ranks call it."""
    if context.own_first:
        return _context_own_first.forward(context, max_scores)
    query, dim = context.call.query, context.call.value.shape[3]
    out = ordered_out(query, dim) if 0 in query.stride() else empty_out(query, dim)
    lse, lse_rest = empty_lse(query), empty_lse(query)
    keys = Ahead(moving_keys(context))
    kept = []
    for heads, _ in context.head_groups():
        rows_of_keys = keys.arrived()[:context.exchange.key_count]
        if query.shape[2]:
            _eager.run(context.of_heads(context.call, heads, *columns(rows_of_keys, query.shape[3]), out=out, lse=lse,
                                        lse_rest=lse_rest, max_scores=max_scores))
        if context.keeps_keys:
            kept.append(rows_of_keys)
    return Made(out, lse, lse_rest, tuple(kept))


def backward(
    context: ContextCall, made: Made, d_out: torch.Tensor | None, d_lse: torch.Tensor | None, wanted: Wanted
) -> list[torch.Tensor]:
    """The wanted gradients, in the order of Wanted. All ranks call it. Those of captures and sinks are this rank's
    part, or with reduces_captures the sum over the ranks."""
    if context.own_first:
        return _context_own_first.backward(context, made, d_out, d_lse, wanted)
    call, ranks = context.call, context.plan.ranks
    d_out = rows(torch.zeros_like(made.out) if d_out is None else d_out)
    gradients = Gradients(call, wanted)
    moves = wanted.key or wanted.value
    starters = [lambda kept=kept: Moving(kept, None) for kept in made.keys] if made.keys else moving_keys(context)
    keys = Ahead(starters)
    on_the_way: list[Any] = []  # gradients of groups before, which come in beside this one's attention

    def come_in() -> None:
        """Each group's next step."""
        for one in list(on_the_way):
            if next(one, one) is one:
                on_the_way.remove(one)

    def returning(d_keys: torch.Tensor, kv_heads: slice) -> Iterator[None]:
        targets = (None if x is None else x[:, kv_heads] for x in (gradients.key, gradients.value))
        return gradients_return(ranks, context.exchange, d_keys, *targets)

    count = context.exchange.key_count
    for heads, kv_heads in context.head_groups():
        rows_of_keys = keys.arrived()[:count]
        d_keys = (rows_of_keys.new_empty(context.exchange.row_count, *rows_of_keys.shape[1:],
                                         dtype=summing(rows_of_keys.dtype)) if moves else None)
        if d_keys is not None and not call.query.shape[2]:
            d_keys.zero_()
        if call.query.shape[2]:
            of_heads = made.of_heads(heads)
            local = context.of_heads(call, heads, *columns(rows_of_keys, call.query.shape[3]))
            gradients.add(group_request(local, of_heads, d_out[:, heads], None if d_lse is None else d_lse[:, heads],
                                        gradients.of_heads(heads, None if d_keys is None else d_keys[:count])))
        come_in()
        if d_keys is not None:
            on_the_way.append(returning(d_keys, kv_heads))
            next(on_the_way[-1])
    while on_the_way:
        come_in()
    join_side(call.query.device)
    return gradients.listed(context)


def prepare(context: ContextCall, max_scores: torch.Tensor | None) -> None:
    """Makes the plans of a call on a GPU, and compiles their kernels: what a planner refuses is refused before anything
    is sent, and no planning waits while an exchange is pending. Plans are kept, so a later call finds them."""
    call = context.call
    if call.query.device.type not in ASKED_ON or not call.query.shape[2]:
        return
    tensors = call.tensors()
    asked = [torch.is_grad_enabled() and x.requires_grad for x in tensors]
    key = (call.score, call.mask, call.weight, tuple(call.captures), tuple(call.params), tuple(call.options),
           tuple(asked), context.groups, context.exchange.key_count, max_scores is None, is_deterministic(),
           context.own_first, context.keeps_keys, *map(layout, tensors))
    if key in _prepared:
        return
    if len(_prepared) >= MOST_PREPARED:
        _prepared.clear()
    wanted = wanted_of(call, asked)
    prepare_passes = _context_own_first.prepare if context.own_first else prepare_groups
    with torch.no_grad():
        prepare_passes(context, max_scores, wanted)
    _prepared.add(key)


MOST_PREPARED = 512
_prepared: set[Any] = set()


def prepare_groups(context: ContextCall, max_scores: torch.Tensor | None, wanted: Wanted) -> None:
    call = context.call
    (heads, kv_heads), *_ = context.head_groups()
    keys, values = call.key[:, kv_heads], call.value[:, kv_heads]
    rows_of_keys = keys.new_empty(context.exchange.key_count, *keys.shape[:2], keys.shape[3] + values.shape[3])
    made = Made(empty_out(call.query, values.shape[3]), empty_lse(call.query), empty_lse(call.query), ())
    part, local = made.of_heads(heads), context.of_heads(call, heads, *columns(rows_of_keys, call.query.shape[3]))
    _core.KeptPlan(local.query, local.key, local.value, part.out, part.lse, local.arguments(),
                   None if max_scores is None else max_scores[:, heads], part.lse_rest)
    if any(wanted):
        moves = wanted.key or wanted.value
        d_keys = torch.empty_like(rows_of_keys, dtype=summing(rows_of_keys.dtype)) if moves else None
        request = group_request(local, part, torch.empty_like(made.out)[:, heads], None,
                                Gradients(call, wanted).of_heads(heads, d_keys))
        _core.BackwardPlan(*request[:3], True)


class ContextAttention(torch.autograd.Function):
    """A call, and its tensors for autograd: gives (out, lse)."""

    @staticmethod
    def forward(ctx: Any, context: ContextCall, max_scores: torch.Tensor | None, *tensors: torch.Tensor) -> Any:
        made = forward(context, max_scores)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*made[:3], *made.keys, *tensors)
        ctx.context = replace(context, call=context.call.without_tensors())
        return made.out, made.lse

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None) -> Any:
        context: ContextCall = ctx.context
        out, lse, lse_rest, *rest = ctx.saved_tensors
        kept, tensors = (rest[:context.groups], rest[context.groups:]) if context.keeps_keys else ([], rest)
        call = context.call.with_tensors(tensors)
        context = replace(context, call=call)
        wanted = wanted_of(call, ctx.needs_input_grad[2:])
        with torch.no_grad():
            made = backward(context, Made(out, lse, lse_rest, tuple(kept)), d_out, d_lse, wanted)
        if torch.is_grad_enabled():  # create_graph
            record: Any = RefusedTwice.apply
            made = record(len(made), *made, *(x for x in (d_out, d_lse, *tensors) if x is not None))
        return None, None, *in_places(made, call, wanted)
