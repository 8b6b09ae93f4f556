"""A call on plain tensors, straight to the library. _dispatch.py says when."""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from .._alignment import align_captures
from ._call import Call
from ._inputs import suited
from ._results import OutAndLse, empty_lse, empty_out
from ._wide_integers import watch


def run(call: Call) -> OutAndLse:
    """Runs on torch's current stream and waits for nothing. Allocates out and lse by torch where they are not given."""
    query, key, value = call.query, call.key, call.value
    out = empty_out(query, value.shape[3]) if call.out is None else call.out
    lse = empty_lse(query) if call.lse is None and call.with_lse else call.lse
    arguments = call.arguments()
    if query.device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            run_in_graph(call, out, lse, arguments)
            return out, lse
        if call.captures:
            watch(call.captures)
    try:
        _core.attention_into(query, key, value, out, lse, arguments, call.max_scores, call.lse_rest)
    except ValueError:
        copies = suited(query, key, value)
        if not align_captures(arguments) and copies is None:
            raise
        _core.attention_into(*(copies or (query, key, value)), out, lse, arguments, call.max_scores, call.lse_rest)
    return out, lse


_in_graphs: list[Any] = []  # plans that graphs run; the graphs do not say when they end


def run_in_graph(call: Call, out: torch.Tensor, lse: torch.Tensor | None, arguments: _core.Arguments) -> None:
    """Runs in a stream that a CUDA graph captures. Needs an earlier call with the same shapes: a capture cannot plan.

    Takes that call's plan, which it keeps for good, and a workspace from torch's allocator.
    """
    tensors = call.query, call.key, call.value, out, lse
    plan = _core.KeptPlan(*tensors, arguments, call.max_scores, call.lse_rest)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=call.query.device)
    plan.run(*tensors, arguments, workspace.data_ptr(), call.max_scores, call.lse_rest)
    _in_graphs.append(plan)
