"""Inputs that several tests compute on."""

import numpy as np


def inputs(batch=2, q_heads=4, kv_heads=2, q_len=13, kv_len=17, qk_dim=8, v_dim=8, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    q = random.standard_normal((batch, q_heads, q_len, qk_dim)).astype(dtype)
    k = random.standard_normal((batch, kv_heads, kv_len, qk_dim)).astype(dtype)
    return q, k, random.standard_normal((batch, kv_heads, kv_len, v_dim)).astype(dtype)
