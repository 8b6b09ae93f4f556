"""Gradients of eager calls: heddle's backward as an autograd.Function.

It keeps all tensors of the call, out, lse and lse_rest by save_for_backward, which notices later writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._alignment import aligned
from . import _eager
from ._backward_plans import check_backward_exists
from ._call import Call
from ._eager_backward import (
    Results, Wanted, backward, check_differentiable, in_places, refuse_twice, wanted_of)
from ._inputs import is_plain, suited
from ._operator_rules import traced_backward
from ._private_names import is_mapped
from ._results import OutAndLse, empty_lse


def attend_with_gradients(call: Call) -> OutAndLse:
    """The results, recorded by autograd. `call.out` is new memory of heddle's.

    Raises RuntimeError if `call.out` is a view of the user's memory, NotImplementedError if there is no backward.
    """
    check_differentiable(call)
    if call.out is not None and call.out._is_view():
        raise RuntimeError("out= is given, which autograd cannot record, and an input requires a gradient: call "
                           "without out, or under torch.no_grad()")
    device = call.query.device
    inputs = suited(call.query, call.key, call.value) or (call.query, call.key, call.value)
    captures = [aligned(x if x.device == device else x.to(device)) for x in call.captures.values()]
    # Autograd keeps no tensor that was made under torch.inference_mode().
    call = call.with_tensors([x.clone() if x.is_inference() else x for x in (*inputs, *captures, *call.options.values())])
    check_backward_exists(call)
    record: Any = Attention.apply
    made = record(call, *call.tensors())
    return made if call.with_lse else (made, None)


class Attention(torch.autograd.Function):
    """A call, and its tensors for autograd: gives out, or (out, lse)."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> Any:
        call = call.changed(lse=empty_lse(call.query), lse_rest=empty_lse(call.query))
        out, lse = _eager.run(call)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, lse, call.lse_rest, *tensors)
        ctx.call = call.without_tensors()
        return (out, lse) if call.with_lse else out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor | None, d_lse: torch.Tensor | None = None) -> Any:
        if d_out is None and d_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        out, lse, lse_rest, *tensors = ctx.saved_tensors
        results = Results(out, lse, lse_rest, d_out, d_lse)
        return None, *gradients_of(ctx.call.with_tensors(tensors), results, ctx.needs_input_grad[1:])


def gradients_of(call: Call, results: Results, asked: Sequence[bool]) -> Sequence[torch.Tensor | None]:
    """The gradients of call.tensors() that autograd asks for, as the results of a backward."""
    wanted = wanted_of(call, asked)
    with torch.no_grad():
        made = computed(call, results, wanted)
    if torch.is_grad_enabled():  # create_graph
        return in_places(refused_twice(made, (results.d_out, results.d_lse, *call.tensors())), call, wanted)
    return in_places(made, call, wanted)


def computed(call: Call, results: Results, wanted: Wanted) -> Sequence[torch.Tensor]:
    """The wanted gradients: by the library, or by the operator where a transform or a mode is active."""
    if is_batched(results.d_out, results.d_lse):
        raise NotImplementedError("heddle.torch has no backward of batched gradients (is_grads_batched=True, "
                                  "vectorize=True): use torch.func.vjp and torch.func.vmap")
    if is_plain(results.d_out, results.d_lse, results.out, call.query, call.key, call.value):
        return backward(call, results, wanted)
    return traced_backward(call, results, wanted)


def is_batched(*gradients: torch.Tensor | None) -> bool:
    """Whether torch's old vmap maps one of these, which is of type torch.Tensor."""
    return any(x is not None and is_mapped(x) for x in gradients)


def refused_twice(
    made: Sequence[torch.Tensor | None], of: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """The gradients, made to refuse being differentiated again. `of`: what they were computed from."""
    given = [x for x in made if x is not None]
    record: Any = RefusedTwice.apply
    left = iter(record(len(given), *given, *(x for x in of if x is not None)) if given else ())
    return tuple([None if x is None else next(left) for x in made])


class RefusedTwice(torch.autograd.Function):
    """Gradients that cannot be differentiated again. Gets how many they are, they, and what they were computed from."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([x.view_as(x) for x in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        refuse_twice()
