"""Whether a GPU computes the backward of a call. Asked before the forward runs: the error then comes where the call
stands, and take-over can leave the call to torch."""

from __future__ import annotations

import os
from typing import Any

import torch

from .. import _core
from ._call import Call, kernel_settings_of
from ._eager_backward import Results, Wanted, backward_request, is_deterministic, wanted_of
from ._results import empty_lse, empty_out

ASKED_ON = {"cuda"}  # a CPU computes every backward
# The reason why there is none, empty if there is one; and the lists, which are by id in the key. Lists are as long as
# sequences, so few calls that have some are kept.
MOST_KEPT, MOST_WITH_LISTS = 512, 8
_reasons: dict[Any, tuple[str, Any]] = {}
_reasons_with_lists: dict[Any, tuple[str, Any]] = {}


def check_backward_exists(call: Call) -> None:
    """Raises NotImplementedError if no kernel computes the gradients that autograd may ask for. Where one does, it is
    planned and compiled now. Says nothing while a CUDA graph captures the stream: the call ran before."""
    device = call.query.device
    if device.type not in ASKED_ON:
        return
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    wanted = wanted_of(call, [x.requires_grad for x in call.tensors()])
    if not any(wanted):
        return
    texts = [None if mod is None else str(mod) for mod in (call.score, call.mask, call.weight)]
    known = (*texts, id(call.lists), *map(layout, call.tensors()), tuple(call.captures), tuple(call.options),
             tuple(call.params), wanted, kernel_settings_of(call), is_deterministic(),
             os.environ.get("HEDDLE_FAMILY"))
    kept, most = (_reasons, MOST_KEPT) if call.lists is None else (_reasons_with_lists, MOST_WITH_LISTS)
    found = kept.get(known)
    if found is None:
        if len(kept) >= most:
            kept.clear()
        found = kept[known] = reason_against(call, wanted), call.lists
    if found[0]:
        raise NotImplementedError(f"{found[0]}. An input requires a gradient: call under torch.no_grad() if none is "
                                  "needed")


# The largest head dimensions whose gradients every GPU computes, in 16 bits and f32, and in f64.
MOST_DIMS = (512, 256) if torch.version.hip is None else (256, 128)


def reason_unasked(*inputs: torch.Tensor) -> str:
    """As reason_against() says, for inputs q, k, v of a call that has no tensors yet, as torch.compile traces it: by
    their head dimensions, since every mod has a backward."""
    most = MOST_DIMS[1 if inputs[0].dtype == torch.float64 else 0]
    largest = max([x.shape[-1] for x in inputs])
    if largest <= most:
        return ""
    return f"a head dimension is {largest}, and an input requires a gradient; to {most} every GPU computes it"


def layout(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.shape, x.stride(), x.device


def reason_against(call: Call, wanted: Wanted) -> str:
    """Why there is no backward; empty if there is one."""
    out, lse = empty_out(call.query, call.value.shape[3]), empty_lse(call.query)
    results = Results(out, lse, empty_lse(call.query), None, None)
    inputs, targets, arguments, _ = backward_request(call, results, wanted)
    try:
        _core.BackwardPlan(inputs, targets, arguments, True)
    except NotImplementedError as error:
        return str(error)
    return ""
