"""The operator heddle::backward, and the gradients of heddle::forward: what torch.compile and transforms see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._gradients import Wanted, backward, check_differentiable, empty_gradients, in_places, refuse_twice, wanted_of
from ._library import OPERANDS, Result, _library, bare, call_of, is_transformed, operands, or_empty, pick
from ._run import Call, is_plain

_library.define(  # type: ignore[no-untyped-call]
    "backward(Tensor? d_out, Tensor? d_lse, Tensor out, Tensor lse, Tensor lse_rest, Tensor query, Tensor key, "
    f"Tensor value, {OPERANDS}, bool[] wanted, str[] wanted_captures) -> Tensor[]")

Gradient = torch.Tensor | None
FIRST = 8  # tensors before the operands
CAPTURES, OPTIONS = 4, 6  # where they stand among the operands


def backward_of(
    d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
) -> list[torch.Tensor]:
    d_out, d_lse = (None if x is None else bare((x,))[0] for x in (d_out, d_lse))
    out, lse, lse_rest, query, key, value = bare((out, lse, lse_rest, query, key, value))
    if not is_plain(*(x for x in (d_out, d_lse, out, query, key, value) if x is not None)):
        raise NotImplementedError("heddle::backward runs inside of a mode or a transform that does not handle it")
    call = call_of(query, *rest[:-2])
    with torch.no_grad():
        given = lse_rest if lse_rest.shape == lse.shape else None
        return backward(d_out, d_lse, out, lse, given, query, key, value, call, wanted_from(rest))


def wanted_from(rest: Sequence[Any]) -> Wanted:
    (query, key, value, sinks), names = rest[-2:]
    return Wanted(query, key, value, sinks, tuple(names))


def fake_backward(
    d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
) -> list[torch.Tensor]:
    call = Call()
    call.captures = dict(zip(rest[CAPTURES - 1], rest[CAPTURES]))
    call.tensors = dict(zip(rest[OPTIONS - 1], rest[OPTIONS]))
    return empty_gradients(query, key, value, call, wanted_from(rest))


for _key in ("CPU", "CUDA"):
    _library.impl("backward", backward_of, _key)  # type: ignore[no-untyped-call]
torch.library.register_fake("heddle::backward", fake_backward, lib=_library)


def mapped_backward(info: Any, in_dims: Any, *args: Any) -> tuple[list[torch.Tensor], list[int]]:
    """torch.vmap: one call for each entry."""
    results = [call_backward(*(pick(x, dim, i) for x, dim in zip(args, in_dims))) for i in range(info.batch_size)]
    made = [torch.stack(entries) for entries in zip(*results)]
    return made, [0] * len(made)


torch.library.register_vmap("heddle::backward", mapped_backward, lib=_library)
torch.library.register_autograd("heddle::backward", refuse_twice, lib=_library)


def call_backward(*args: Any) -> Sequence[torch.Tensor]:
    """The operator, also under transforms of torch.func."""
    if is_transformed():
        from ._transforms import Backward

        return Backward.run(*args)
    made: list[torch.Tensor] = torch.ops.heddle.backward(*args)
    return made


def traced_backward(
    d_out: Gradient, d_lse: Gradient, out: torch.Tensor, lse: torch.Tensor, lse_rest: torch.Tensor | None,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call, wanted: Wanted,
) -> Sequence[torch.Tensor]:
    """The operator on tensors that are traced or transformed."""
    rest = operands(call, 1, *call.listed(query.device))
    return call_backward(
        d_out, d_lse, out, lse, or_empty(query, lse_rest), query, key, value, *rest, list(wanted[:4]), list(wanted.captures))


def call_of_names(rest: Sequence[Any]) -> Call:
    """As far as it takes to find the wanted gradients."""
    call = Call()
    call.score, _, call.weight = (text or None for text in rest[:3])
    call.captures = dict(zip(rest[CAPTURES - 1], rest[CAPTURES]))
    call.tensors = dict(zip(rest[OPTIONS - 1], rest[OPTIONS]))
    for names, numbers in zip(rest[7:13:2], rest[8:13:2]):
        call.params.update(zip(names, numbers))
    return call


class Count(int):
    """How many tensors stand in a place of the operands."""


def packed(rest: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """The operands with counts in place of their tensors, and these tensors."""
    places = [isinstance(x, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in x) for x in rest]
    return ([Count(len(x)) if holds else x for x, holds in zip(rest, places)],
            [one for x, holds in zip(rest, places) if holds for one in x])


def unpacked(template: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    left = iter(tensors)
    return [[next(left) for _ in range(x)] if isinstance(x, Count) else x for x in template]


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Result) -> None:
    """Of heddle::forward, for its backward."""
    query, key, value, *rest = inputs
    check_differentiable(call_of_names(rest))
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.template, tensors = packed(rest)
    ctx.save_for_backward(*output, query, key, value, *tensors)


def gradients_of(ctx: Any, d_out: Gradient, d_lse: Gradient, needs: Sequence[bool]) -> list[Gradient]:
    """Of query, key, value, the captures and the options. `needs` has as many."""
    out, lse, lse_rest, query, key, value, *tensors = ctx.saved_tensors
    rest = unpacked(ctx.template, tensors)
    call = call_of_names(rest)
    first = 3 + len(call.captures)
    wanted = wanted_of(call, needs[:3], zip(call.captures, needs[3:first]), zip(call.tensors, needs[first:]))
    if not lse.numel() and query.numel():
        raise RuntimeError("heddle::forward was called with lse_words=0; its backward needs lse")
    made = call_backward(
        d_out, d_lse, out, lse, lse_rest, query, key, value, *rest, list(wanted[:4]), list(wanted.captures))
    return in_places(made, call, wanted)


def gradients_of_forward(ctx: Any, d_out: Gradient, d_lse: Gradient, _: Gradient = None) -> tuple[Any, ...]:
    """Of heddle::forward."""
    nothing: list[Any] = [[None] * x if isinstance(x, Count) else [] if x == [] else None for x in ctx.template]
    if d_out is None and d_lse is None:
        return None, None, None, *nothing
    needs = ctx.needs_input_grad
    captures, options = (list(needs[3 + place] or ()) for place in (CAPTURES, OPTIONS))
    made = gradients_of(ctx, d_out, d_lse, [*needs[:3], *captures, *options])
    first = 3 + len(captures)
    nothing[CAPTURES], nothing[OPTIONS] = made[3:first], made[first:]
    return *made[:3], *nothing


torch.library.register_autograd(
    "heddle::forward", gradients_of_forward, setup_context=keep_inputs, lib=_library)
