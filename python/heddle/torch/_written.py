"""Tensors of the caller's that a call writes: autograd hears of it, as it hears of torch's own operations in place."""

from __future__ import annotations

import torch


def refuse_learned(**written: torch.Tensor | None) -> None:
    """Raises RuntimeError that names a tensor which requires a gradient, while autograd records: the write would not be
    recorded."""
    if not torch.is_grad_enabled():
        return
    for name, x in written.items():
        if isinstance(x, torch.Tensor) and x.requires_grad:
            raise RuntimeError(f"{name} requires a gradient, and autograd cannot record what is written to it; a tensor without "
                               "one is accepted, and any under torch.no_grad()")


def has_written(*written: torch.Tensor | None) -> None:
    """Counts a write in each tensor's version: a backward that needs what stood there raises an error, then."""
    if torch.compiler.is_dynamo_compiling():
        return
    tensors = [x for x in written if isinstance(x, torch.Tensor)]
    if tensors:
        torch.autograd.graph.increment_version(tensors)
