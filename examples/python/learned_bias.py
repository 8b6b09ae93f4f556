"""A learned bias of distances in torch, as relative positions have it: a table that a module owns."""

import torch

from heddle.torch import flex_attention


class RelativeBias(torch.nn.Module):
    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = torch.nn.Parameter(torch.randn(heads, 2 * reach + 1))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.table[h, (q_idx - kv_idx).clamp(-self.reach, self.reach) + self.reach]


q, k, v = (torch.randn(2, 8, 512, 64) for _ in range(3))
with torch.no_grad():
    out = flex_attention(q, k, v, RelativeBias(8, 32))
print(out.shape)
