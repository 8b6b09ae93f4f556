"""Context parallel attention on plain tensors, forward and backward: exchange of one group of heads beside the
attention of the one before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import _core
from . import _eager
from ._call import Call
from ._context_call import ContextCall
from ._context_exchange import Moving, send_gradients, send_keys, summed
from ._eager_backward import FLOATING, Wanted, in_places, is_deterministic, refuse_twice, rows, wanted_of
from ._gradients import RefusedTwice
from ._results import empty_lse, empty_out, ordered_out


class Made(NamedTuple):
    """What a forward leaves. `keys`: the buffers of keys and values of each group, if they are kept."""

    out: torch.Tensor
    lse: torch.Tensor
    lse_rest: torch.Tensor
    keys: tuple[torch.Tensor, ...]


def moving_keys(context: ContextCall) -> list[Any]:
    """For each group of heads, a function that starts its exchange."""
    call, ranks = context.call, context.plan.ranks

    def starter(heads: slice) -> Any:
        return lambda: send_keys(ranks, context.exchange, call.key[:, heads], call.value[:, heads])

    return [starter(kv_heads) for _, kv_heads in context.head_groups()]


class OneAhead:
    """The exchanges of all groups in turn. Each is started one group before it is waited for."""

    def __init__(self, starters: list[Any]) -> None:
        self._starters = starters
        self._moving: list[Moving] = []
        self._start()

    def _start(self) -> None:
        if len(self._moving) < len(self._starters):
            self._moving.append(self._starters[len(self._moving)]())

    def arrived(self, group: int) -> torch.Tensor:
        self._start()
        return self._moving[group].arrived()


def forward(context: ContextCall, max_scores: torch.Tensor | None = None) -> Made:
    """The results of this rank's queries. All ranks call it."""
    query, dim = context.call.query, context.call.value.shape[3]
    out = ordered_out(query, dim) if 0 in query.stride() else empty_out(query, dim)
    lse, lse_rest = empty_lse(query), empty_lse(query)
    keys = OneAhead(moving_keys(context))
    kept = []
    for group, (heads, _) in enumerate(context.head_groups()):
        rows_of_keys = keys.arrived(group)
        if query.shape[2]:
            _eager.run(context.of_heads(heads, rows_of_keys, out=out, lse=lse, lse_rest=lse_rest,
                                        max_scores=max_scores))
        if context.keeps_keys:
            kept.append(rows_of_keys)
    return Made(out, lse, lse_rest, tuple(kept))


def summing(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients of several parts are added."""
    return torch.promote_types(dtype if dtype in FLOATING else torch.bfloat16, torch.float32)


class Gradients:
    """Where a backward writes, in the types in which parts are added."""

    def __init__(self, call: Call, wanted: Wanted) -> None:
        self.query = torch.empty_like(call.query, memory_format=torch.contiguous_format) if wanted.query else None
        self.key, self.value = (torch.empty_like(x, memory_format=torch.contiguous_format) if is_wanted else None
                                for x, is_wanted in ((call.key, wanted.key), (call.value, wanted.value)))
        self.sinks = torch.zeros_like(call.options["sinks"]) if wanted.sinks else None
        self.captures = {name: torch.zeros(x.shape, dtype=summing(x.dtype), device=x.device)
                         for name, x in call.captures.items() if name in wanted.captures}

    def listed(self, call: Call) -> list[torch.Tensor]:
        """In the order of Wanted, each in its tensor's type."""
        made = [x for x in (self.query, self.key, self.value, self.sinks) if x is not None]
        for name, x in self.captures.items():
            dtype = call.captures[name].dtype
            made.append(x.to(dtype if dtype in FLOATING else torch.float32))
        return made


def backward(
    context: ContextCall, made: Made, d_out: torch.Tensor | None, d_lse: torch.Tensor | None, wanted: Wanted
) -> list[torch.Tensor]:
    """The wanted gradients, in the order of Wanted. All ranks call it. Those of captures and sinks are this rank's
    part, or with reduces_captures the sum over the ranks."""
    call, ranks = context.call, context.plan.ranks
    dim = call.key.shape[3]
    d_out = rows(torch.zeros_like(made.out) if d_out is None else d_out)
    gradients = Gradients(call, wanted)
    moves = wanted.key or wanted.value
    starters = [lambda kept=kept: Moving(kept, None) for kept in made.keys] if made.keys else moving_keys(context)
    keys, back = OneAhead(starters), []
    for group, (heads, kv_heads) in enumerate(context.head_groups()):
        rows_of_keys = keys.arrived(group)
        d_keys = torch.zeros_like(rows_of_keys, dtype=summing(rows_of_keys.dtype)) if moves else None
        if call.query.shape[2]:
            parts = Made(made.out[:, heads], made.lse[:, heads], made.lse_rest[:, heads], ())
            of_group(context.of_heads(heads, rows_of_keys), parts, d_out[:, heads],
                     None if d_lse is None else d_lse[:, heads], heads, wanted, gradients, d_keys)
        if d_keys is not None:
            back.append((d_keys, kv_heads, send_gradients(ranks, context.exchange, d_keys)))
    for d_keys, kv_heads, moving in back:
        own = d_keys[context.exchange.own]
        total = summed(ranks, context.exchange, own, moving.arrived()).permute(1, 2, 0, 3)
        for target, part in ((gradients.key, total[..., :dim]), (gradients.value, total[..., dim:])):
            if target is not None:
                target[:, kv_heads] = part
    if context.reduces_captures:
        for x in (*([] if gradients.sinks is None else [gradients.sinks]), *gradients.captures.values()):
            dist.all_reduce(x, group=ranks.group)
    return gradients.listed(call)


def of_group(call: Call, made: Made, d_out: torch.Tensor, d_lse: torch.Tensor | None, heads: slice, wanted: Wanted,
             gradients: Gradients, d_keys: torch.Tensor | None) -> None:
    """The gradients of one group of heads, written into those of the call, and of all its rows of keys into d_keys."""
    targets, dim = _core.Targets(), call.query.shape[3]
    if gradients.query is not None:
        targets.q = gradients.query[:, heads]
    if d_keys is not None:
        targets.k, targets.v = d_keys[..., :dim].permute(1, 2, 0, 3), d_keys[..., dim:].permute(1, 2, 0, 3)
    if gradients.sinks is not None:
        targets.sinks = gradients.sinks[heads]
    of_captures = {name: torch.empty_like(x) for name, x in gradients.captures.items()}
    targets.captures = of_captures
    arguments = call.arguments()
    arguments.deterministic = is_deterministic()
    inputs = _core.BackwardInputs(call.query, call.key, call.value, made.out, made.lse, d_out,
                                  None if d_lse is None else rows(d_lse), made.lse_rest)
    _core.attention_backward(inputs, targets, arguments)
    for name, part in of_captures.items():
        gradients.captures[name] += part


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
