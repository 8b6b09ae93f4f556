"""Slopes of torch's functions where two operands are equal: torch 2.15 has others than 2.11, so torch is asked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes


def slope_at_tie(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
    """The slope in x of function(x, y) where x and y are 0. The import that asks may stand inside any mode of torch."""
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        x, y = (torch.zeros((), dtype=torch.float64, device="cpu", requires_grad=needed) for needed in (True, False))
        (slope,) = torch.autograd.grad(function(x, y), x)
        return float(slope)


# fmin and fmax: the first operand's slope is 1, or both share it.
SHARED_BY_FMAX = slope_at_tie(torch.fmax) == 0.5
# clamp: at a bound x has the slope 1, or the bound wins; a bound that is a tensor may share it.
BOUND_WINS = slope_at_tie(lambda x, _: x.clamp(min=0.0)) == 0
SHARED_BY_CLAMP = slope_at_tie(lambda x, y: x.clamp(min=y)) == 0.5
