"""A call of context parallel attention as data: the rank's Call in global indices, its exchange and its groups of
heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from . import _forms
from ._call import Call
from ._context_group import agree, check_device
from ._context_masks import in_global_indices
from ._context_plan import ContextPlan, Exchange, RowsOfKeys
from ._context_positions import POSITIONS, STARTS, know_positions
from ._exact import refuse_wide
from ._flex import check_inputs
from ._private_names import identity
from ._tf32 import allow_tf32_for
from ._tracing.kept import Mods

FIRST_HEAD = "_first_head"


@dataclass
class ContextCall:
    """All that a rank computes and exchanges."""

    plan: ContextPlan
    exchange: Exchange
    call: Call
    groups: int  # of heads, each with an exchange and an attention of its own
    keeps_keys: bool
    reduces_captures: bool
    mods: Any = None  # score_mod, dropout and their numbers in global indices, the same on all ranks
    own_first: bool = False  # this rank's own keys have an attention of their own, beside the exchange
    texts: tuple[Any, Any, Any] = (None, None, None)  # score, mask and weight before know_positions()

    def head_groups(self) -> Iterator[tuple[slice, slice]]:
        """The heads of queries and of keys of each group."""
        heads, kv_heads = self.call.query.shape[1], self.call.key.shape[1]
        share, kv_share = heads // self.groups, kv_heads // self.groups
        for group in range(self.groups):
            yield (slice(group * share, (group + 1) * share), slice(group * kv_share, (group + 1) * kv_share))

    def over(self, rows: RowsOfKeys) -> Call:
        """The call over a part of the rows of keys, with the keys and values of all."""
        keys, version = rows.placed()
        score, mask, weight = self.texts
        made = self.call.changed(
            score=score, mask=mask, weight=weight, version=version,
            captures={name: x for name, x in self.call.captures.items() if name not in POSITIONS},
            options={name: x for name, x in self.call.options.items() if name not in STARTS})
        know_positions(made, (self.exchange.rows[0], keys), (self.plan.q_len, self.plan.kv_len))
        return made

    def of_heads(self, call: Call, heads: slice, key: torch.Tensor, value: torch.Tensor,
                 **targets: torch.Tensor | None) -> Call:
        """The attention of some heads of a call, over these keys and values of theirs."""
        params = {**call.params, FIRST_HEAD: heads.start} if FIRST_HEAD in call.params else call.params
        return call.changed(
            query=call.query[:, heads], key=key, value=value, params=params,
            options={name: x[heads] if name == "sinks" else x for name, x in call.options.items()},
            **{name: None if x is None else x[:, heads] for name, x in targets.items()})

    def stated(self) -> list[tuple[str, Any]]:
        """What all ranks must have in common, for agree()."""
        call = self.call
        query, key, value = call.query, call.key, call.value
        extents = (query.shape[0], query.shape[1], key.shape[1], query.shape[3], value.shape[3])
        captures = [(name, str(x.dtype), tuple(x.shape), x.requires_grad) for name, x in call.captures.items()
                    if name not in POSITIONS]
        sinks = call.options.get("sinks")
        learned = [x is not None and x.requires_grad for x in (query, key, value, sinks)]
        return list(zip(STATED, (
            extents, (str(query.dtype), query.device.type), self.mods, self.exchange.mask.stated(), captures,
            (self.plan.made.queries.hash, self.exchange.word),
            (call.scale, self.groups, self.keeps_keys, self.reduces_captures, self.own_first, sinks is None),
            (torch.is_grad_enabled(), learned))))


STATED = ("batch, heads and head dimensions", "the dtype and the device", "score_mod and dropout", "the mask",
          "the tensors that mods read", "the plan", "options", "which tensors require a gradient")


def compare(plan: ContextPlan, context: ContextCall | None, error: Exception | None) -> None:
    """Raises on each rank if one has an error, or if ranks disagree: in each call or in the first one, by the plan's
    `checks`."""
    plan.calls += 1
    if plan.checks == "calls" or plan.calls == 1:
        agree(plan.ranks, [(what, None) for what in STATED] if context is None else context.stated(), error)
    elif error is not None:
        raise error


def row_bytes(key: torch.Tensor, value: torch.Tensor) -> int:
    """Of one row of keys and values, of all heads."""
    return key.shape[0] * key.shape[1] * (key.shape[3] + value.shape[3]) * key.element_size()


def chosen_groups(plan: ContextPlan, exchange: Exchange, call: Call, own_first: bool) -> int:
    """How many groups of heads: those of the least predicted time. One on the CPU. All ranks choose the same."""
    query, key, value = call.query, call.key, call.value
    if query.device.type == "cpu":
        return 1
    most_rows = max(plan.rows(rank) for rank in range(plan.size))
    tiles = query.shape[0] * query.shape[1] * -(-most_rows // 128)
    flop = 2.0 * query.shape[0] * query.shape[1] * (key.shape[3] + value.shape[3]) * exchange.most_elements
    own_share = 0.0
    if own_first:  # a guess: each row of keys is read as often
        most_keys = max(plan.rows(rank, of_keys=True) for rank in range(plan.size))
        own_share = most_keys / max(1, most_keys + exchange.most_received)
    return _core.default_head_groups(key.shape[1], exchange.most_received * row_bytes(key, value), tiles, flop, own_share)


def check_groups(given: int, kv_heads: int) -> int:
    if given < 1 or kv_heads % given:
        raise ValueError(f"head_groups is {given}; a divisor of the {kv_heads} heads of key is accepted")
    return given


def check_tensors(
    plan: ContextPlan, exchange: Exchange, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Raises ValueError for tensors that do not fit the plan, its group or the mask."""
    check_rows(plan, query, key, value)
    check_device(plan.ranks, query.device)
    if query.device != plan.device:
        raise ValueError(f"query, key and value are on {query.device}, and the plan was made for {plan.device}; the "
                         "same device is accepted")
    check_mask(exchange, query)


def check_rows(plan: ContextPlan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    wanted = plan.rows(plan.rank), plan.rows(plan.rank, of_keys=True)
    if (query.shape[2], key.shape[2], value.shape[2]) != (wanted[0], wanted[1], wanted[1]):
        raise ValueError(f"query, key and value have {query.shape[2]}, {key.shape[2]} and {value.shape[2]} rows; this "
                         f"rank holds {wanted[0]} queries and {wanted[1]} keys of the plan: take them by "
                         "context_parallel.shard")
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        raise ValueError(f"query is {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}; the "
                         "same batch, and for key and value the same heads, are accepted")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}; one dtype is "
                         "accepted")
    if not query.dtype.is_floating_point:
        raise ValueError(f"query, key and value are {query.dtype}; floating dtypes are accepted")


def check_mask(exchange: Exchange, query: torch.Tensor) -> None:
    mask = exchange.mask
    extents = ("batch", mask.batch, query.shape[0]), ("number of heads", mask.heads, query.shape[1])
    for name, extent, wanted in extents:
        if extent not in (1, wanted):
            raise ValueError(f"the mask has {name} {extent}; 1 or the query's {wanted} is accepted")


def context_call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: ContextPlan,
    score_mod: Callable[..., Any] | None, block_mask: Any, scale: float | None, enable_gqa: bool,
    sinks: torch.Tensor | None, dropout_p: float, dropout_seed: torch.Tensor | None, head_groups: int | None,
    keep_kv: bool, reduce_captures: bool, own_first: bool,
) -> ContextCall:
    """Everything that is refused is refused here, before anything is sent."""
    call = Call(query, key, value, scale=None if scale is None else float(scale), allow_tf32=allow_tf32_for(query))
    check_inputs(call, score_mod, None, enable_gqa)
    exchange = plan.exchange(block_mask).of_rows(row_bytes(key, value))
    check_tensors(plan, exchange, query, key, value)
    own_first = takes_own_first(exchange, own_first)
    groups = (chosen_groups(plan, exchange, call, own_first) if head_groups is None
              else check_groups(head_groups, key.shape[1]))
    set_mods(call, exchange, score_mod, (*query.shape[:2], plan.q_len, plan.kv_len))
    set_dropout(call, dropout_p, dropout_seed)
    if sinks is not None:
        if tuple(sinks.shape) != (query.shape[1],) or sinks.device != query.device or not sinks.is_floating_point():
            raise ValueError(f"sinks is {sinks.dtype} {list(sinks.shape)} on {sinks.device}; floating "
                             f"[{query.shape[1]}] on {query.device} is accepted")
        call.options["sinks"] = sinks.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    call.clamps = bool(call.captures)
    mods = call.score, call.weight, sorted(call.params.items())
    to_global_indices(call, groups > 1 or own_first)
    texts = call.score, call.mask, call.weight
    know_positions(call, exchange.rows, (plan.q_len, plan.kv_len))
    for text in (call.score, call.mask, call.weight):
        if text is not None:
            call.expression(text)  # raises if global indices make it deeper than an expression may be
    return ContextCall(plan, exchange, call, groups, keep_kv, reduce_captures, mods, own_first, texts)


def takes_own_first(exchange: Exchange, asked: bool) -> bool:
    """Where rows cross hosts in a step of their own, they leave from a buffer of all, so own keys stand in it, too."""
    return asked and exchange.crossing is None


def to_global_indices(call: Call, with_heads: bool) -> None:
    """Rewrites the mods of a call. `with_heads`: they may be computed for a group of the heads."""
    for name in ("score", "mask", "weight"):
        text = getattr(call, name)
        if text is not None:
            setattr(call, name, in_global_indices(str(text), with_heads))
    if with_heads:
        call.params[FIRST_HEAD] = 0


def set_mods(
    call: Call, exchange: Exchange, score_mod: Callable[..., Any] | None, global_sizes: tuple[int, int, int, int]
) -> None:
    """The score's expression and the mask's text, in global indices, and what both read."""
    if score_mod is not None and score_mod is not identity:
        mods = Mods(call.query.device)
        expr = mods.score(score_mod)
        refuse_wide(expr, global_sizes, mods.params)
        call.score = str(expr)
        call.captures, call.params = mods.captures, mods.params
    mask = exchange.mask
    call.mask = mask.text
    call.captures.update(mask.captures)
    call.params.update(mask.params)
    call.version = exchange.version


def set_dropout(call: Call, p: float, seed: torch.Tensor | None) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout_p is {p}; 0 to 1 is accepted")
    if p == 0.0:
        return
    if p == 1.0:  # every weight is dropped, and 1 / (1 - p) is no number
        call.weight = "0.0"
        return
    assert seed is not None
    call.weight = _forms.DROPOUT.replace("dropout_", "_dropout_")
    call.params["_dropout_p"] = float(p)
    call.captures["_dropout_seed"] = seed
