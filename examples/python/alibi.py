"""ALiBi on NumPy arrays: a score that falls with the distance, causal."""

import numpy as np

import heddle

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 8, 512, 64)).astype(np.float32) for _ in range(3))
slopes = 2.0 ** -np.arange(1, 9, dtype=np.float32)

o = heddle.attention(
    q, k, v, mask_mod=heddle.mods.causal(),
    score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx))
print(o.shape, heddle.check(q, k, v, o, mask_mod=heddle.mods.causal(), score_mod=heddle.mods.alibi(slopes)).passed)
