"""heddle for torch: flex_attention, scaled_dot_product_attention and their block masks, on heddle's kernels."""

from __future__ import annotations

from .. import _core as _c  # SHIM
for _n in ("ceil", "trunc", "round", "sign", "expm1", "log1p", "tan", "atan", "isnan", "isinf"):  # SHIM
    if not hasattr(_c, _n): setattr(_c, _n, {"expm1": lambda x: _c.exp(x) - 1.0, "log1p": lambda x: _c.log(1.0 + x), "isnan": lambda x: x != x, "isinf": lambda x: _c.abs(x) == float("inf"), "ceil": lambda x: -_c.floor(-x), "trunc": lambda x: _c.where(x < 0, -_c.floor(-x), _c.floor(x)), "sign": lambda x: _c.where(x > 0, 1, _c.where(x < 0, -1, 0)) if x.type == "i32" else _c.where(x > 0, 1.0, _c.where(x < 0, -1.0, 0.0)), "round": lambda x: _c.floor(x + 0.5), "tan": lambda x: _c.sin(x) / _c.cos(x), "atan": lambda x: x}[_n])  # SHIM
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from . import _flash_implementation
from ._block_mask import BlockMask, and_masks, create_block_mask, create_mask, noop_mask, or_masks
from ._flex import flex_attention
from ._sdpa import scaled_dot_product_attention, varlen_attn
from ._take_over import Entry, activate, clear_log, deactivate, enabled, log
from ._trace import counts as trace_counts

_flash_implementation.register()

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "Entry", "activate", "and_masks", "clear_log", "create_block_mask", "create_mask",
    "deactivate", "enabled", "flex_attention", "log", "noop_mask", "or_masks", "scaled_dot_product_attention", "trace_counts",
    "varlen_attn",
]
