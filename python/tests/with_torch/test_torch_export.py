"""torch.export with a dynamic length that a mod reads: the program runs for other lengths."""

import pytest
import torch
from torch.export import Dim

from heddle.torch import flex_attention

MODS = {
    "divided": lambda length: lambda s, b, h, q_idx, kv_idx: s + (kv_idx - q_idx) / length,
    "subtracted": lambda length: lambda s, b, h, q_idx, kv_idx: s - 0.1 * (length - kv_idx),
    "compared": lambda length: lambda s, b, h, q_idx, kv_idx: torch.where(kv_idx < length // 2, s, 2.0 * s),
    "computed": lambda length: lambda s, b, h, q_idx, kv_idx: s + (2 * length - 1 - kv_idx) * 0.01 + length * h,
    "alone": lambda length: lambda s, b, h, q_idx, kv_idx: s + torch.minimum(kv_idx, q_idx) % length,
}


class Model(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, q, k, v):
        return flex_attention(q, k, v, self.make(q.shape[2]))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", MODS)
def test_a_length_in_a_closure(name, strict):
    model = Model(MODS[name])
    given = tuple(torch.randn(2, 2, 20, 8) for _ in range(3))
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=2, max=4096)
    program = torch.export.export(model, given, dynamic_shapes=({0: batch, 2: length},) * 3, strict=strict).module()
    for b, n in ((2, 20), (5, 77), (1, 33)):
        other = tuple(torch.randn(b, 2, n, 8) for _ in range(3))
        torch.testing.assert_close(program(*other), model(*other))
