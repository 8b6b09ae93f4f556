"""The operators under torch.func's transforms (grad, vmap, jacrev, ...), which take no gradients of torch.library's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._gradients import refuse_twice
from ._library import mapped_forward
from ._library_backward import FIRST, Count, gradients_of, keep_inputs, mapped_backward, packed, unpacked


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
    def vmap(info: Any, in_dims: Any, template: list[Any], *tensors: Any) -> Any:
        return mapped_forward(info, *mapped(template, in_dims[1:], tensors, 3))


class Backward(torch.autograd.Function):
    """heddle::backward of (template, d_out, d_lse, out, lse, lse_rest, query, key, value, tensors...)."""

    @staticmethod
    def run(*args: Any) -> Sequence[torch.Tensor]:
        template, tensors = packed(args[FIRST:])
        record: Any = Backward.apply
        made: Sequence[torch.Tensor] = record(template, *args[:FIRST], *tensors)
        return made

    @staticmethod
    def forward(template: list[Any], *tensors: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.heddle.backward(*tensors[:FIRST], *unpacked(template, tensors[FIRST:])))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        refuse_twice()

    @staticmethod
    def vmap(info: Any, in_dims: Any, template: list[Any], *tensors: Any) -> Any:
        in_dims, *args = mapped(template, in_dims[1:], tensors, FIRST)
        made, dims = mapped_backward(info, in_dims, *args)
        return tuple(made), tuple(dims)


def mapped(template: list[Any], dims: Sequence[Any], tensors: Sequence[Any], first: int) -> list[Any]:
    """The dims of an operator's arguments, and these arguments; `first` of them stand before the operands."""
    of_rest = [x if isinstance(x, list) else None for x in unpacked(template, dims[first:])]
    of_rest = [x if isinstance(kind, Count) else None for kind, x in zip(template, of_rest)]
    return [(*dims[:first], *of_rest), *tensors[:first], *unpacked(template, tensors[first:])]
