"""heddle.progress hears of torch's calls, forward and backward."""

import torch

import heddle
from heddle.torch import flex_attention


def test_forward_and_backward():
    q = torch.zeros(1, 16, 1536, 64, requires_grad=True)
    heard = []
    with heddle.progress(heard.append):
        out = flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: torch.sin(score + q_idx) + torch.cos(kv_idx))
        of_forward = len(heard)
        out.sum().backward()
    assert of_forward and len(heard) > of_forward and max(heard) <= 1 and min(heard) > 0
