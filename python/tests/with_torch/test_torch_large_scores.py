"""Rows in which every score is far from zero: massive activations, and masks that add a huge number. Softmax does not
change if all scores of a row move by the same amount, and neither do gradients."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import heddle.torch as ht

LOWEST = torch.finfo(torch.float32).min


def reference(q, k, v, bias, scale):
    q, k, v, bias = (x.double() for x in (q, k, v, bias))
    scores = (q @ k.transpose(-1, -2) * scale + bias).float().double()  # beside 1e9 a score keeps nothing of q k
    top = scores.amax(-1, keepdim=True).detach().clamp(min=-1e300)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights @ v / torch.where(total > 0, total, 1.0), 0.0)


def exact(dtype, top_q, top_k):
    """Scores near -top_q * top_k / 8; the parts that differ are multiples of 1/8, so that f32 has them exactly."""
    torch.manual_seed(1)
    q, k = torch.randint(-2, 3, (1, 4, 77, 64)).double(), torch.randint(-2, 3, (1, 4, 150, 64)).double()
    q[..., 0], k[..., 0] = -top_q, top_k
    return q.to(dtype), k.to(dtype), torch.randn(1, 4, 150, 64).to(dtype)


def masked(low):
    """Left padding under a causal mask: some rows have `low` everywhere. inf: rows of -inf."""
    torch.manual_seed(2)
    bias = torch.zeros(2, 1, 70, 70).masked_fill_(torch.ones(70, 70, dtype=torch.bool).triu(1), low)
    bias[1, :, :, :20] = low
    return *(torch.randn(2, 3, 70, 32) for _ in range(3)), bias


def eager(f):
    return f


def compiled(f):
    return torch.compile(f, backend="aot_eager")


def checkpointed(f):
    return lambda *tensors: checkpoint(f, *tensors, use_reentrant=False)


def expect_gradients(run, q, k, v, bias, scale, near, first=0):
    wants = [x.double().requires_grad_() for x in (q, k, v)]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    want, got = reference(*wants, bias, scale), run(*leaves)
    torch.testing.assert_close(got.double(), want, atol=near, rtol=near)
    pull = torch.randn(want.shape).to(q.dtype)
    want.backward(pull.double())
    got.backward(pull)
    for x, y in zip(leaves, wants):
        allowed = near * max(1.0, y.grad[..., first:].abs().max().item())
        assert (x.grad.double() - y.grad)[..., first:].abs().max().item() < allowed


@pytest.mark.parametrize("way", [eager, compiled, checkpointed])
@pytest.mark.parametrize("dtype, near", [(torch.float32, 2e-4), (torch.bfloat16, 4e-2)])
def test_exact_scores(way, dtype, near):
    for top_q, top_k in ((448, 560), (896, 8960), (16, 16)):
        q, k, v = exact(dtype, top_q, top_k)
        # In the first channel huge terms cancel.
        expect_gradients(way(lambda q, k, v: ht.flex_attention(q, k, v, scale=0.125)), q, k, v, torch.zeros(()), 0.125,
                         near, first=1)


@pytest.mark.parametrize("way", [eager, compiled, checkpointed])
@pytest.mark.parametrize("low", [LOWEST, -1e9, -torch.inf])
def test_masks_that_add_a_huge_number(way, low):
    q, k, v, bias = masked(low)
    run = way(lambda q, k, v: ht.scaled_dot_product_attention(q, k, v, attn_mask=bias))
    expect_gradients(run, q, k, v, bias, 32**-0.5, 2e-5)


def test_torch_func():
    q, k, v, bias = masked(-1e9)

    def loss(q, k, v):
        return (ht.scaled_dot_product_attention(q, k, v, attn_mask=bias) ** 2).sum()

    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    (reference(*leaves, bias, 32**-0.5) ** 2).sum().backward()
    for made, leaf in zip(torch.func.grad(loss, (0, 1, 2))(q, k, v), leaves):
        torch.testing.assert_close(made.double(), leaf.grad, atol=1e-4, rtol=1e-4)
    each = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(*(torch.stack([x, x]) for x in (q, k, v)))
    for made, leaf in zip(each, leaves):
        torch.testing.assert_close(made[1].double(), leaf.grad, atol=1e-4, rtol=1e-4)


def test_lse_is_one_word_for_the_caller():
    q, k, v = exact(torch.float32, 896, 8960)
    q.requires_grad_()
    out, aux = ht.flex_attention(q, k, v, scale=0.125, return_aux=ht.AuxRequest(lse=True))
    scores = q.detach().double() @ k.double().transpose(-1, -2) * 0.125
    torch.testing.assert_close(aux.lse.double(), scores.logsumexp(-1), atol=0.04, rtol=0)  # half an ulp of 1e6
    (out.sum() + aux.lse.sum()).backward()
    assert torch.isfinite(q.grad).all()
