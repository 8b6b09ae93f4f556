"""Packed documents in torch: tokens see the earlier tokens of their own document. Three documents share one row."""

import torch

from heddle.torch import create_block_mask, flex_attention

q, k, v = (torch.randn(1, 8, 3072, 64) for _ in range(3))
document = torch.repeat_interleave(torch.arange(3), torch.tensor([1500, 72, 1500]))


def causal_in_document(b, h, q_idx, kv_idx):
    return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)


mask = create_block_mask(causal_in_document, None, None, 3072, 3072, "cpu")
out = flex_attention(q, k, v, block_mask=mask)
print(f"{out.shape}, {mask.sparsity():.0f} % of the blocks skipped")
