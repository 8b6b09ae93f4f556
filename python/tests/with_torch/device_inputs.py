"""Tensors and mods where HEDDLE_TEST_DEVICE says, which the tests of that device share."""

import torch

from agreement import DEVICE, DTYPE

GENERATOR = torch.Generator().manual_seed(21)


def random(*shape, dtype=DTYPE):
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE, dtype)


slopes = random(16, dtype=torch.float32)
ids = torch.randint(0, 4, (3, 700), generator=GENERATOR).sort(-1).values.to(DEVICE)


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx) * 0.1


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def documents(b, h, q_idx, kv_idx):
    return ids[b, q_idx] == ids[b, kv_idx]
