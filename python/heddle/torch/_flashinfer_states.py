"""Results over parts of the keys, as FlashInfer merges them: out beside lse in base 2."""

from __future__ import annotations

import math

import torch

from . import _states
from ._named_tensors import named_as, names_arguments, require_axes

LOG2_E = 1 / math.log(2.0)


@names_arguments
def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """out [rows, H, D] and lse [rows, H] over all keys, from those over n parts of them: v [rows, n, H, D], s [rows, n,
    H]. A part without keys has lse -inf.

    >>> import torch
    >>> merge_states(torch.tensor([[[[1.0]], [[4.0]]]]), torch.tensor([[[1.0], [0.0]]]))[0]
    tensor([[[2.]]])
    """
    require_axes(4, v=v)
    require_axes(3, s=s)
    out, lse = _states.merge_states(v.unbind(1), (s.float() / LOG2_E).unbind(1))
    return out, lse * LOG2_E


@names_arguments
def merge_state(v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor,
                s_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """merge_states() of two parts: v [rows, H, D], s [rows, H]. Raises ValueError for other shapes."""
    require_axes(3, v_a=v_a)
    for name, x, shape in (("v_b", v_b, v_a.shape), ("s_a", s_a, v_a.shape[:-1]), ("s_b", s_b, v_a.shape[:-1])):
        if x.shape != shape:
            raise ValueError(f"{name} has shape {list(x.shape)}; {list(shape)} is accepted")
    return merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


@named_as(v_a="v", s_a="s", v_b="v_other", s_b="s_other")
def merge_state_in_place(v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor,
                         mask: torch.Tensor | None = None) -> None:
    """Merges another part into v and s: in the rows where mask [rows] is True, if it is given."""
    if mask is not None and tuple(mask.shape) != (v.shape[0],):
        raise ValueError(f"mask has shape {list(mask.shape)}; [{v.shape[0]}] is accepted, an entry a row")
    out, lse = merge_state(v, s, v_other, s_other)
    taken = torch.ones(v.shape[0], dtype=torch.bool, device=v.device) if mask is None else mask.bool()
    v.copy_(torch.where(taken[:, None, None], out, v))
    s.copy_(torch.where(taken[:, None], lse, s))
