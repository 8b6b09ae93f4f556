"""Groups of heads of context parallel attention: their exchanges in turn, what a forward leaves and a backward writes, and
the request for the backward of one group."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import _core
from ._call import Call
from ._context_call import ContextCall
from ._context_exchange import Moving, send_keys
from ._eager_backward import FLOATING, Wanted, is_deterministic, rows


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
        return lambda: send_keys(ranks, context.exchange, call.key[:, heads], call.value[:, heads], context.own_first)

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

    def of_heads(self, heads: slice, d_keys: torch.Tensor | None) -> "Targets":
        """What the backward of some heads writes."""
        return Targets(None if self.query is None else self.query[:, heads], d_keys,
                       None if self.sinks is None else self.sinks[heads], self.captures)

    def add(self, request: tuple[Any, Any, Any, dict[str, torch.Tensor]]) -> None:
        """Runs a request, and adds its part of the gradients of captures."""
        _core.attention_backward(*request[:3])
        for name, part in request[3].items():
            self.captures[name] += part

    def listed(self, context: ContextCall) -> list[torch.Tensor]:
        """In the order of Wanted, each in its tensor's type. Those of sinks and captures are summed over the ranks if
        the call asks for it."""
        call = context.call
        if context.reduces_captures:
            for x in (*([] if self.sinks is None else [self.sinks]), *self.captures.values()):
                dist.all_reduce(x, group=context.plan.ranks.group)
        made = [x for x in (self.query, self.key, self.value, self.sinks) if x is not None]
        for name, x in self.captures.items():
            dtype = call.captures[name].dtype
            made.append(x.to(dtype if dtype in FLOATING else torch.float32))
        return made


class Targets(NamedTuple):
    """What the backward of some heads writes. `keys`: gradients of its rows of keys and values, side by side. Of
    captures it makes tensors of its own, which have the shapes and types of these."""

    query: torch.Tensor | None
    keys: torch.Tensor | None
    sinks: torch.Tensor | None
    captures: dict[str, torch.Tensor]


def columns(rows: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [B, heads, rows, D] and values of a buffer [rows, B, heads, D + Dv]."""
    both = rows.permute(1, 2, 0, 3)
    return both[..., :dim], both[..., dim:]


def group_request(
    call: Call, made: Made, d_out: torch.Tensor, d_lse: torch.Tensor | None, wanted: Targets, partial: bool = False
) -> tuple[Any, Any, Any, dict[str, torch.Tensor]]:
    """Inputs, targets and arguments of the backward of one group of heads, and its part of the gradients of captures.
    `partial`: `made` is of more keys than the call has."""
    targets = _core.Targets()
    if wanted.query is not None:
        targets.q = wanted.query
    if wanted.keys is not None:
        targets.k, targets.v = columns(wanted.keys, call.query.shape[3])
    if wanted.sinks is not None:
        targets.sinks = wanted.sinks
    of_captures = {name: torch.empty_like(x) for name, x in wanted.captures.items()}
    targets.captures = of_captures
    arguments = call.arguments()
    arguments.deterministic = is_deterministic()
    arguments.partial_keys = partial
    inputs = _core.BackwardInputs(call.query, call.key, call.value, made.out, made.lse, d_out,
                                  None if d_lse is None else rows(d_lse), made.lse_rest)
    return inputs, targets, arguments, of_captures
