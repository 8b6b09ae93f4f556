"""The derivatives and the vmap of heddle::forward and heddle::backward, and how they are called.

torch.compile takes the gradients that are registered with torch.library. torch.func's transforms (grad, vmap, jacrev,
...) do not, so under them the operators are called through the autograd.Functions Forward and Backward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from ._call import Call
from ._eager_backward import Results, Wanted, check_differentiable, in_places, refuse_twice, wanted_of
from ._inputs import is_transformed, refuse_derivative, refuse_tangents
from ._operands import FIRST, PLACES, Count, named, operands, packed, unpacked, without_lists
from ._operators import GIVEN, Gradient, Made, library, or_empty
from ._results import OutAndLse


def traced_forward(call: Call, lists: Sequence[torch.Tensor] = (), sizes: Sequence[int] = ()) -> OutAndLse:
    """heddle::forward on tensors that are traced or transformed. `lists` and `sizes`: block lists that are traced, too;
    else those of the call."""
    tensors = call.tensors()
    refuse_tangents(*tensors)
    if not lists:
        lists, sizes = call.listed()
    lse_words = 2 if may_have_backward(tensors) else int(call.with_lse)
    out, lse, _ = call_forward(call.query, call.key, call.value, *operands(call, lse_words, lists, sizes))
    if call.out is not None:
        call.out.copy_(out)
        out = call.out
    return out, lse if call.with_lse else None


def traced_backward(call: Call, results: Results, wanted: Wanted) -> Sequence[torch.Tensor]:
    """heddle::backward on tensors that are traced or transformed."""
    out, lse, lse_rest, d_out, d_lse = results
    rest = operands(call, 1, *call.listed())
    return call_backward(d_out, d_lse, out, lse, or_empty(call.query, lse_rest), call.query, call.key, call.value,
                         *rest, list(wanted[:4]), list(wanted.captures))


def may_have_backward(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there may be a backward. Under transforms a tensor does not say what outer ones ask of it."""
    return torch.is_grad_enabled() and (is_transformed() or any(x.requires_grad for x in tensors))


def call_forward(*args: Any) -> Made:
    """The operator, also under transforms of torch.func."""
    out, lse, lse_rest = Forward.run(*args) if is_transformed() else torch.ops.heddle.forward(*args)
    return out, lse, lse_rest


def call_backward(*args: Any) -> Sequence[torch.Tensor]:
    """The operator, also under transforms of torch.func."""
    if is_transformed():
        return Backward.run(*args)
    made: list[torch.Tensor] = torch.ops.heddle.backward(*args)
    return made


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Made) -> None:
    """Keeps what the backward of heddle::forward needs."""
    query, key, value, *rest = inputs
    check_differentiable(without_lists(query, key, value, *rest))
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.template, tensors = packed(rest)
    ctx.save_for_backward(*output, query, key, value, *tensors)


def gradients_of(ctx: Any, d_out: Gradient, d_lse: Gradient, needs: Sequence[bool]) -> list[Gradient]:
    """The gradients of query, key, value, the captures and the options. `needs` has as many."""
    out, lse, lse_rest, query, key, value, *tensors = ctx.saved_tensors
    rest = unpacked(ctx.template, tensors)
    call = without_lists(query, key, value, *rest)
    wanted = wanted_of(call, needs)
    if not lse.numel() and query.numel():
        raise RuntimeError("heddle::forward was called with lse_words=0; its backward needs lse")
    made = call_backward(
        d_out, d_lse, out, lse, lse_rest, query, key, value, *rest, list(wanted[:4]), list(wanted.captures))
    return in_places(made, call, wanted)


def gradients_of_forward(ctx: Any, d_out: Gradient, d_lse: Gradient, _: Gradient = None) -> tuple[Any, ...]:
    """The gradients of all arguments of heddle::forward."""
    nothing: list[Any] = [[None] * x if isinstance(x, Count) else [] if x == [] else None for x in ctx.template]
    if d_out is None and d_lse is None:
        return None, None, None, *nothing
    needs = ctx.needs_input_grad
    captures, options = (list(needs[FIRST + PLACES[name]] or ()) for name in ("captures", "options"))
    made = gradients_of(ctx, d_out, d_lse, [*needs[:FIRST], *captures, *options])
    end = FIRST + len(captures)
    nothing[PLACES["captures"]], nothing[PLACES["options"]] = made[FIRST:end] or None, made[end:] or None
    return *made[:FIRST], *nothing


def mapped_forward(info: Any, in_dims: Any, *args: Any) -> tuple[Made, tuple[int | None, ...]]:
    """torch.vmap. One call for each entry, unless the mapped axis can join the batch.

    It can if only query, key and value are mapped, no mod reads b, and there are neither options nor block lists.
    """
    given = named(args[FIRST:])
    made_here = given["lse_words"] > 0, given["lse_words"] > 1  # whether the operator makes lse, and lse_rest
    only_inputs = all(dim is None for dim in flat_dims(in_dims[FIRST:]))
    reads_batch = any(re.search(r"\bb\b", given[name]) for name in ("score", "mask", "weight"))
    if only_inputs and not given["options"] and not given["lists"] and not reads_batch:
        out, lse, lse_rest = folded_forward(info.batch_size, in_dims[:FIRST], args, made_here)
    else:
        results = [call_forward(*(pick(x, dim, i) for x, dim in zip(args, in_dims))) for i in range(info.batch_size)]
        out, lse, lse_rest = (
            torch.stack(made) if is_made else made[0] for made, is_made in zip(zip(*results), (True, *made_here)))
    return (out, lse, lse_rest), (0, *(0 if is_made else None for is_made in made_here))


def folded_forward(size: int, dims: Sequence[int | None], args: Sequence[Any], made_here: tuple[bool, bool]) -> Made:
    tensors = [x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
               for x, dim in zip(args[:FIRST], dims)]
    batch = tensors[0].shape[1]  # keys and values may have batch 1
    whole = [x.expand(size, batch, *x.shape[2:]).reshape(size * batch, *x.shape[2:]) for x in tensors]
    made = call_forward(*whole, *args[FIRST:])
    out, lse, lse_rest = (
        x.unflatten(0, (size, batch)) if is_made else x  # type: ignore[no-untyped-call]
        for x, is_made in zip(made, (True, *made_here)))
    return out, lse, lse_rest


def mapped_backward(info: Any, in_dims: Any, *args: Any) -> tuple[list[torch.Tensor], list[int]]:
    """torch.vmap: one call for each entry."""
    results = [call_backward(*(pick(x, dim, i) for x, dim in zip(args, in_dims))) for i in range(info.batch_size)]
    made = [torch.stack(entries) for entries in zip(*results)]
    return made, [0] * len(made)


def flat_dims(dims: Any) -> list[Any]:
    return [one for dim in dims for one in (flat_dims(dim) if isinstance(dim, (list, tuple)) else [dim])]


def pick(value: Any, dim: Any, i: int) -> Any:
    """Entry i of an argument that is mapped along `dim`; the argument itself if it is not."""
    if isinstance(value, (list, tuple)) and isinstance(dim, (list, tuple)):
        return [pick(one, own, i) for one, own in zip(value, dim)]
    return value.select(dim, i) if isinstance(dim, int) else value


class Forward(torch.autograd.Function):
    """heddle::forward of (template, query, key, value, tensors...): see packed()."""

    @staticmethod
    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
        template, tensors = packed(rest)
        record: Any = Forward.apply
        return record(template, query, key, value, *tensors)

    @staticmethod
    def forward(template: list[Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *tensors: Any) -> Any:
        return torch.ops.heddle.forward(query, key, value, *unpacked(template, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        template, query, key, value, *tensors = inputs
        keep_inputs(ctx, (query, key, value, *unpacked(template, tensors)), output)

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any, _: Any) -> Any:
        needs = ctx.needs_input_grad[1:]
        if d_out is None and d_lse is None:
            return (None,) * (1 + len(needs))
        made = gradients_of(ctx, d_out, d_lse, needs)
        return None, *made, *(None for _ in needs[len(made):])  # block lists come last

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: Any, template: list[Any], *tensors: Any) -> Any:
        return mapped_forward(info, *mapped(template, in_dims[1:], tensors, FIRST))


class Backward(torch.autograd.Function):
    """heddle::backward of (template, d_out, d_lse, out, lse, lse_rest, query, key, value, tensors...)."""

    @staticmethod
    def run(*args: Any) -> Sequence[torch.Tensor]:
        template, tensors = packed(args[GIVEN + FIRST:])
        record: Any = Backward.apply
        made: Sequence[torch.Tensor] = record(template, *args[: GIVEN + FIRST], *tensors)
        return made

    @staticmethod
    def forward(template: list[Any], *tensors: Any) -> tuple[torch.Tensor, ...]:
        given, rest = tensors[: GIVEN + FIRST], tensors[GIVEN + FIRST:]
        return tuple(torch.ops.heddle.backward(*given, *unpacked(template, rest)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        refuse_twice()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        refuse_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: Any, template: list[Any], *tensors: Any) -> Any:
        in_dims, *args = mapped(template, in_dims[1:], tensors, GIVEN + FIRST)
        made, dims = mapped_backward(info, in_dims, *args)
        return tuple(made), tuple(dims)


def mapped(template: list[Any], dims: Sequence[Any], tensors: Sequence[Any], first: int) -> list[Any]:
    """The dims of an operator's arguments, and these arguments; `first` of them stand before the operands."""
    of_rest = [x if isinstance(x, list) else None for x in unpacked(template, dims[first:])]
    of_rest = [x if isinstance(kind, Count) else None for kind, x in zip(template, of_rest)]
    return [(*dims[:first], *of_rest), *tensors[:first], *unpacked(template, tensors[first:])]


torch.library.register_vmap("heddle::forward", mapped_forward, lib=library)
torch.library.register_vmap("heddle::backward", mapped_backward, lib=library)
torch.library.register_autograd("heddle::forward", gradients_of_forward, setup_context=keep_inputs, lib=library)
torch.library.register_autograd("heddle::backward", refuse_twice, lib=library)
