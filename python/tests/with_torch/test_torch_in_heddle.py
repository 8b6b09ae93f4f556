"""Mods of heddle itself, of torch's functions: heddle.attention(q, k, v, score_mod=...) on torch's tensors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import heddle

torch.manual_seed(0)
Q, K, V = torch.randn(3, 1, 2, 9, 8).unbind()
SLOPES = torch.rand(2)
PAIRS = {
    "where": (lambda s, b, h, i, j: torch.where(i >= j, torch.tanh(s) * SLOPES[h], torch.clamp(s, -1, 1)),
              lambda s, b, h, i, j: heddle.where(i >= j, heddle.tanh(s) * SLOPES[h], heddle.clip(s, -1, 1))),
    "others": (lambda s, b, h, i, j: F.relu(s) + torch.maximum(i, j) * 0.1 + torch.clamp(j, max=3) * torch.exp(-torch.square(s)),
               lambda s, b, h, i, j: heddle.relu(s) + heddle.maximum(i, j) * 0.1 + heddle.minimum(j, 3) * heddle.exp(-s * s)),
    "tensors without axes": (lambda s, b, h, i, j: s * torch.tensor(0.5) + torch.ones(()) - torch.tensor(2),
                             lambda s, b, h, i, j: s * 0.5 + 1.0 - 2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_functions(name):
    got, want = (np.asarray(heddle.attention(Q, K, V, score_mod=mod)) for mod in PAIRS[name])
    np.testing.assert_array_equal(got, want)


def test_refusals():
    with pytest.raises(TypeError, match="torch.logsumexp of a score or an index is no expression"):
        heddle.attention(Q, K, V, score_mod=lambda s, b, h, i, j: torch.logsumexp(s, 0))
    with pytest.raises(TypeError, match=r"not with an array of shape torch.Size\(\[2\]\): index it"):
        heddle.attention(Q, K, V, score_mod=lambda s, b, h, i, j: s * torch.tensor([1.0, 2.0]))
