"""Ready-made mods, inverse functions in mods and heads of different numbers, where HEDDLE_TEST_DEVICE says."""

import pytest
import torch
from agreement import DEVICE, DTYPE, assert_agrees

from heddle import mods
from heddle.torch import create_block_mask, flex_attention, scaled_dot_product_attention

torch.manual_seed(0)
S = 192
Q, K, V = torch.randn(3, 1, 4, S, 64, device=DEVICE, dtype=DTYPE).unbind()
IDS = torch.arange(S, device=DEVICE) // 40
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], device=DEVICE, requires_grad=True)
TABLE = torch.rand(32, 4, device=DEVICE)
SCORES = {
    "alibi": (mods.alibi(SLOPES), lambda s, b, h, i, j: s + SLOPES[h] * (j - i)),
    "t5": (mods.t5_bias(TABLE, 32, 128, True), None),
    "softcap": (mods.softcap(0.5), lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5)),
}
MASKS = {
    "documents": (mods.causal() & mods.documents(IDS), lambda b, h, i, j: (i >= j) & (IDS[i] == IDS[j])),
    "torch's functions": (mods.causal() & (lambda b, h, i, j: torch.where(j > 30, i >= 0, IDS[j] == 0)), None),
    "natten": (mods.natten_2d(12, 16, 3, 5), None),
}


def compiled(*arguments):
    torch.compiler.reset()
    return torch.compile(flex_attention, fullgraph=True, backend="aot_eager")(*arguments)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    mod, same = SCORES[name]
    want = flex_attention(Q, K, V, same or (lambda s, b, h, i, j: mod(s, b, h, i, j)))
    for got in (flex_attention(Q, K, V, mod), compiled(Q, K, V, mod)):
        torch.testing.assert_close(got, want, atol=2e-2 if DTYPE == torch.bfloat16 else 1e-5, rtol=0)
    if want.requires_grad:
        gradients = [torch.autograd.grad(call(Q, K, V, one).float().square().sum(), SLOPES)[0]
                     for call, one in ((flex_attention, same), (flex_attention, mod), (compiled, mod))]
        for gradient in gradients[1:]:
            torch.testing.assert_close(gradient, gradients[0], atol=0, rtol=2e-2)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mod, same = MASKS[name]
    mask = create_block_mask(mod, None, None, S, S, DEVICE)
    want = flex_attention(Q, K, V, None, create_block_mask(same or (lambda b, h, i, j: mod(b, h, i, j)), None, None, S, S, DEVICE))
    for got in (flex_attention(Q, K, V, None, mask), compiled(Q, K, V, None, mask)):
        torch.testing.assert_close(got, want)


def test_angles_and_buckets():
    far = torch.linspace(-3, 3, S, device=DEVICE)
    bounds = torch.tensor([-50, -4, 0, 3], device=DEVICE)
    for mod in (lambda s, b, h, i, j: torch.atan2(far[i], far[j]) + s, lambda s, b, h, i, j: s * torch.hypot(far[i], far[j]),
                lambda s, b, h, i, j: s + torch.bucketize(j - i, bounds) * 0.25,
                lambda s, b, h, i, j: torch.asinh(s) + torch.asin(torch.tanh(s)) - torch.acos(torch.tanh(s))):
        assert_agrees(Q, K, V, mod)


def test_heads_of_different_numbers():
    out = scaled_dot_product_attention(Q, K[:, :2], V[:, :1], is_causal=True, enable_gqa=True)
    want = scaled_dot_product_attention(Q, K[:, :2].repeat_interleave(2, 1), V[:, :1].expand(-1, 4, -1, -1), is_causal=True)
    torch.testing.assert_close(out, want)
