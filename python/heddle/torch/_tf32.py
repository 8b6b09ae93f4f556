"""torch's switch of f32 products: torch.set_float32_matmul_precision, torch.backends.cuda.matmul."""

from __future__ import annotations

import torch


def allow_tf32_for(query: torch.Tensor) -> bool | None:
    """The option allow_tf32 of a call: True where torch permits it. None elsewhere, and where it changes nothing."""
    return True if query.is_cuda and query.dtype == torch.float32 and is_allowed() else None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # as torch's own kernels are compiled
def is_allowed() -> bool:
    """As torch.compile's flex_attention reads it. torch 2.9 and later have fp32_precision, "none" where it is not set."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    if precision != "none":
        return bool(precision != "ieee")
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch refuses to say it once torch.backends.mkldnn's fp32_precision is set
        return False
