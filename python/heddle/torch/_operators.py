"""The operators heddle::forward and heddle::backward of torch.library: what torch.compile, torch.export, fake tensors
and transforms see. Their derivatives and their vmap stand in _operator_rules.py."""

from __future__ import annotations

from typing import Any

import torch

from . import _eager, _eager_backward
from ._eager_backward import Results, Wanted
from ._inputs import bare, is_plain, refuse_tangents
from ._operands import SCHEMA, call_of, named, without_lists
from ._results import empty_lse, empty_out

Gradient = torch.Tensor | None
Made = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # out, lse, lse_rest; without elements where there is none
GIVEN = 5  # heddle::backward's tensors before the call: d_out, d_lse, out, lse, lse_rest
library = torch.library.Library("heddle", "DEF")  # type: ignore[no-untyped-call]
library.define(f"forward({SCHEMA}) -> (Tensor, Tensor, Tensor)")  # type: ignore[no-untyped-call]
library.define(  # type: ignore[no-untyped-call]
    f"backward(Tensor? d_out, Tensor? d_lse, Tensor out, Tensor lse, Tensor lse_rest, {SCHEMA}, bool[] wanted, "
    "str[] wanted_captures) -> Tensor[]")


def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Made:
    query, key, value = bare((query, key, value))
    if not is_plain(query, key, value):
        raise NotImplementedError("heddle::forward runs inside of a mode or a transform that does not handle it")
    call = call_of(query, key, value, *rest)
    refuse_tangents(*call.tensors())
    if named(rest)["lse_words"] > 1:
        call.lse_rest = empty_lse(query)
    with torch.no_grad():
        out, lse = _eager.run(call)
    return out, or_empty(query, lse), or_empty(query, call.lse_rest)


def or_empty(query: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
    return query.new_empty((0,)) if x is None else x


def fake_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Made:
    lse_words = named(rest)["lse_words"]
    lse, lse_rest = (empty_lse(query) if lse_words > least else None for least in (0, 1))
    return empty_out(query, value.shape[3]), or_empty(query, lse), or_empty(query, lse_rest)


def backward(
    d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
) -> list[torch.Tensor]:
    d_out, d_lse = (None if x is None else bare((x,))[0] for x in (d_out, d_lse))
    out, lse, lse_rest, query, key, value = bare((out, lse, lse_rest, query, key, value))
    if not is_plain(d_out, d_lse, out, query, key, value):
        raise NotImplementedError("heddle::backward runs inside of a mode or a transform that does not handle it")
    results = Results(out, lse, lse_rest if lse_rest.shape == lse.shape else None, d_out, d_lse)
    with torch.no_grad():
        return _eager_backward.backward(call_of(query, key, value, *rest[:-2]), results, wanted_from(rest))


def wanted_from(rest: Any) -> Wanted:
    """The last two arguments of heddle::backward."""
    (query, key, value, sinks), names = rest[-2:]
    return Wanted(query, key, value, sinks, tuple(names))


def fake_backward(
    d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
) -> list[torch.Tensor]:
    return _eager_backward.empty_gradients(without_lists(query, key, value, *rest[:-2]), wanted_from(rest))


for _key in ("CPU", "CUDA"):
    library.impl("forward", forward, _key)  # type: ignore[no-untyped-call]
    library.impl("backward", backward, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake("heddle::forward", fake_forward, lib=library)
torch.library.register_fake("heddle::backward", fake_backward, lib=library)
