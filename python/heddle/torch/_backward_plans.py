"""Whether a GPU computes the backward of a call. Asked before the forward runs: the error then comes where the call
stands, and take-over can leave the call to torch."""

from __future__ import annotations

import os
from typing import Any

import torch

from .. import _core
from ._gradients import Wanted, backward_request, is_deterministic, wanted_of
from ._run import Call, empty_lse, empty_out

ASKED_ON = {"cuda"}  # a CPU computes every backward
# Why there is none, empty if there is one; and the lists, which are by id in the key. Lists are as long as sequences,
# so few calls that have some are kept.
MOST_KEPT, MOST_WITH_LISTS = 512, 8
_reasons: dict[Any, tuple[str, Any]] = {}
_reasons_with_lists: dict[Any, tuple[str, Any]] = {}


def check_backward_exists(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call) -> None:
    """Raises NotImplementedError if no kernel computes the gradients that autograd may ask for. Where one does, it is
    planned and compiled now. Says nothing while a CUDA graph captures the stream: the call ran before."""
    if query.device.type not in ASKED_ON:
        return
    if query.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    tensors = query, key, value
    wanted = wanted_of(call, [x.requires_grad for x in tensors], requiring(call.captures), requiring(call.tensors))
    if not any(wanted):
        return
    texts = [None if mod is None else str(mod) for mod in (call.score, call.mask, call.weight)]
    known = (*texts, id(call.lists), *map(layout, tensors), *layouts(call.captures), *layouts(call.tensors),
             *call.params, wanted, call.max_q_len, call.max_kv_len, call.clamps, is_deterministic(),
             os.environ.get("HEDDLE_FAMILY"))
    kept, most = (_reasons, MOST_KEPT) if call.lists is None else (_reasons_with_lists, MOST_WITH_LISTS)
    found = kept.get(known)
    if found is None:
        if len(kept) >= most:
            kept.clear()
        found = kept[known] = reason_against(query, key, value, call, wanted), call.lists
    if found[0]:
        raise NotImplementedError(f"{found[0]}. An input requires a gradient: call under torch.no_grad() if none is "
                                  "needed")


def requiring(tensors: dict[str, torch.Tensor]) -> list[tuple[str, bool]]:
    return [(name, x.requires_grad) for name, x in tensors.items()]


def layout(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.device


def layouts(tensors: dict[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(name, *layout(x)) for name, x in tensors.items()]


def reason_against(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, wanted: Wanted) -> str:
    out, lse = empty_out(query, value.shape[3]), empty_lse(query)
    inputs, targets, arguments, _ = backward_request(None, None, out, lse, empty_lse(query), query, key, value, call,
                                                     wanted)
    try:
        _core.BackwardPlan(inputs, targets, arguments, True)
    except NotImplementedError as error:
        return str(error)
    return ""
