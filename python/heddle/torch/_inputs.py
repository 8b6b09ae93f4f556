"""The tensors that a call gets: whether they are plain, and the form in which the library takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from .._alignment import aligned
from ._private_names import (
    are_tangents_seen, dispatch_modes, has_tangents, jit_trace, transforms, without_subclasses)

PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether these are tensors with memory, and nobody watches what happens to them. None is plain."""
    if dispatch_modes() or transforms() is not None or jit_trace() is not None:  # torch.jit.trace sees operators alone
        return False
    return all(x is None or type(x) in PLAIN for x in tensors)


def refuse_others(**inputs: Any) -> None:
    """Raises TypeError that names an input which is no tensor, RuntimeError for one without strides, if there is one."""
    for name, x in inputs.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__name__}; a tensor is accepted")
        if x.layout != torch.strided and not x.is_nested:
            raise RuntimeError(f"{name} is a tensor of {x.layout}; torch.strided is accepted")
        if x.is_quantized:
            raise RuntimeError(f"{name} is a quantized tensor of {x.dtype}; its dequantize() is accepted")
        if isinstance(x, (UninitializedParameter, UninitializedBuffer)):
            raise RuntimeError(f"{name} is {type(x).__name__}, of a lazy module that was not called yet; a tensor with elements "
                               "is accepted")


def is_transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, ...) is active."""
    return not torch.compiler.is_dynamo_compiling() and transforms() is not None


def bare(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without their subclasses. Those with a __torch_dispatch__ do not come here."""
    with without_subclasses():
        return [x if type(x) in PLAIN else x.as_subclass(torch.Tensor) for x in tensors]


def has_tangent(*tensors: torch.Tensor) -> bool:
    """Whether forward-mode AD differentiates by one of these."""
    return are_tangents_seen() and any(
        x.is_floating_point() and forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]
        for x in tensors)


def refuse_tangents(*tensors: torch.Tensor) -> None:
    """Raises NotImplementedError if an input has a tangent: better than a derivative that is missing."""
    if not torch.compiler.is_dynamo_compiling() and has_tangents() and has_tangent(*tensors):
        refuse_derivative()


def refuse_derivative() -> NoReturn:
    raise NotImplementedError(
        "heddle.torch has no forward-mode derivative, and an input has a tangent: call torch's own attention, or take the "
        "primal of the input")


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the type of torch's autocast if it is on. f64 and integers stay what they are."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # torch has no autocast of meta
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def suited(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The tensors as the library takes them: last stride 1, aligned, key and value of the query's type. None if they
    are so."""
    def suits(x: torch.Tensor) -> torch.Tensor:
        if x.is_complex():
            return x  # the library refuses it; a conversion would drop the imaginary part
        x = x if is_short(x.dtype) and is_short(query.dtype) else x.to(query.dtype)
        suited: torch.Tensor = aligned(x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous())
        return suited

    copies = suits(query), suits(key), suits(value)
    return None if all(x is y for x, y in zip(copies, (query, key, value))) else copies


def of_one_width(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """The tensors in f32, if key or value holds numbers that the query's type of 16 or 8 bits would round: torch
    computes such a call in f32. None if it would round none."""
    if query.dtype in (torch.float32, torch.float64) or any(x.is_complex() for x in (query, key, value)):
        return None
    if all(x.dtype == query.dtype or is_short(x.dtype) for x in (key, value)):
        return None
    return query.float(), key.float(), value.float()


def is_short(dtype: torch.dtype) -> bool:
    """Whether every number of the type is one of f16 and of bf16."""
    return dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
