"""Repeated calls that autograd records: the library's forward and backward behind one autograd.Function.

C++ (core/recorded_calls.cc) makes both of plain tensors. Python (_gradients.py) makes the backward where torch traces or
transforms it, and where a tensor that autograd kept is not what C++ takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import _core
from . import _backward_plans, _direct
from ._call import Call
from ._eager_backward import Results, is_deterministic
from ._gradients import gradients_of, refused_twice
from ._private_names import dispatch_modes, saved_tensors_hooks, transforms
from ._results import OutAndLse, heads_first


def attend_again(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score: Any, mask: Any,
    settings: dict[str, Any], enable_gqa: bool, with_lse: bool, clamps: bool,
) -> OutAndLse | None:
    """_direct.attend(), recorded by autograd where it has to be.

    Raises NotImplementedError if there is no backward.
    """
    return recorded(_direct.attend(query, key, value, score, mask, settings, enable_gqa, with_lse, clamps))


def attend_packed_again(*arguments: Any) -> OutAndLse | None:
    """_direct.attend_packed(), recorded by autograd where it has to be.

    Raises NotImplementedError if there is no backward.
    """
    return recorded(_direct.attend_packed(*arguments))


def recorded(made: OutAndLse | _core.RecordedCall | None) -> OutAndLse | None:
    """The results of what _direct gave, recorded by autograd if it is a RecordedCall."""
    if not isinstance(made, _core.RecordedCall):
        return made
    if not made.is_packed and saved_tensors_hooks(True) is not None:
        return None  # Attention saves one tensor more, and a checkpoint wants as many of a first call as of the next
    tensors = made.tensors()
    if made.device in _backward_plans.ASKED_ON:
        _backward_plans.check_backward_exists(call_of(made, tensors))
    try:
        results = record(made, *(tensors[:3] if made.is_packed else tensors))  # lengths stand behind, without gradients
    except ValueError:
        return None  # Python may make copies that are accepted, or raises this
    except RuntimeError:
        if any(x.is_inference() for x in tensors):
            return None  # autograd keeps no tensor of torch.inference_mode(); Python makes copies
        raise
    return results if made.with_lse else (results, None)


def call_of(call: _core.RecordedCall, tensors: Sequence[torch.Tensor]) -> Call:
    """The call as Python has it. `tensors`: query, key, value, the captures and the lengths."""
    query, key, value, *others = tensors
    if call.is_packed:
        query, key, value = heads_first(query), heads_first(key), heads_first(value)
    return Call(query, key, value, score=call.score_mod, mask=call.mask_mod, captures=dict(zip(call.names, others)),
                params=dict(call.params), options=dict(zip(call.lengths, others[len(call.names):])), lists=call.lists,
                version=call.mask_version, clamps=call.clamp_reads, with_lse=call.with_lse, **call.settings)


class Recorded(torch.autograd.Function):
    """A RecordedCall, and its tensors but the lengths for autograd: gives out, or (out, lse)."""

    @staticmethod
    def forward(ctx: Any, call: _core.RecordedCall, *inputs: torch.Tensor) -> Any:
        made = call.forward(inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*made)  # lengths too, so that a write is noticed
        ctx.call = call
        return made[:2] if call.with_lse else made[0]

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> Any:
        needs, call, saved = ctx.needs_input_grad, ctx.call, ctx.saved_tensors
        made: tuple[torch.Tensor | None, ...] | None = None
        if not dispatch_modes() and transforms() is None:
            made = call.backward(saved, d_out, d_lse, needs, is_deterministic())
        if made is None:
            return by_python(call, saved, d_out, d_lse, needs)
        return refused_twice(made, (d_out, d_lse, *saved[2:])) if torch.is_grad_enabled() else made


# Autograd calls this; BackwardCFunction.apply would look for a vjp before.
Recorded._backward_cls.apply = Recorded.backward  # type: ignore[attr-defined]
# Function.apply beneath its Python, which asks for transforms of torch.func: _direct.attend() has looked.
record: Any = super(torch.autograd.Function, Recorded).apply


def by_python(call: _core.RecordedCall, saved: Sequence[torch.Tensor], d_out: torch.Tensor | None,
              d_lse: torch.Tensor | None, needs: Sequence[bool]) -> Sequence[torch.Tensor | None]:
    """Recorded.backward() of any tensors."""
    if d_out is None and d_lse is None:
        return (None,) * len(needs)
    out, lse, lse_rest, *tensors = saved if call.with_lse else (saved[0], *saved[1].unbind(0), *saved[2:])
    results = Results(out, lse, lse_rest, d_out, d_lse)
    if not call.is_packed:
        return None, *gradients_of(call_of(call, tensors), results, needs[1:])
    results = Results(heads_first(out), lse[None], lse_rest[None], None if d_out is None else heads_first(d_out),
                      None if d_lse is None else d_lse[None])
    made = gradients_of(call_of(call, tensors), results, needs[1:])
    return None, *[None if x is None else x.transpose(1, 2).squeeze(0) for x in made[:3]]
