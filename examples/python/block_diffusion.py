"""Block diffusion in torch: a noisy half sees its own block and the clean blocks before it, a clean half sees clean
blocks up to its own. Rows are [noisy tokens, clean tokens]."""

import torch

from heddle.torch import create_block_mask, flex_attention

LENGTH, BLOCK = 1024, 64
q, k, v = (torch.randn(1, 8, 2 * LENGTH, 64) for _ in range(3))


def block_diffusion(b, h, q_idx, kv_idx):
    q_block, kv_block = q_idx % LENGTH // BLOCK, kv_idx % LENGTH // BLOCK
    q_clean, kv_clean = q_idx >= LENGTH, kv_idx >= LENGTH
    own = (q_block == kv_block) & (q_clean == kv_clean)
    return own | kv_clean & (kv_block < q_block)


mask = create_block_mask(block_diffusion, None, None, 2 * LENGTH, 2 * LENGTH, "cpu", BLOCK_SIZE=64)
out = flex_attention(q, k, v, block_mask=mask)
print(f"{out.shape}, {mask.sparsity():.0f} % of the blocks skipped")
