"""Where a call goes: to the library at once, to autograd, or to the operators where torch traces or transforms it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import _eager
from ._call import Call, TracedLists
from ._gradients import attend_with_gradients
from ._inputs import is_plain, refuse_tangents
from ._operator_rules import traced_forward
from ._private_names import has_tangents, jit_trace
from ._results import OutAndLse


def has_no_width(call: Call) -> bool:
    return call.query.shape[-1] == 0 or call.value.shape[-1] == 0


def of_no_width(call: Call, run: Callable[[Call], OutAndLse]) -> OutAndLse:
    """The results of run() for rows without elements, which torch takes and the library does not: of rows of one 0
    instead. Scores are 0 then, whatever the scale is."""
    def widened(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 1)) if x.shape[3] == 0 else x

    given, width = call.out, call.value.shape[3]
    if call.query.shape[3] == 0:
        call.query, call.key, call.scale = widened(call.query), widened(call.key), 1.0
    call.value, call.out = widened(call.value), None
    out, lse = run(call)
    return out[..., :width] if given is None else given.copy_(out[..., :width]), lse


def refuse_other_devices(call: Call) -> None:
    """Raises RuntimeError unless query, key, value and a given out are on one device."""
    device, out = call.query.device, call.out
    if call.key.device == device and call.value.device == device and (out is None or out.device == device):
        return
    given = "" if out is None else f" and o on {out.device}"
    raise RuntimeError(f"q is on {device}, k on {call.key.device}, v on {call.value.device}{given}; tensors on one device are accepted")


def attend(call: Call) -> OutAndLse:
    """Runs on torch's current stream and waits for nothing.

    Raises NotImplementedError under torch.jit.trace, for tangents of forward-mode AD, for gradients that do not exist, and for max_scores of
    a call that is traced or transformed; ValueError for what the library refuses.
    """
    refuse_other_devices(call)
    if has_no_width(call):
        return of_no_width(call, attend)
    if call.out is not None and not torch.compiler.is_dynamo_compiling() and call.out.is_neg():
        out, lse = attend(call.changed(out=None))
        return call.out.copy_(out), lse
    if not torch.compiler.is_dynamo_compiling() and jit_trace() is not None:
        raise NotImplementedError("torch.jit.trace records no call of heddle: trace torch's own attention, or take torch.export or "
                                  "torch.compile")
    if torch.compiler.is_dynamo_compiling() or not is_plain(call.query, call.key, call.value) or call.query.is_meta or isinstance(
            call.lists, TracedLists):
        if call.max_scores is not None:
            raise NotImplementedError("max_scores are computed by eager calls alone, outside of torch.compile, of torch.func's "
                                      "transforms and of the meta device; lse has all three")
        return traced_forward(call)
    if torch.is_grad_enabled() or has_tangents():
        tensors = call.tensors()
        refuse_tangents(*tensors)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return attend_with_gradients(call)
    return _eager.run(call)
