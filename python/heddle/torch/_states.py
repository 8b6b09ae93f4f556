"""Results over parts of the keys, merged with gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._named_tensors import names_arguments


@names_arguments
def merge_states(o_parts: Sequence[torch.Tensor],
                 lse_parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges attention results over disjoint parts of the keys: o = sum(o_n exp(lse_n - lse)), lse = ln sum exp(lse_n).
    Rows without any key have o = 0 and lse = -inf.

    o_parts: tensors [..., Dv], or one that has them along its first axis; lse_parts: as many [...] in f32 or f64. Returns o, of the first part's dtype, and lse.
    Autograd computes gradients of all parts. Raises ValueError for numbers and shapes of parts that do not fit, for
    other types and for tensors on several devices, and TypeError for parts that are no tensors.

    >>> import torch, heddle.torch
    >>> q, k, v = torch.randn(3, 1, 2, 16, 8)
    >>> parts = [heddle.torch.flex_attention(q, k[:, :, keys], v[:, :, keys], return_aux=heddle.torch.AuxRequest(lse=True))
    ...          for keys in (slice(0, 5), slice(5, 16))]
    >>> o, lse = heddle.torch.merge_states([o for o, _ in parts], [aux.lse for _, aux in parts])
    >>> torch.allclose(o, heddle.torch.flex_attention(q, k, v), atol=1e-6)
    True
    """
    o_parts, lse_parts = list(o_parts), list(lse_parts)
    if not o_parts or len(o_parts) != len(lse_parts):
        raise ValueError(f"o_parts has {len(o_parts)} tensors and lse_parts {len(lse_parts)}; the same number, at least 1, "
                         "is accepted")
    for n, (o, lse) in enumerate(zip(o_parts, lse_parts)):
        check_part(n, o, lse, o_parts[0])
        if o.shape != o_parts[0].shape or lse.shape != o.shape[:-1]:
            raise ValueError(f"o_parts[{n}] is {list(o.shape)} and lse_parts[{n}] {list(lse.shape)}; "
                             f"{list(o_parts[0].shape)} and {list(o_parts[0].shape[:-1])} are accepted")
    parts = torch.stack(tuple(lse_parts))
    largest = parts.detach().amax(0)
    largest = torch.where(largest == -torch.inf, 0, largest)
    weights = torch.exp(parts - largest)
    total = weights.sum(0)
    some = total > 0  # else no part has a key
    safe = torch.where(some, total, 1)
    lse = torch.where(some, largest + safe.log(), -torch.inf)
    factors = (weights / safe).unsqueeze(-1)
    o = (torch.stack(tuple(o_parts)).to(factors.dtype) * factors).sum(0)
    return o.to(o_parts[0].dtype), lse


def check_part(n: int, o: torch.Tensor, lse: torch.Tensor, first: torch.Tensor) -> None:
    """Raises TypeError or ValueError for a part that is no tensor of numbers on the first one's device."""
    for name, x, kinds in ((f"o_parts[{n}]", o, "floating types"), (f"lse_parts[{n}]", lse, "f32 and f64")):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__name__}; a tensor is accepted")
        if not x.dtype.is_floating_point or x is lse and x.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} is {x.dtype}; {kinds} are accepted")
        if x.device != first.device:
            raise ValueError(f"{name} is on {x.device}; {first.device}, where the first part is, is accepted")
