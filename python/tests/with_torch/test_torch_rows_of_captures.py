"""Reductions over a row that the mod gathers, of as many elements as are unrolled: values and gradients, in f64."""

import pytest
import torch

from gradient_reference import assert_same, dense, gradients, random
from heddle.torch import flex_attention

ELEMENTS = 16

ROWS = {
    "sum": lambda s, x: s + x.sum(),
    "mean": lambda s, x: s * x.mean(),
    "prod": lambda s, x: s + (1 + x / 8).prod(),
    "amax": lambda s, x: s + x.amax(),
    "amin of products": lambda s, x: s + (s * x).amin(),
    "max": lambda s, x: s * x.max(),
    "norm": lambda s, x: s - x.norm(),
    "softmax": lambda s, x: s + x.softmax(0)[3],
    "softmax of the score": lambda s, x: (s * x).softmax(-1)[5],
    "log_softmax": lambda s, x: s + x.log_softmax(0)[15],
    "logsumexp": lambda s, x: s + x.logsumexp(0),
    "logsumexp of masked": lambda s, x: torch.where(x > 0, x * s, -torch.inf).logsumexp(0, keepdim=True)[0],
    "logsumexp of two": lambda s, x: torch.stack([s, x[0]]).logsumexp(0),
    "std": lambda s, x: s * x.std(),
    "var of a population": lambda s, x: s * x.var(correction=0),
    "real": lambda s, x: torch.real(s) * x[1],
}


@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients(name):
    q, k, v = (random(1, 2, 9, 8, seed=seed) for seed in range(3))
    rows = random(9, ELEMENTS, seed=7)

    def mod(score, b, h, q_idx, kv_idx):
        return ROWS[name](score, rows[q_idx])

    leaves = [q, k, v, rows]
    ours, torchs = flex_attention(q, k, v, mod), dense(q, k, v, mod)[0]
    incoming = [random(*ours.shape, seed=5, requires_grad=False)]
    assert_same([ours], [torchs], 1e-12)
    assert_same(gradients([ours], leaves, incoming), gradients([torchs], leaves, incoming), 1e-11)


def test_ties_share_the_slope():
    """As torch's amax: all that are equal to the largest element have the same share, and infinities keep the value."""
    q, k, v = (random(1, 1, 4, 8, seed=seed) for seed in range(3))
    rows = torch.tensor([[1.0] * 5, [2.0, 1.0, 2.0, 0.0, 2.0], [0.0, -1.0, 0.0, -3.0, 0.0], [3.0, 1.0, 2.0, 0.0, 2.5]],
                        dtype=torch.float64, requires_grad=True)

    def mod(score, b, h, q_idx, kv_idx):
        return score * rows[kv_idx].amax() + rows[q_idx].amin()

    ours, torchs = flex_attention(q, k, v, mod), dense(q, k, v, mod)[0]
    incoming = [random(*ours.shape, seed=5, requires_grad=False)]
    assert_same([ours], [torchs], 1e-12)
    assert_same(gradients([ours], [rows], incoming), gradients([torchs], [rows], incoming), 1e-12)
