"""heddle for torch: flex_attention, scaled_dot_product_attention and their block masks, on heddle's kernels."""

from __future__ import annotations

from torch.nn.attention.flex_attention import AuxOutput, AuxRequest

from . import _private_names  # isort: first: it names what this torch lacks
from . import _flash_implementation, _flops, context_parallel  # noqa: F401  _flops tells torch
from ._block_mask import BlockMask, create_block_mask, create_mask
from ._dense import allow_dense
from ._flex import flex_attention
from ._mask_mods import and_masks, noop_mask, or_masks
from ._sdpa import scaled_dot_product_attention
from ._states import merge_states
from ._take_over import Entry, activate, clear_log, deactivate, enabled, log
from ._tracing.kept import counts as trace_counts
from ._varlen import varlen_attn, varlen_attn_out
from ._wide_integers import check_integers

_flash_implementation.register()

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "Entry", "activate", "allow_dense", "and_masks", "check_integers", "clear_log",
    "context_parallel", "create_block_mask", "create_mask", "deactivate", "enabled", "flex_attention", "log",
    "merge_states", "noop_mask", "or_masks", "scaled_dot_product_attention", "trace_counts", "varlen_attn",
    "varlen_attn_out",
]
