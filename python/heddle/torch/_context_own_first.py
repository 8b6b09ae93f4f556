"""Context parallel attention that attends to a rank's own keys while those of others are on their way.

Forward: own keys, then the received ones group by group; both results are merged. Backward: own keys for the first half
of the heads, while received ones come once more; received ones group by group; own keys for the other half, while
gradients of received ones go back to their owners. So with one group nothing waits for an exchange, if an attention
takes longer than that.

Results of parts are f32 (f64 for f64 inputs), as is dQ of each part; sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .. import _core
from . import _eager
from ._call import Call
from ._context_call import ContextCall
from ._context_exchange import Moving, Returning, beside, by_heads, follow, join_side, move
from ._context_groups import Ahead, Gradients, Made, Targets, columns, group_request, moving_keys, summing
from ._eager_backward import Wanted, rows
from ._private_names import stream_of
from ._results import empty_lse, empty_out, ordered_out


class State(NamedTuple):
    """Results of queries [B, Hq, rows, Dv] over a part of the keys."""

    out: torch.Tensor
    lse: torch.Tensor
    lse_rest: torch.Tensor
    max_scores: torch.Tensor | None


class Parts:
    """A rank's two calls: over own keys and over received ones. Either may have none."""

    def __init__(self, context: ContextCall) -> None:
        exchange, query = context.exchange, context.call.query
        self.own_count, self.received_count = exchange.own_rows.count, exchange.received_rows.count
        self.heads, self.kv_heads = slice(0, query.shape[1]), slice(0, context.call.key.shape[1])
        self.has_queries = query.shape[2] > 0
        # A sink is one key of the first part.
        self.takes_own = self.own_count > 0 or self.received_count == 0
        self.takes_received = self.received_count > 0
        self.merges = self.takes_own and self.takes_received
        self.own = context.over(exchange.own_rows)
        self.received = context.over(exchange.received_rows)

    def without_sinks(self, call: Call) -> Call:
        return call.changed(options={name: x for name, x in call.options.items() if name != "sinks"})

    def states(self, context: ContextCall, whole: State) -> list[State]:
        """Where the parts' results go: in memory of their own if there are two, else to those of the whole."""
        if not self.merges:
            return [whole, whole]
        query, dim = context.call.query, context.call.value.shape[3]
        return [State(ordered_out(query, dim, summing(query.dtype)), empty_lse(query), empty_lse(query),
                      None if whole.max_scores is None else empty_lse(query)) for _ in range(2)]

    def own_forward(self, context: ContextCall, state: State) -> Call:
        call = context.call
        return context.of_heads(self.own, self.heads, call.key, call.value, **state._asdict())

    def received_forward(self, context: ContextCall, heads: slice, rows_of_keys: torch.Tensor, state: State) -> Call:
        call = self.without_sinks(self.received) if self.merges else self.received
        return context.of_heads(call, heads, *columns(rows_of_keys, call.query.shape[3]), **state._asdict())


def forward(context: ContextCall, max_scores: torch.Tensor | None = None) -> Made:
    """The results of this rank's queries. All ranks call it."""
    query, dim = context.call.query, context.call.value.shape[3]
    out = ordered_out(query, dim) if 0 in query.stride() else empty_out(query, dim)
    whole, parts = State(out, empty_lse(query), empty_lse(query), max_scores), Parts(context)
    own, received = parts.states(context, whole)
    keys = Ahead(moving_keys(context))
    if parts.has_queries and parts.takes_own:
        _eager.run(parts.own_forward(context, own))
    kept = []
    for heads, _ in context.head_groups():
        rows_of_keys = keys.arrived()
        if parts.has_queries and parts.takes_received:
            _eager.run(parts.received_forward(context, heads, rows_of_keys, received))
        if context.keeps_keys:
            kept.append(rows_of_keys)
    if parts.has_queries and parts.merges:
        merge(own, received, whole)
    return Made(out, whole.lse, whole.lse_rest, tuple(kept))


def merge(own: State, received: State, whole: State) -> None:
    """The results over all keys."""
    device = whole.out.device
    exact = [state.lse.double() + state.lse_rest for state in (own, received)]
    lse = torch.empty_like(exact[0])
    stream = 0 if device.type == "cpu" else stream_of(device.index)
    _core.merge_states([own.out, received.out], exact, whole.out, lse, True, stream)
    whole.lse.copy_(lse)
    whole.lse_rest.copy_((lse - whole.lse).nan_to_num(0.0))  # of -inf nothing is left
    if whole.max_scores is not None and own.max_scores is not None and received.max_scores is not None:
        torch.maximum(own.max_scores, received.max_scores, out=whole.max_scores)


class Halves(NamedTuple):
    """The heads of queries and of keys whose own keys come before the received ones, and those that come behind."""

    before: tuple[slice, slice]
    behind: tuple[slice, slice]


def halves(context: ContextCall, keys_are_here: bool) -> Halves:
    """Keys that are here need not be waited for, so all heads come behind them, beside the return of gradients."""
    heads, kv_heads = context.call.query.shape[1], context.call.key.shape[1]
    kv_border = 0 if keys_are_here else kv_heads // 2
    border = kv_border * (heads // kv_heads)
    return Halves((slice(0, border), slice(0, kv_border)), (slice(border, heads), slice(kv_border, kv_heads)))


class Backward:
    """A backward's targets, and the requests that write them."""

    def __init__(self, context: ContextCall, parts: Parts, wanted: Wanted) -> None:
        call = context.call
        self.context, self.parts, self.gradients = context, parts, Gradients(call, wanted)
        self.moves = wanted.key or wanted.value
        wide = summing(call.key.dtype)
        d_query = self.gradients.query
        two = d_query is not None and parts.merges
        self.d_queries = [torch.empty_like(d_query, dtype=summing(call.query.dtype)) if d_query is not None and two
                          else d_query for _ in range(2)]
        self.d_own = call.key.new_empty(
            parts.own_count, *call.key.shape[:2], call.key.shape[3] + call.value.shape[3], dtype=wide
        ) if self.moves else None

    def request(self, call: Call, heads: slice, key: torch.Tensor, value: torch.Tensor, results: Any,
                d_query: torch.Tensor | None, d_keys: torch.Tensor | None) -> Any:
        """Of some heads over a part of the keys. `results`: made, d_out and d_lse."""
        made, d_out, d_lse = results
        local = self.context.of_heads(self.parts.without_sinks(call), heads, key, value)
        wanted = Targets(None if d_query is None else d_query[:, heads], d_keys, None, self.gradients.captures)
        return group_request(local, made.of_heads(heads), d_out[:, heads], None if d_lse is None else d_lse[:, heads],
                             wanted, True)

    def of_own(self, heads: slice, kv_heads: slice, results: Any) -> Any:
        call = self.context.call
        return self.request(self.parts.own, heads, call.key[:, kv_heads], call.value[:, kv_heads], results,
                            self.d_queries[0], None if self.d_own is None else self.d_own[:, :, kv_heads])

    def of_received(self, heads: slice, rows_of_keys: torch.Tensor, d_keys: torch.Tensor | None, results: Any) -> Any:
        call = self.parts.received
        return self.request(call, heads, *columns(rows_of_keys, call.query.shape[3]), results, self.d_queries[1],
                            d_keys)

    def of_sinks(self, results: Any) -> Any:
        """Their gradients depend on o, lse and dO alone: whichever part is asked."""
        made, d_out, d_lse = results
        call, parts = self.context.call, self.parts
        count = min(1, call.key.shape[2])
        some = [x[:, :, :count] for x in (call.key, call.value)]
        plain = parts.own.changed(score=None, mask=None, weight=None, captures={}, params={}, options={
            "sinks": call.options["sinks"]})
        local = self.context.of_heads(plain, parts.heads, *some)
        return group_request(local, made, d_out, d_lse, Targets(None, None, self.gradients.sinks, {}))

    def new_d_keys(self, rows_of_keys: torch.Tensor) -> torch.Tensor | None:
        return torch.empty_like(rows_of_keys, dtype=summing(rows_of_keys.dtype)) if self.moves else None

    def finish_keys(self, returning: list[Returning], kv_heads: slice) -> None:
        """Adds gradients that have come to those of some heads of own keys, and stores the sums: on a GPU in the side
        stream, behind all that the current one has now."""
        d_own, gradients = self.d_own, self.gradients
        if d_own is None or kv_heads.start == kv_heads.stop:
            return
        follow(d_own.device)
        targets = [x for x in (gradients.key, gradients.value) if x is not None]
        with beside(d_own.device, d_own, *(one.came for one in returning), *targets):
            for one in returning:
                one.add_to(d_own, kv_heads)
            dim = self.context.call.key.shape[3]
            for target, of in ((gradients.key, slice(0, dim)), (gradients.value, slice(dim, None))):
                if target is not None:
                    move(by_heads(d_own)[:, kv_heads, :, of], target[:, kv_heads])

    def add_queries(self) -> None:
        d_query, (own, received) = self.gradients.query, self.d_queries
        if d_query is not None and own is not None and received is not None and self.parts.merges:
            torch.add(own, received, out=d_query)


def backward(
    context: ContextCall, made: Made, d_out: torch.Tensor | None, d_lse: torch.Tensor | None, wanted: Wanted
) -> list[torch.Tensor]:
    """The wanted gradients, in the order of Wanted. All ranks call it. Those of captures and sinks are this rank's
    part, or with reduces_captures the sum over the ranks."""
    parts = Parts(context)
    at = Backward(context, parts, wanted)
    results = made, rows(torch.zeros_like(made.out) if d_out is None else d_out), d_lse
    starters = [lambda kept=kept: Moving(kept, None) for kept in made.keys] if made.keys else moving_keys(context)
    keys = Ahead(starters)
    before, behind = halves(context, bool(made.keys))

    def own_keys(heads: slice, kv_heads: slice) -> None:
        if heads.start == heads.stop:
            return
        if parts.has_queries and parts.takes_own:
            at.gradients.add(at.of_own(heads, kv_heads, results))
        elif at.d_own is not None:
            at.d_own[:, :, kv_heads] = 0

    own_keys(*before)
    returning = []
    for heads, kv_heads in context.head_groups():
        rows_of_keys = keys.arrived()
        d_keys = at.new_d_keys(rows_of_keys)
        if parts.has_queries and parts.takes_received:
            at.gradients.add(at.of_received(heads, rows_of_keys, d_keys, results))
        elif d_keys is not None:
            d_keys.zero_()
        if d_keys is not None:
            returning.append(Returning(context.plan.ranks, context.exchange, d_keys, kv_heads))
    on_gpu = context.call.query.device.type == "cuda"
    if on_gpu:  # in the side stream; on the CPU this thread would wait for the exchange
        at.finish_keys(returning, before[1])
    own_keys(*behind)
    if not on_gpu:
        at.finish_keys(returning, before[1])
    at.finish_keys(returning, behind[1])
    if at.gradients.sinks is not None and parts.has_queries:
        at.gradients.add(at.of_sinks(results))
    if parts.has_queries:
        at.add_queries()
    join_side(context.call.query.device)
    return at.gradients.listed(context)


def prepare(context: ContextCall, max_scores: torch.Tensor | None, wanted: Wanted) -> None:
    """Makes the plans of both passes, as prepare() of _context_attention.py says."""
    call, parts = context.call, Parts(context)
    query, dim = call.query, call.value.shape[3]
    whole = State(empty_out(query, dim), empty_lse(query), empty_lse(query), max_scores)
    own, received = parts.states(context, whole)
    (heads, kv_heads), *_ = context.head_groups()
    keys, values = call.key[:, kv_heads], call.value[:, kv_heads]
    rows_of_keys = keys.new_empty(parts.received_count, *keys.shape[:2], keys.shape[3] + values.shape[3])
    forwards = []
    if parts.takes_own:
        forwards.append(parts.own_forward(context, own))
    if parts.takes_received:
        forwards.append(parts.received_forward(context, heads, rows_of_keys, received))
    for local in forwards:
        assert local.out is not None
        _core.KeptPlan(local.query, local.key, local.value, local.out, local.lse, local.arguments(), local.max_scores,
                       local.lse_rest)
    if any(wanted):
        for inputs, targets, arguments, _ in requests(context, parts, wanted, whole, (heads, rows_of_keys)):
            _core.BackwardPlan(inputs, targets, arguments, True)


def requests(context: ContextCall, parts: Parts, wanted: Wanted, whole: State,
             received: tuple[slice, torch.Tensor]) -> Iterator[Any]:
    """One of each kind that a backward makes."""
    at = Backward(context, parts, wanted)
    made = Made(whole.out, whole.lse, whole.lse_rest, ())
    results = made, torch.empty_like(whole.out), None
    if parts.takes_own:
        for heads, kv_heads in halves(context, context.keeps_keys):
            if heads.start < heads.stop:
                yield at.of_own(heads, kv_heads, results)
    if parts.takes_received:
        heads, rows_of_keys = received
        yield at.of_received(heads, rows_of_keys, at.new_d_keys(rows_of_keys), results)
    if at.gradients.sinks is not None:
        yield at.of_sinks(results)
