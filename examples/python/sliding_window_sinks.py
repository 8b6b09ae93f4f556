"""A sliding window with attention sinks: each head has a score that takes its share of the softmax and adds nothing."""

import numpy as np

import heddle

random = np.random.default_rng(0)
q = random.standard_normal((1, 8, 512, 64)).astype(np.float32)
k, v = (random.standard_normal((1, 2, 512, 64)).astype(np.float32) for _ in range(2))  # 2 KV heads serve 8 query heads
sinks = random.standard_normal(8).astype(np.float32)

window = heddle.mods.sliding_window(127) & heddle.mods.causal()
o, lse = heddle.attention(q, k, v, mask_mod=window, sinks=sinks, return_lse=True)
print(o.shape, heddle.check(q, k, v, o, lse, mask_mod=window, sinks=sinks).passed)
