"""Mods that use their values many times: their plain text would have 3^n places for n steps."""

import numpy as np
import pytest
import torch

import heddle
from gradient_reference import dense
from heddle.torch import create_block_mask, flex_attention

torch.manual_seed(7)
Q, K, V = torch.randn(3, 1, 2, 12, 8, dtype=torch.float64).unbind()
SLOPES = torch.rand(2, dtype=torch.float64)


def bent(slopes):
    def score_mod(score, b, h, q_idx, kv_idx):
        for _ in range(14):
            score = torch.where(score > 0, score * 0.9, score + slopes[h] * 0.1)
        return score

    return score_mod


def seen(b, h, q_idx, kv_idx):
    at = q_idx + 3 * kv_idx
    for _ in range(12):
        at = torch.where(at % 2 == 0, at // 2, 3 * at + 1)
    return (at > 2) | (kv_idx <= q_idx) & (at >= 0)


def made(function, *given):
    """The result, and the gradients of all that is given."""
    given = [x.clone().requires_grad_() for x in given]
    out = function(*given)
    return out.detach(), *torch.autograd.grad(out.square().sum(), given)


def test_values_and_gradients():
    of_torch = made(lambda q, k, v, slopes: dense(q, k, v, bent(slopes))[0], Q, K, V, SLOPES)
    torch.testing.assert_close(made(lambda q, k, v, slopes: flex_attention(q, k, v, bent(slopes)), Q, K, V, SLOPES), of_torch)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    def attend(q, slopes):
        return flex_attention(q, K, V, bent(slopes), create_block_mask(seen, None, None, 12, 12, "cpu"))

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    torch.testing.assert_close(made(compiled, Q, SLOPES), made(attend, Q, SLOPES))
    blocks = torch.tensor([[bool(seen(0, 0, torch.tensor(i), torch.tensor(j))) for j in range(12)] for i in range(12)])
    mask = create_block_mask(seen, None, None, 12, 12, "cpu", BLOCK_SIZE=1)
    assert torch.equal(mask.to_dense()[0, 0].bool(), blocks)


def test_numpy():
    x = np.random.default_rng(0).standard_normal((1, 1, 6, 8)).astype(np.float32)

    def mod(score, b, h, q_idx, kv_idx):
        for _ in range(20):
            score = heddle.where(score > 0, score * 0.9, score + 0.1)
        return score

    text = str(heddle.explain(x, x, x, score_mod=mod))
    assert "_1 = " in text
    want = torch.from_numpy(x)
    scores = want @ want.transpose(2, 3) / 8**0.5
    for _ in range(20):
        scores = torch.where(scores > 0, scores * 0.9, scores + 0.1)
    np.testing.assert_allclose(heddle.attention(x, x, x, score_mod=mod), scores.softmax(-1) @ want, atol=1e-5)
