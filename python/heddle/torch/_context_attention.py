"""Context parallel attention on plain tensors, forward and backward: exchange of one group of heads beside the
attention of the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import _core
from . import _eager
from ._backward_plans import ASKED_ON, layout
from ._call import Call
from ._context_call import ContextCall
from ._context_exchange import Moving, gradients_return, join_side, send_keys
from ._eager_backward import FLOATING, Wanted, in_places, is_deterministic, refuse_twice, rows, wanted_of
from ._gradients import RefusedTwice
from ._results import empty_lse, empty_out, ordered_out


class Made(NamedTuple):
    """What a forward leaves. `keys`: the buffers of keys and values of each group, if they are kept."""

    out: torch.Tensor
    lse: torch.Tensor
    lse_rest: torch.Tensor
    keys: tuple[torch.Tensor, ...]

    def of_heads(self, heads: slice) -> "Made":
        return Made(self.out[:, heads], self.lse[:, heads], self.lse_rest[:, heads], ())


def moving_keys(context: ContextCall) -> list[Any]:
    """For each group of heads, a function that starts its exchange."""
    call, ranks = context.call, context.plan.ranks

    def starter(heads: slice) -> Any:
        return lambda: send_keys(ranks, context.exchange, call.key[:, heads], call.value[:, heads])

    return [starter(kv_heads) for _, kv_heads in context.head_groups()]


# An exchange's copies stand in the stream of the attention. One that is started before an attention, but behind the one
# before it, finds all SMs taken, and runs when that attention ends. So two are on their way beside the group at hand.
GROUPS_AHEAD = 2


class Ahead:
    """The exchanges of all groups in turn. Each is started GROUPS_AHEAD groups before it is waited for, and forgotten
    then, so that one more buffer than that is alive at a time."""

    def __init__(self, starters: list[Any]) -> None:
        self._starters = iter(starters)
        self._moving: deque[Moving] = deque()
        for _ in range(GROUPS_AHEAD):
            self._start()

    def _start(self) -> None:
        starter = next(self._starters, None)
        if starter is not None:
            self._moving.append(starter())

    def arrived(self) -> torch.Tensor:
        """The buffer of the next group."""
        self._start()
        return self._moving.popleft().arrived()


def forward(context: ContextCall, max_scores: torch.Tensor | None = None) -> Made:
    """The results of this rank's queries. All ranks call it."""
    query, dim = context.call.query, context.call.value.shape[3]
    out = ordered_out(query, dim) if 0 in query.stride() else empty_out(query, dim)
    lse, lse_rest = empty_lse(query), empty_lse(query)
    keys = Ahead(moving_keys(context))
    kept = []
    for heads, _ in context.head_groups():
        rows_of_keys = keys.arrived()[:context.exchange.key_count]
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
            request = group_request(context.of_heads(heads, rows_of_keys), of_heads, d_out[:, heads],
                                    None if d_lse is None else d_lse[:, heads], heads, gradients,
                                    None if d_keys is None else d_keys[:count])
            _core.attention_backward(*request[:3])
            for name, part in request[3].items():
                gradients.captures[name] += part
        come_in()
        if d_keys is not None:
            on_the_way.append(returning(d_keys, kv_heads))
            next(on_the_way[-1])
    while on_the_way:
        come_in()
    join_side(call.query.device)
    if context.reduces_captures:
        for x in (*([] if gradients.sinks is None else [gradients.sinks]), *gradients.captures.values()):
            dist.all_reduce(x, group=ranks.group)
    return gradients.listed(call)


def group_request(
    call: Call, made: Made, d_out: torch.Tensor, d_lse: torch.Tensor | None, heads: slice, gradients: Gradients,
    d_keys: torch.Tensor | None,
) -> tuple[Any, Any, Any, dict[str, torch.Tensor]]:
    """Inputs, targets and arguments of the backward of one group of heads, which writes into `gradients`, and into
    d_keys for all its rows of keys; and its part of the gradients of captures."""
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
    return inputs, targets, arguments, of_captures


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
           *map(layout, tensors))
    if key in _prepared:
        return
    if len(_prepared) >= MOST_PREPARED:
        _prepared.clear()
    with torch.no_grad():
        (heads, kv_heads), *_ = context.head_groups()
        keys, values = call.key[:, kv_heads], call.value[:, kv_heads]
        rows_of_keys = keys.new_empty(context.exchange.key_count, *keys.shape[:2], keys.shape[3] + values.shape[3])
        made = Made(empty_out(call.query, values.shape[3]), empty_lse(call.query), empty_lse(call.query), ())
        part, local = made.of_heads(heads), context.of_heads(heads, rows_of_keys)
        _core.KeptPlan(local.query, local.key, local.value, part.out, part.lse, local.arguments(),
                       None if max_scores is None else max_scores[:, heads], part.lse_rest)
        wanted = wanted_of(call, asked)
        if any(wanted):
            moves = wanted.key or wanted.value
            d_keys = torch.empty_like(rows_of_keys, dtype=summing(rows_of_keys.dtype)) if moves else None
            request = group_request(local, part, torch.empty_like(made.out)[:, heads], None, heads,
                                    Gradients(call, wanted), d_keys)
            _core.BackwardPlan(*request[:3], True)
    _prepared.add(key)


MOST_PREPARED = 512
_prepared: set[Any] = set()


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
